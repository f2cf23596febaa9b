// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// HostKeyProblem tells what is wrong with a host's key.
type HostKeyProblem string

// The problems of host keys.
const (
	HostKeyUnknown HostKeyProblem = "unknown" // no key of this host is known
	HostKeyChanged HostKeyProblem = "changed" // another key of this host is known
	HostKeyRevoked HostKeyProblem = "revoked" // the key is marked as revoked
)

// HostKeyError is wrapped by the error for a host that did not prove to be
// the one that was meant. Nothing was sent to it.
type HostKeyError struct {
	Problem     HostKeyProblem
	Fingerprint string // of the key that the host showed, SHA256:…
	File        string // of known hosts, that has or lacks the key; empty when a key is configured
	Line        int    // in File, of the key that is known or revoked; zero when unknown
}

// Error says what is wrong in a few words; the error around it has the rest.
func (e *HostKeyError) Error() string {
	at := ""
	if e.Line > 0 {
		at = fmt.Sprintf(" (%s:%d)", e.File, e.Line)
	}
	return "host key " + string(e.Problem) + at
}

// hostKeyAlgorithms is the order of preference for a host whose key is not
// known yet: as OpenSSH has it, without SHA-1.
var hostKeyAlgorithms = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}

// certificateAlgorithms are those of a host whose key a known authority has
// signed: any, because the key need not be of the authority's own type.
var certificateAlgorithms = []string{
	ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01, ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
}

// verifier decides whether a host is the one that is meant.
type verifier struct {
	target *target
	db     *knownhosts.HostKeyDB // nil when a key is configured
	files  []string              // of known hosts, that were read
	write  string                // where a new key would be added
	names  map[string]string     // of copies → the file they were made from
	keys   []hostKey             // configured
}

// newVerifier reads the known hosts, or the key that is configured.
func newVerifier(t *target) (*verifier, error) {
	v := &verifier{target: t, names: map[string]string{}}
	if t.config.HostKey != "" {
		keys, err := parseHostKeys(t.config.HostKey)
		v.keys = keys
		return v, err
	}
	if len(t.knownHosts) > 0 {
		v.write = t.knownHosts[0]
	}
	return v, v.read()
}

// read loads the files of known hosts. A file that is not there has no keys;
// one that was named and is not there is a fault, unless keys are added to it.
func (v *verifier) read() error {
	var load []string
	v.files = nil
	for _, file := range v.target.knownHosts {
		content, err := readKnownHosts(file)
		switch {
		case errors.Is(err, os.ErrNotExist) && (v.target.config.KnownHostsFile == "" || v.target.config.HostKeyPolicy == PolicyAcceptNew):
			continue
		case err != nil:
			return &sdk.Error{Kind: sdk.ErrInvalid, Path: v.target.at + ".known_hosts_file", Message: "the known hosts can't be read", Err: err}
		}
		v.files = append(v.files, file)
		readable, err := usableLines(content, knownhosts.Normalize(v.target.address()))
		if err != nil {
			return &sdk.Error{Kind: sdk.ErrInvalid, Path: v.target.at + ".known_hosts_file", Message: "the known hosts in " + file + " can't be trusted", Err: err, Advice: "mend the line: it may say that a key is revoked"}
		}
		if bytes.Equal(readable, content) {
			load = append(load, file)
			continue
		}
		clean, err := v.copyOf(file, readable)
		if err != nil {
			return err
		}
		defer os.Remove(clean)
		load = append(load, clean)
	}
	db, err := knownhosts.NewDB(load...)
	if err != nil {
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: v.target.at + ".known_hosts_file", Message: "the known hosts can't be read", Err: err}
	}
	v.db = db
	return nil
}

// copyOf writes the usable lines of a file to one of our own: the parser
// reads files, and refuses a whole one for a single line that it can't use.
func (v *verifier) copyOf(file string, content []byte) (string, error) {
	clean, err := os.CreateTemp("", "sandboxer-known-hosts-")
	if err != nil {
		return "", err
	}
	v.names[clean.Name()] = file
	_, err = clean.Write(content)
	if err = errors.Join(err, clean.Close()); err != nil {
		return "", errors.Join(err, os.Remove(clean.Name()))
	}
	return clean.Name(), nil
}

// origin returns the file that a line is really in.
func (v *verifier) origin(key xknownhosts.KnownKey) string {
	if file, copied := v.names[key.Filename]; copied {
		return file
	}
	return key.Filename
}

// algorithms returns which kinds of host key to ask for, best first: those
// that are known. A server would otherwise show a key of a kind that it has
// besides the known one, which then looks as if it had changed.
func (v *verifier) algorithms() []string {
	var known []knownhosts.PublicKey
	if v.db != nil {
		known = v.db.HostKeys(v.target.address())
	}
	for _, key := range v.keys {
		if key.public == nil {
			return hostKeyAlgorithms // a fingerprint does not tell its kind
		}
		known = append(known, knownhosts.PublicKey{PublicKey: key.public})
	}
	var algorithms []string
	for _, key := range known {
		switch {
		case key.Cert:
			algorithms = append(algorithms, certificateAlgorithms...)
		case key.Type() == ssh.KeyAlgoRSA:
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			algorithms = append(algorithms, key.Type())
		}
	}
	if len(algorithms) == 0 {
		return hostKeyAlgorithms
	}
	slices.Sort(algorithms)
	return slices.Compact(algorithms)
}

