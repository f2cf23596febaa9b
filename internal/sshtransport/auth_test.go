// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtransport_test

import (
	"crypto/ed25519"
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

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// startAgent serves an agent with keys and returns its socket.
func startAgent(t *testing.T, keys ...any) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, key := range keys {
		if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "agent-") //nolint:usetesting // the path of a unix socket in it has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "agent")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				agent.ServeAgent(ring, conn)
			})
		}
	})
	t.Cleanup(func() { listener.Close(); serving.Wait() })
	return socket
}

func newKeys(t *testing.T, n int) []any {
	t.Helper()
	keys := make([]any, n)
	for i := range keys {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = private
	}
	return keys
}

func publicOf(t *testing.T, private any) ssh.PublicKey {
	t.Helper()
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer.PublicKey()
}

// login connects with a configuration, an agent and files in ~/.ssh.
func login(t *testing.T, s *sshtest.Server, config sshtransport.Config, socket string) error {
	t.Helper()
	pool := s.Pool(sshtransport.Options{Getenv: func(name string) string {
		if name == "SSH_AUTH_SOCK" {
			return socket
		}
		return ""
	}})
	return s.HostOf(pool, config).Connect(t.Context())
}

// The right key is found among many, in the order that was promised, and the
// limit of the server is never hit.
func TestKeysAreTriedInOrder(t *testing.T) {
	s := sshtest.Start(t)
	agentKeys := newKeys(t, 8)
	socket := startAgent(t, agentKeys...)
	no := false
	base := sshtransport.Config{KnownHostsFile: s.KnownHosts}
	named := base
	named.KeyFile = s.KeyFile
	cases := map[string]struct {
		config sshtransport.Config
		right  ssh.PublicKey // what the server lets in
		ok     bool
		says   []string
	}{
		"the named key, before eight of the agent": {named, s.Key.PublicKey(), true, nil},
		"the fifth of the agent":                   {base, publicOf(t, agentKeys[4]), true, nil},
		"the fourth of the agent, after a named one": {
			named, publicOf(t, agentKeys[3]), true, nil},
		"the sixth of the agent": {base, publicOf(t, agentKeys[5]), false,
			[]string{"3 further keys", "identities_only", ssh.FingerprintSHA256(publicOf(t, agentKeys[0]))}},
		"no agent": {sshtransport.Config{KnownHostsFile: s.KnownHosts, Agent: &no}, publicOf(t, agentKeys[0]), false,
			[]string{"no key was offered"}},
		"identities_only": {sshtransport.Config{KnownHostsFile: s.KnownHosts, KeyFile: s.KeyFile, IdentitiesOnly: true}, publicOf(t, agentKeys[0]), false,
			[]string{s.KeyFile}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s.Authorize(c.right)
			err := login(t, s, c.config, socket)
			if c.ok != (err == nil) || !c.ok && !errors.Is(err, sdk.ErrUnauthenticated) {
				t.Fatalf("%v", err)
			}
			for _, word := range append(c.says, "") {
				if err != nil && !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if strings.Contains(s.Log(), "Too many authentication failures") {
				t.Error("the server's limit was hit")
			}
		})
	}
}

