// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// maxSigners bounds the keys that are tried. A server counts each as a
	// failure, and sshd disconnects at six (MaxAuthTries).
	maxSigners = 5
	// maxKeyFile bounds the file of a key, in bytes.
	maxKeyFile = 1 << 20
	// agentTimeout bounds how long the agent may take to list its keys.
	agentTimeout = 5 * time.Second
	// passphraseTimeout bounds the command that prints a passphrase.
	passphraseTimeout = 30 * time.Second
)

// identity is one way to authenticate: a key and where it is from.
type identity struct {
	signer ssh.Signer
	from   string // for messages
}

// identities are the keys to try, in order, and what was found on the way.
type identities struct {
	list  []identity
	notes []string // why a key is not among them
	agent net.Conn // signs while the handshake lasts; nil when there is none
}

// close ends the connection to the agent.
func (ids *identities) close() {
	if ids.agent != nil {
		ids.agent.Close()
	}
}

func (ids *identities) note(format string, args ...any) {
	ids.notes = append(ids.notes, fmt.Sprintf(format, args...))
}

// add takes a key once.
func (ids *identities) add(signer ssh.Signer, from string) {
	blob := signer.PublicKey().Marshal()
	if !slices.ContainsFunc(ids.list, func(other identity) bool { return bytes.Equal(other.signer.PublicKey().Marshal(), blob) }) {
		ids.list = append(ids.list, identity{withoutSHA1(signer), from})
	}
}

// signers is the callback for [ssh.PublicKeysCallback]: all keys in one
// method, because only the first of several public key methods is tried.
func (ids *identities) signers() ([]ssh.Signer, error) {
	var signers []ssh.Signer
	for _, id := range ids.list {
		signers = append(signers, id.signer)
	}
	return signers, nil
}

// tried tells what was offered, for the error of a refusal.
func (ids *identities) tried() string {
	var offered []string
	for _, id := range ids.list {
		offered = append(offered, fmt.Sprintf("%s (%s)", id.from, ssh.FingerprintSHA256(id.signer.PublicKey())))
	}
	text := "no key was offered"
	if len(offered) > 0 {
		text = "offered: " + strings.Join(offered, ", ")
	}
	if len(ids.notes) > 0 {
		text += "; not offered: " + strings.Join(ids.notes, ", ")
	}
	return text
}

// loadIdentities collects the keys of a target: what is named first, then the
// agent's, then the usual files. A key that the configuration names and that
// can't be used is an error.
func loadIdentities(ctx context.Context, t *target, agentSocket string) (*identities, error) {
	ids := &identities{}
	keys, err := ids.dialAgent(ctx, t, agentSocket)
	if err != nil {
		ids.note("the agent at %s: %v", agentSocket, err)
	}
	l := keyLoader{target: t, agent: keys}
	named, err := l.named(ctx, ids)
	if err != nil {
		ids.close()
		return nil, err
	}
	if !t.identities {
		for _, key := range keys {
			ids.add(key, "agent")
		}
		if !named {
			l.files(ctx, ids, t.defaultKeys)
		}
	}
	if extra := len(ids.list) - maxSigners; extra > 0 {
		ids.list = ids.list[:maxSigners]
		ids.note("%d further keys, because servers disconnect after a few (name the right one with key_file and identities_only)", extra)
	}
	return ids, nil
}

// dialAgent connects to the agent and lists its keys.
func (ids *identities) dialAgent(ctx context.Context, t *target, socket string) ([]ssh.Signer, error) {
	if socket == "" || !t.config.useAgent() {
		return nil, nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	ids.agent = conn
	if err := conn.SetDeadline(time.Now().Add(agentTimeout)); err != nil {
		return nil, err
	}
	keys, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, err
	}
	// To sign may take as long as the whole handshake: some agents ask first.
	deadline, _ := ctx.Deadline()
	return keys, conn.SetDeadline(deadline)
}

// keyLoader reads private keys, and lets the agent stand in for one that is
// encrypted.
type keyLoader struct {
	target     *target
	agent      []ssh.Signer
	passphrase []byte // once it is known
}

// named adds the keys that the configuration or ssh_config names. It returns
// whether there is one.
func (l *keyLoader) named(ctx context.Context, ids *identities) (bool, error) {
	c, at := l.target.config, l.target.at
	if c.PrivateKey != "" {
		if err := l.add(ctx, ids, []byte(c.PrivateKey), "private_key", ""); err != nil {
			return true, l.fault(at+".private_key", "the private key", err)
		}
	}
	if c.KeyFile != "" {
		file := expandHome(c.KeyFile, l.target.home)
		content, err := readKey(file)
		if err == nil {
			err = l.add(ctx, ids, content, file, file)
		}
		if err != nil {
			return true, l.fault(at+".key_file", file, err)
		}
	}
	l.files(ctx, ids, l.target.keyFiles)
	return c.PrivateKey != "" || c.KeyFile != "" || len(l.target.keyFiles) > 0, nil
}

// files adds the keys of files. One that is not there is passed over, as
// OpenSSH does; one that can't be used is noted.
func (l *keyLoader) files(ctx context.Context, ids *identities, files []string) {
	for _, file := range files {
		content, err := readKey(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = l.add(ctx, ids, content, file, file)
		}
		if err != nil {
			ids.note("%s: %v", file, err)
		}
	}
}

