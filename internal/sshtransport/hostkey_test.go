// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtransport_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// keys are those that known_hosts is made of in these tests.
type keys struct{ ed25519, ecdsa, rsa, other, authority ssh.Signer }

// startWithKeys starts a server with three host keys, rsa the first, and makes
// an authority and a key that is not the server's.
func startWithKeys(t *testing.T, lines ...string) (*sshtest.Server, keys) {
	t.Helper()
	dir := t.TempDir()
	lines = append(lines, "HostKey "+filepath.Join(dir, "rsa"), "HostKey "+filepath.Join(dir, "ecdsa"), "HostKey "+filepath.Join(dir, "ed25519"))
	var k keys
	var writer sshtest.Keys
	writer.T = t
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k.rsa, k.ecdsa = writer.Write(filepath.Join(dir, "rsa"), r), writer.Write(filepath.Join(dir, "ecdsa"), e)
	k.ed25519 = writer.New(filepath.Join(dir, "ed25519"))
	k.other, k.authority = writer.New(filepath.Join(dir, "other")), writer.New(filepath.Join(dir, "authority"))
	return sshtest.Start(t, lines...), k
}

// connect dials once, with known hosts of this content.
func connect(t *testing.T, s *sshtest.Server, knownHosts string, change func(*sshtransport.Config)) error {
	t.Helper()
	config := s.Config()
	config.KnownHostsFile = filepath.Join(t.TempDir(), "known_hosts")
	if knownHosts != "" {
		s.Write(config.KnownHostsFile, knownHosts)
	}
	if change != nil {
		change(&config)
	}
	return s.HostOf(s.Pool(sshtransport.Options{}), config).Connect(t.Context())
}

func line(hosts string, key ssh.Signer) string {
	return hosts + " " + string(ssh.MarshalAuthorizedKey(key.PublicKey()))
}