// The usual files are tried when none is named; a public key names one of the
// agent; a certificate beside the key is shown.
func TestKeyFiles(t *testing.T) {
	t.Run("usual files", func(t *testing.T) {
		s := sshtest.Start(t)
		if err := os.Mkdir(filepath.Join(s.Home, ".ssh"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.Authorize(sshtest.Keys{T: t}.New(filepath.Join(s.Home, ".ssh", "id_ed25519")).PublicKey())
		if err := login(t, s, sshtransport.Config{KnownHostsFile: s.KnownHosts}, ""); err != nil {
			t.Error(err)
		}
	})
	t.Run("rsa signs with SHA-2", func(t *testing.T) {
		s := sshtest.Start(t, "PubkeyAcceptedAlgorithms rsa-sha2-512,rsa-sha2-256")
		private, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		config := s.Config()
		config.KeyFile = filepath.Join(s.Dir, "rsa")
		s.Authorize(sshtest.Keys{T: t}.Write(config.KeyFile, private).PublicKey())
		if err := login(t, s, config, ""); err != nil {
			t.Error(err)
		}
		no := sshtransport.Config{KnownHostsFile: s.KnownHosts}
		if err := login(t, s, no, startAgent(t, private)); err != nil {
			t.Errorf("by the agent: %v", err)
		}
	})
	t.Run("public key of the agent's", func(t *testing.T) {
		s := sshtest.Start(t)
		keys := newKeys(t, 8)
		s.Authorize(publicOf(t, keys[7]))
		file := filepath.Join(s.Dir, "seventh.pub")
		s.Write(file, string(ssh.MarshalAuthorizedKey(publicOf(t, keys[7]))))
		config := sshtransport.Config{KnownHostsFile: s.KnownHosts, KeyFile: file, IdentitiesOnly: true}
		if err := login(t, s, config, startAgent(t, keys...)); err != nil {
			t.Error(err)
		}
		if err := login(t, s, config, ""); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "the agent does not hold") {
			t.Errorf("without the agent: %v", err)
		}
	})
	t.Run("certificate", func(t *testing.T) {
		dir := t.TempDir()
		authority := sshtest.Keys{T: t}.New(filepath.Join(dir, "ca"))
		s := sshtest.Start(t, "TrustedUserCAKeys "+filepath.Join(dir, "ca.pub"))
		s.Authorize(authority.PublicKey()) // and not the user's
		certificate := &ssh.Certificate{
			Key: s.Key.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{s.User}, ValidBefore: ssh.CertTimeInfinity,
		}
		if err := certificate.SignCert(rand.Reader, authority); err != nil {
			t.Fatal(err)
		}
		s.Write(s.KeyFile+"-cert.pub", string(ssh.MarshalAuthorizedKey(certificate)))
		if err := login(t, s, s.Config(), ""); err != nil {
			t.Error(err)
		}
	})
	t.Run("text of a key", func(t *testing.T) {
		s := sshtest.Start(t)
		content, err := os.ReadFile(s.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		if err := login(t, s, sshtransport.Config{KnownHostsFile: s.KnownHosts, PrivateKey: sdk.Secret(content)}, ""); err != nil {
			t.Error(err)
		}
	})
}

// An encrypted key is opened by the agent, a passphrase or a command, and no
// error repeats what was tried.
func TestEncryptedKeys(t *testing.T) {
	s := sshtest.Start(t)
	key := newKeys(t, 1)[0]
	file := filepath.Join(s.Dir, "encrypted")
	s.Authorize(sshtest.Keys{T: t}.Encrypt(file, key, "right s3cret").PublicKey())
	base := sshtransport.Config{KnownHostsFile: s.KnownHosts, KeyFile: file}
	with := func(change func(*sshtransport.Config)) sshtransport.Config {
		config := base
		change(&config)
		return config
	}
	command := func(argv ...string) sshtransport.Config {
		return with(func(c *sshtransport.Config) { c.PassphraseCommand = argv })
	}
	for name, c := range map[string]struct {
		config sshtransport.Config
		agent  string
		says   string // empty when it works
	}{
		"by the agent":           {base, startAgent(t, key), ""},
		"by a passphrase":        {with(func(c *sshtransport.Config) { c.Passphrase = "right s3cret" }), "", ""},
		"by a command":           {command("printf", "%s\n", "right s3cret"), "", ""},
		"without anything":       {base, "", "ssh-add"},
		"by a wrong passphrase":  {with(func(c *sshtransport.Config) { c.Passphrase = "wrong s3cret" }), "", "does not open the key"},
		"by a failing command":   {command("sh", "-c", "echo wrong s3cret; echo s3cret >&2; exit 4"), "", "exit status 4"},
		"by a silent command":    {command("true"), "", "printed nothing"},
		"by no command":          {command("/no/such/program"), "", "no such file"},
		"by a command that errs": {command("printf", "wrong s3cret"), "", "does not open the key"},
	} {
		t.Run(name, func(t *testing.T) {
			err := login(t, s, c.config, c.agent)
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (!errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "ssh.key_file")):
				t.Errorf("%v", err)
			case err != nil && strings.Contains(err.Error(), "s3cret"):
				t.Errorf("a secret is in %q", err)
			}
		})
	}
}