// add reads one key, and its certificate where the file has one beside it.
func (l *keyLoader) add(ctx context.Context, ids *identities, content []byte, from, file string) error {
	signer, err := l.parse(ctx, content, file)
	if err != nil {
		return err
	}
	if file != "" {
		if certified, err := withCertificate(signer, file+"-cert.pub"); err == nil {
			ids.add(certified, file+"-cert.pub")
		} else if !errors.Is(err, os.ErrNotExist) {
			ids.note("%s-cert.pub: %v", file, err)
		}
	}
	ids.add(signer, from)
	return nil
}

// parse reads a private key. For an encrypted one it takes the agent's, and
// else asks for the passphrase.
func (l *keyLoader) parse(ctx context.Context, content []byte, file string) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(content)
	var missing *ssh.PassphraseMissingError
	if err == nil {
		return signer, nil
	}
	if !errors.As(err, &missing) {
		// A public key names one that the agent holds.
		if public, _, _, _, err := ssh.ParseAuthorizedKey(content); err == nil {
			if signer := l.fromAgent(public); signer != nil {
				return signer, nil
			}
			return nil, errors.New("this is a public key, and the agent does not hold the private one")
		}
		return nil, errors.New("not a private key that can be read")
	}
	public := missing.PublicKey
	if public == nil && file != "" {
		if content, err := readKey(file + ".pub"); err == nil {
			public, _, _, _, _ = ssh.ParseAuthorizedKey(content)
		}
	}
	if signer := l.fromAgent(public); signer != nil {
		return signer, nil
	}
	if err := l.askPassphrase(ctx); err != nil {
		return nil, err
	}
	signer, err = ssh.ParsePrivateKeyWithPassphrase(content, l.passphrase)
	if err != nil {
		return nil, errors.New("the passphrase does not open the key")
	}
	return signer, nil
}

// fromAgent returns the agent's signer for a public key, nil when it has none.
func (l *keyLoader) fromAgent(public ssh.PublicKey) ssh.Signer {
	if public == nil {
		return nil
	}
	for _, key := range l.agent {
		if bytes.Equal(key.PublicKey().Marshal(), public.Marshal()) {
			return key
		}
	}
	return nil
}

// askPassphrase finds the passphrase, once. What its command writes is never
// repeated: it may be the secret.
func (l *keyLoader) askPassphrase(ctx context.Context) error {
	c := l.target.config
	switch {
	case len(l.passphrase) > 0:
		return nil
	case c.Passphrase != "":
		l.passphrase = []byte(string(c.Passphrase))
		return nil
	case len(c.PassphraseCommand) == 0:
		return errors.New("the key is encrypted: add it to the agent (ssh-add), or set passphrase or passphrase_command")
	}
	ctx, cancel := context.WithTimeout(ctx, passphraseTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.PassphraseCommand[0], c.PassphraseCommand[1:]...)
	cmd.WaitDelay = time.Second // a child that keeps the pipe open
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("passphrase_command: %s ended with %s", clip(c.PassphraseCommand[0]), exit.ProcessState)
		}
		return fmt.Errorf("passphrase_command: %w", err)
	}
	if l.passphrase = bytes.TrimRight(output, "\r\n"); len(l.passphrase) == 0 {
		return fmt.Errorf("passphrase_command: %s printed nothing", clip(c.PassphraseCommand[0]))
	}
	return nil
}

func (l *keyLoader) fault(path, what string, err error) error {
	return &sdk.Error{Kind: sdk.ErrInvalid, Path: path, Message: what + " can't be used", Err: err}
}

// readKey reads the file of a key.
func readKey(file string) ([]byte, error) {
	handle, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	content, err := io.ReadAll(io.LimitReader(handle, maxKeyFile+1))
	if err == nil && len(content) > maxKeyFile {
		err = fmt.Errorf("larger than %d MiB", maxKeyFile>>20)
	}
	return content, err
}

// withCertificate returns a signer that shows a certificate.
func withCertificate(signer ssh.Signer, file string) (ssh.Signer, error) {
	content, err := readKey(file)
	if err != nil {
		return nil, err
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(content)
	if err != nil {
		return nil, errors.New("not a public key")
	}
	certificate, ok := public.(*ssh.Certificate)
	if !ok {
		return nil, errors.New("not a certificate")
	}
	return ssh.NewCertSigner(certificate, signer)
}

// withoutSHA1 lets an RSA key sign with SHA-2 only.
func withoutSHA1(signer ssh.Signer) ssh.Signer {
	algorithms, ok := signer.(ssh.AlgorithmSigner)
	if !ok || signer.PublicKey().Type() != ssh.KeyAlgoRSA {
		return signer
	}
	strong, err := ssh.NewSignerWithAlgorithms(algorithms, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256})
	if err != nil {
		return signer // it can't: the server decides
	}
	return strong
}

// methods are the ways to authenticate: keys, then a password where one is
// configured, which some servers only take as the answer to a question.
func (ids *identities) methods(password sdk.Secret) []ssh.AuthMethod {
	methods := []ssh.AuthMethod{ssh.PublicKeysCallback(ids.signers)}
	if password == "" {
		return methods
	}
	answer := func(_, _ string, questions []string, echos []bool) ([]string, error) {
		if len(questions) == 0 {
			return nil, nil
		}
		if len(questions) != 1 || echos[0] {
			return nil, errors.New("the server asks for more than a password")
		}
		return []string{string(password)}, nil
	}
	return append(methods, ssh.Password(string(password)), ssh.KeyboardInteractive(answer))
}