// What known_hosts says decides, in every form that it can have.
func TestKnownHosts(t *testing.T) {
	s, k := startWithKeys(t)
	at := knownhosts.Normalize(s.Endpoint())
	dsa := "ssh-dss AAAAB3NzaC1kc3MAAAAJAJ6xk+9LmTKHAAAAAQEAAAABAgAAAAED\n"
	cases := map[string]struct {
		content string
		problem sshtransport.HostKeyProblem // empty when it is the host
		line    int                         // of the file, that the error names
		says    string
	}{
		"ed25519 only, though the server prefers rsa": {line(at, k.ed25519), "", 0, ""},
		"ecdsa only":                          {line(at, k.ecdsa), "", 0, ""},
		"rsa only":                            {line(at, k.rsa), "", 0, ""},
		"all kinds":                           {line(at, k.rsa) + line(at, k.ecdsa) + line(at, k.ed25519), "", 0, ""},
		"hashed":                              {line(knownhosts.HashHostname(at), k.ed25519), "", 0, ""},
		"a wildcard without a port":           {line("127.0.*", k.ed25519), "", 0, ""},
		"a list":                              {line("other,"+at, k.ed25519), "", 0, ""},
		"comments of many words":              {"# a comment\n\n" + strings.TrimSpace(line(at, k.ed25519)) + " a comment of many words\n", "", 0, ""},
		"no end of the last line":             {strings.TrimSpace(line(at, k.ed25519)), "", 0, ""},
		"lines of Windows":                    {strings.TrimSpace(line(at, k.ed25519)) + "\r\n", "", 0, ""},
		"another key of it too":               {line(at, k.other) + line(at, k.ed25519), "", 0, ""},
		"lines that nobody can read any more": {at + " " + dsa + "garbage\n@unknown x y z\n" + line("!", k.other) + line(at, k.ed25519), "", 0, ""},

		"no entry":                       {line("[127.0.0.1]:1", k.ed25519), sshtransport.HostKeyUnknown, 0, "host_key_policy"},
		"the entry is for port 22":       {line("127.0.0.1", k.ed25519), sshtransport.HostKeyUnknown, 0, "known_hosts"},
		"a negated pattern":              {line("!"+at+",*", k.ed25519), sshtransport.HostKeyUnknown, 0, ""},
		"an empty file":                  {"\n", sshtransport.HostKeyUnknown, 0, ""},
		"only a kind that is gone":       {at + " " + dsa, sshtransport.HostKeyUnknown, 0, ""},
		"changed":                        {"# one\n" + line(at, k.other), sshtransport.HostKeyChanged, 2, "ssh-keygen -R"},
		"changed, after an unusable one": {"garbage\n" + line(at, k.other), sshtransport.HostKeyChanged, 2, "ssh-keygen -R"},
		"changed, hashed":                {line(knownhosts.HashHostname(at), k.other), sshtransport.HostKeyChanged, 1, "ssh-keygen -R"},
		"revoked":                        {line(at, k.ed25519) + line("@revoked *", k.ed25519), sshtransport.HostKeyRevoked, 2, "revoked"},
		"revoked and nothing else":       {line("@revoked *", k.ed25519), sshtransport.HostKeyRevoked, 1, "revoked"},
		"an authority's key as the host's": {line("@cert-authority "+at, k.ed25519), "", 0,
			"no algorithm in common"}, // the server has no certificate to show
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var file string
			err := connect(t, s, c.content, func(config *sshtransport.Config) { file = config.KnownHostsFile })
			var problem *sshtransport.HostKeyError
			switch {
			case c.problem == "" && c.says == "":
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			case c.problem == "":
				if !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v", err)
				}
				return
			case !errors.Is(err, sdk.ErrUnauthenticated) || !errors.As(err, &problem):
				t.Fatalf("%v is no problem of the host key", err)
			}
			if problem.Problem != c.problem || problem.Line != c.line || problem.File != file {
				t.Errorf("%+v, want %s in line %d of %s", problem, c.problem, c.line, file)
			}
			for _, word := range []string{file, s.Endpoint(), problem.Fingerprint, c.says} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %q", err, word)
				}
			}
			if c.line > 0 && !strings.Contains(err.Error(), fmt.Sprintf("%s:%d", file, c.line)) {
				t.Errorf("%q does not name the line", err)
			}
		})
	}
	t.Run("the advice for an unknown host works", func(t *testing.T) {
		err := connect(t, s, "\n", nil)
		_, rest, _ := strings.Cut(err.Error(), "add this line to ")
		_, rest, _ = strings.Cut(rest, ": ")
		advised, _, _ := strings.Cut(rest, "; or")
		if err := connect(t, s, advised+"\n", nil); err != nil {
			t.Errorf("with %q: %v", advised, err)
		}
	})
	t.Run("a damaged line that may revoke a key", func(t *testing.T) {
		err := connect(t, s, line(at, k.ed25519)+"@revoked * ssh-ed25519 AAAA\n", nil)
		if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%v", err)
		}
	})
	t.Run("a file that was named and is missing", func(t *testing.T) {
		var file string
		err := connect(t, s, "", func(config *sshtransport.Config) { file = config.KnownHostsFile })
		if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), file) {
			t.Errorf("%v", err)
		}
	})
	t.Run("no file at all", func(t *testing.T) {
		err := connect(t, s, "", func(config *sshtransport.Config) { config.KnownHostsFile = "" })
		want := filepath.Join(s.Home, ".ssh", "known_hosts")
		if !errors.Is(err, sdk.ErrUnauthenticated) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	})
}

// A certificate of a known authority is enough, whatever the kind of its key;
// one that is expired, for another host, or of a revoked authority is not.
func TestHostCertificates(t *testing.T) {
	dir := t.TempDir()
	s, k := startWithKeys(t, "HostCertificate "+filepath.Join(dir, "rsa-cert.pub"))
	at := knownhosts.Normalize(s.Endpoint())
	certify := func(principal string, until time.Time) {
		t.Helper()
		certificate := &ssh.Certificate{
			Key: k.rsa.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{principal},
			ValidAfter: uint64(time.Now().Add(-time.Hour).Unix()), ValidBefore: uint64(until.Unix()),
		}
		if err := certificate.SignCert(rand.Reader, k.authority); err != nil {
			t.Fatal(err)
		}
		s.Write(filepath.Join(dir, "rsa-cert.pub"), string(ssh.MarshalAuthorizedKey(certificate)))
		s.Stop()
		s.Restart()
	}
	hour := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		principal string
		until     time.Time
		content   string
		ok        bool
	}{
		"of the authority":    {"127.0.0.1", hour, line("@cert-authority "+at, k.authority), true},
		"for another host":    {"elsewhere", hour, line("@cert-authority "+at, k.authority), false},
		"expired":             {"127.0.0.1", time.Now().Add(-time.Minute), line("@cert-authority "+at, k.authority), false},
		"another authority":   {"127.0.0.1", hour, line("@cert-authority "+at, k.other), false},
		"authority revoked":   {"127.0.0.1", hour, line("@cert-authority "+at, k.authority) + line("@revoked *", k.authority), false},
		"authority of others": {"127.0.0.1", hour, line("@cert-authority *.example", k.authority), false},
	} {
		t.Run(name, func(t *testing.T) {
			certify(c.principal, c.until)
			err := connect(t, s, c.content, nil)
			if c.ok && err != nil || !c.ok && !errors.Is(err, sdk.ErrUnauthenticated) {
				t.Errorf("%v", err)
			}
		})
	}
}