// An agent that is there and says nothing holds nobody up for long.
func TestSilentAgent(t *testing.T) {
	s := sshtest.Start(t)
	socket := filepath.Join(s.Dir, "agent")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	config := s.Config()
	config.Agent = nil
	if err := login(t, s, config, socket); err != nil {
		t.Errorf("the named key is enough: %v", err)
	}
	config.KeyFile = ""
	if err := login(t, s, config, filepath.Join(s.Dir, "no-agent")); !errors.Is(err, sdk.ErrUnauthenticated) || !strings.Contains(err.Error(), "no-agent") {
		t.Errorf("no agent and no key: %v", err)
	}
}

// A file that is named and can't be used is told before any connection.
func TestUnusableKeyFiles(t *testing.T) {
	s := sshtest.Start(t)
	garbage := filepath.Join(s.Dir, "garbage")
	s.Write(garbage, "s3cret garbage")
	for name, c := range map[string]struct{ file, says string }{
		"missing":     {filepath.Join(s.Dir, "missing"), "no such file"},
		"garbage":     {garbage, "not a private key"},
		"a directory": {s.Dir, "directory"},
	} {
		config := s.Config()
		config.KeyFile = c.file
		err := login(t, s, config, "")
		if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "ssh.key_file") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := strings.Count(s.Log(), "Connection from"); n > 1 { // the one that saw it listen
		t.Errorf("%d connections were made", n)
	}
}

// passwordServer is an SSH server of the library that lets a user in by
// password: sshd would need an account with one.
func passwordServer(t *testing.T, password string, interactive bool) (address sshtransport.Address, hostKey ssh.PublicKey) {
	t.Helper()
	key := sshtest.Keys{T: t}.New(filepath.Join(t.TempDir(), "key"))
	config := &ssh.ServerConfig{MaxAuthTries: 6}
	check := func(given string) (*ssh.Permissions, error) {
		if given != password {
			return nil, errors.New("wrong")
		}
		return nil, nil
	}
	if interactive {
		config.KeyboardInteractiveCallback = func(_ ssh.ConnMetadata, ask ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
			answers, err := ask("", "", []string{"Password: "}, []bool{false})
			if err != nil || len(answers) != 1 {
				return nil, fmt.Errorf("no answer: %w", err)
			}
			return check(answers[0])
		}
	} else {
		config.PasswordCallback = func(_ ssh.ConnMetadata, given []byte) (*ssh.Permissions, error) { return check(string(given)) }
	}
	config.AddHostKey(key)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				server, channels, requests, err := ssh.NewServerConn(conn, config)
				if err != nil {
					return
				}
				go ssh.DiscardRequests(requests)
				go func() {
					for channel := range channels {
						channel.Reject(ssh.UnknownChannelType, "\x1b[31mno\x07 "+channel.ChannelType())
					}
				}()
				server.Wait()
			})
		}
	})
	return sshtransport.Address{User: "u", Host: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port}, key.PublicKey()
}

// A password is used when it is given, by either method, and is in no error.
func TestPassword(t *testing.T) {
	for _, interactive := range []bool{false, true} {
		for _, password := range []string{"right s3cret", "wrong s3cret", ""} {
			t.Run(fmt.Sprintf("interactive %v, %q", interactive, password), func(t *testing.T) {
				address, key := passwordServer(t, "right s3cret", interactive)
				pool := sshtransport.NewPool(sshtransport.Options{Home: t.TempDir(), Getenv: func(string) string { return "" }})
				defer pool.Close()
				host, err := pool.Host(address, sshtransport.Config{HostKey: string(ssh.MarshalAuthorizedKey(key)), Password: sdk.Secret(password)}, "ssh")
				if err != nil {
					t.Fatal(err)
				}
				err = host.Connect(t.Context())
				if password == "right s3cret" {
					if err != nil {
						t.Fatal(err)
					}
					// A server that knows no such channel says so, without its
					// control characters.
					_, err := host.DialUnix(t.Context(), "/x")
					var refused *sshtransport.RefusedError
					if !errors.As(err, &refused) || !strings.Contains(err.Error(), "can't forward to unix sockets") || strings.ContainsAny(err.Error(), "\x1b\x07") {
						t.Errorf("%q", err)
					}
					return
				}
				if !errors.Is(err, sdk.ErrUnauthenticated) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("%v", err)
				}
			})
		}
	}
}