// check is the [ssh.HostKeyCallback].
func (v *verifier) check(address string, remote net.Addr, key ssh.PublicKey) error {
	if v.db == nil {
		return v.checkConfigured(key)
	}
	err := v.db.HostKeyCallback()(address, remote, key)
	if knownhosts.IsHostUnknown(err) && v.target.config.HostKeyPolicy == PolicyAcceptNew {
		return v.accept(address, remote, key)
	}
	return v.explain(err, key)
}

func (v *verifier) checkConfigured(key ssh.PublicKey) error {
	for _, known := range v.keys {
		if known.matches(key) {
			return nil
		}
	}
	return &sdk.Error{
		Kind: sdk.ErrUnauthenticated, Path: v.target.at + ".host_key",
		Message: fmt.Sprintf("%s shows the %s key %s, which is not the configured one", v.target.address(), key.Type(), ssh.FingerprintSHA256(key)),
		Advice:  "when the host's key was really replaced, configure the new one; a fingerprint must be that of the key which is shown",
		Err:     &HostKeyError{Problem: HostKeyChanged, Fingerprint: ssh.FingerprintSHA256(key)},
	}
}

// explain turns what the database says into an error that names the file, the
// line and what to do.
func (v *verifier) explain(err error, key ssh.PublicKey) error {
	if err == nil {
		return nil
	}
	problem := &HostKeyError{Fingerprint: ssh.FingerprintSHA256(key), File: v.write}
	e := &sdk.Error{Kind: sdk.ErrUnauthenticated, Path: v.target.at + ".known_hosts_file", Err: problem}
	name := knownhosts.Normalize(v.target.address())
	var revoked *xknownhosts.RevokedError
	var mismatch *xknownhosts.KeyError
	switch {
	case errors.As(err, &revoked):
		problem.Problem, problem.File, problem.Line = HostKeyRevoked, v.origin(revoked.Revoked), revoked.Revoked.Line
		e.Message = fmt.Sprintf("%s shows the %s key %s, which is revoked", v.target.address(), key.Type(), problem.Fingerprint)
		e.Advice = "the key must not be used any more: give the host a new one"
	case errors.As(err, &mismatch) && len(mismatch.Want) > 0:
		want := mismatch.Want[0]
		problem.Problem, problem.File, problem.Line = HostKeyChanged, v.origin(want), want.Line
		e.Message = fmt.Sprintf("%s shows the %s key %s, but another one is known: %s %s", v.target.address(), key.Type(), problem.Fingerprint, want.Key.Type(), ssh.FingerprintSHA256(want.Key))
		e.Advice = fmt.Sprintf("somebody may stand between you and the host; only when its key was really replaced: ssh-keygen -R '%s' -f '%s', then add the new key", name, problem.File)
	case errors.As(err, &mismatch):
		problem.Problem = HostKeyUnknown
		e.Message = fmt.Sprintf("%s is not a known host: it shows the %s key %s, and no key of it is in %s", v.target.address(), key.Type(), problem.Fingerprint, strings.Join(v.target.knownHosts, " or "))
		e.Advice = fmt.Sprintf("when that is its key (ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub on the host tells), add this line to %s: %s; or set host_key to it, or host_key_policy = %q", v.write, oneLine(name, key), PolicyAcceptNew)
	default: // a certificate that is expired, for another host, or not one of an authority
		problem.Problem = HostKeyUnknown
		e.Message = fmt.Sprintf("%s shows a certificate that is not accepted: %s", v.target.address(), err)
		e.Advice = "renew the host's certificate, or add the key of the authority that signed it"
	}
	return e
}

// oneLine is a line of known hosts.
func oneLine(name string, key ssh.PublicKey) string {
	if certificate, ok := key.(*ssh.Certificate); ok {
		key = certificate.Key
	}
	return knownhosts.Line([]string{name}, key)
}

// hostKey is one configured key: whole, or its fingerprint.
type hostKey struct {
	public      ssh.PublicKey
	fingerprint string
}

func (k hostKey) matches(key ssh.PublicKey) bool {
	if k.public == nil {
		return k.fingerprint == ssh.FingerprintSHA256(key)
	}
	return bytes.Equal(k.public.Marshal(), key.Marshal())
}

// parseHostKeys reads configured keys: "ssh-ed25519 AAAA…" with or without
// the host's name before it, or "SHA256:…", one a line.
func parseHostKeys(text string) ([]hostKey, error) {
	if len(text) > 64<<10 {
		return nil, errors.New("longer than 64 KiB")
	}
	var keys []hostKey
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if digest, found := strings.CutPrefix(line, "SHA256:"); found {
			if len(strings.TrimRight(digest, "=")) != 43 || strings.ContainsAny(digest, " \t") {
				return nil, errors.New("a fingerprint is SHA256: and 43 characters")
			}
			keys = append(keys, hostKey{fingerprint: "SHA256:" + strings.TrimRight(digest, "=")})
			continue
		}
		public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			if _, _, public, _, _, err = ssh.ParseKnownHosts([]byte(line)); err != nil {
				return nil, errors.New("neither a public key like \"ssh-ed25519 AAAA…\" nor a fingerprint like \"SHA256:…\"")
			}
		}
		keys = append(keys, hostKey{public: public})
	}
	if len(keys) == 0 {
		return nil, errors.New("no key")
	}
	return keys, nil
}