// accept_new adds the key of an unknown host once, also when several do so at
// the same time, and refuses a key that has changed.
func TestAcceptNew(t *testing.T) {
	s, k := startWithKeys(t)
	at := knownhosts.Normalize(s.Endpoint())
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	accept := func(file string) error {
		config := s.Config()
		config.KnownHostsFile, config.HostKeyPolicy = file, sshtransport.PolicyAcceptNew
		return s.HostOf(s.Pool(sshtransport.Options{}), config).Connect(t.Context())
	}
	file := filepath.Join(dir, "known_hosts")
	var dialling sync.WaitGroup
	for range 6 {
		dialling.Go(func() {
			if err := accept(file); err != nil {
				t.Error(err)
			}
		})
	}
	dialling.Wait()
	content, err := os.ReadFile(file)
	if want := line(at, k.ed25519); string(content) != want || err != nil {
		t.Errorf("the file has %q, want %q, %v", content, want, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// After a line without an end, and only once.
	s.Write(file, "# mine")
	for range 2 {
		if err := accept(file); err != nil {
			t.Error(err)
		}
	}
	if content, _ := os.ReadFile(file); string(content) != "# mine\n"+line(at, k.ed25519) {
		t.Errorf("the file has %q", content)
	}
	for name, content := range map[string]string{"changed": line(at, k.other), "revoked": line("@revoked *", k.ed25519)} {
		s.Write(file, content)
		if err := accept(file); !errors.Is(err, sdk.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
		if got, _ := os.ReadFile(file); string(got) != content {
			t.Errorf("%s: the file has %q", name, got)
		}
	}
	// Where it can't be written, nothing is accepted.
	blocked := filepath.Join(t.TempDir(), "file")
	s.Write(blocked, "")
	if err := accept(filepath.Join(blocked, "known_hosts")); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("no place for the file: %v", err)
	}
}

// A key in the configuration counts instead of known_hosts.
func TestConfiguredHostKey(t *testing.T) {
	s, k := startWithKeys(t)
	public := func(key ssh.Signer) string { return string(ssh.MarshalAuthorizedKey(key.PublicKey())) }
	for name, c := range map[string]struct {
		key string
		ok  bool
	}{
		"ed25519":        {public(k.ed25519), true},
		"rsa":            {public(k.rsa), true},
		"ecdsa":          {public(k.ecdsa), true},
		"one of two":     {public(k.other) + public(k.ed25519), true},
		"a line of file": {line("some.host", k.ed25519), true},
		"fingerprint":    {ssh.FingerprintSHA256(k.ed25519.PublicKey()), true},
		"another":        {public(k.other), false},
		"another print":  {ssh.FingerprintSHA256(k.other.PublicKey()), false},
	} {
		t.Run(name, func(t *testing.T) {
			err := connect(t, s, "", func(config *sshtransport.Config) { config.KnownHostsFile, config.HostKey = "", c.key })
			var problem *sshtransport.HostKeyError
			switch {
			case c.ok && err != nil:
				t.Error(err)
			case !c.ok && (!errors.Is(err, sdk.ErrUnauthenticated) || !errors.As(err, &problem) || !strings.Contains(err.Error(), "ssh.host_key")):
				t.Errorf("%v", err)
			}
		})
	}
}

// Nothing is sent to a host that is not the one that was meant: a server that
// does not even know its own key gets no name of a user.
func TestNothingIsSentToAStranger(t *testing.T) {
	s, k := startWithKeys(t, "LogLevel DEBUG3")
	if err := connect(t, s, line(knownhosts.Normalize(s.Endpoint()), k.other), nil); err == nil {
		t.Fatal("it was not refused")
	}
	if strings.Contains(s.Log(), "userauth-request for user "+s.User) {
		t.Error("the server was told who wants in")
	}
	if _, err := net.Dial("tcp", s.Endpoint()); err != nil {
		t.Fatal(err)
	}
}
