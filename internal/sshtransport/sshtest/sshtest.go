// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package sshtest starts a real OpenSSH server for a test: its own
// configuration, keys, home directory and port on loopback, as a child of the
// test, which ends it. It needs sshd (Debian: openssh-server); a test without
// it fails.
package sshtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
)

// Server is a running sshd.
type Server struct {
	Dir        string // holds everything of the server; short enough for unix sockets in it
	Port       int
	User       string        // who may log in: the one that the test runs as
	Home       string        // that user's home directory, as sessions see it; empty of files
	KeyFile    string        // private key that is let in
	Key        ssh.Signer    // the same
	HostKey    ssh.PublicKey // of the server
	KnownHosts string        // file with HostKey

	t    testing.TB
	sshd string

	mu  sync.Mutex
	cmd *exec.Cmd // nil while the server is stopped
}

// Start starts a server with an ed25519 host key. The lines come before
// those of the usual configuration, so they win.
func Start(t testing.TB, lines ...string) *Server {
	t.Helper()
	s := &Server{t: t, sshd: find(t)}
	dir, err := os.MkdirTemp("", "sshtest-") //nolint:usetesting // the path of a unix socket in it has 107 bytes at most
	s.check(err)
	t.Cleanup(func() { s.check(os.RemoveAll(dir)) })
	s.Dir, s.Home = dir, filepath.Join(dir, "home")
	s.check(os.Mkdir(s.Home, 0o700))
	current, err := user.Current()
	s.check(err)
	s.User = current.Username
	s.KeyFile = filepath.Join(dir, "id")
	keys := Keys{t}
	s.Key = keys.New(s.KeyFile)
	s.HostKey = keys.New(filepath.Join(dir, "host_key")).PublicKey()
	s.Authorize(s.Key.PublicKey())
	s.start(lines)
	s.KnownHosts = filepath.Join(dir, "known_hosts")
	s.Write(s.KnownHosts, knownhosts.Line([]string{s.Endpoint()}, s.HostKey)+"\n")
	t.Cleanup(s.Stop)
	return s
}

// find returns the path of sshd, which has to be absolute.
func find(t testing.TB) string {
	for _, path := range []string{"/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatal("there is no sshd: install openssh-server")
	return ""
}

func (s *Server) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// Endpoint returns host:port.
func (s *Server) Endpoint() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

// Address returns the server's address with its user.
func (s *Server) Address() sshtransport.Address {
	return sshtransport.Address{User: s.User, Host: "127.0.0.1", Port: s.Port}
}

// URL returns the address as a URL.
func (s *Server) URL() string { return s.Address().String() }

// Config returns a configuration that reaches the server, and that nothing of
// the user who runs the test has a part in.
func (s *Server) Config() sshtransport.Config {
	agent := false
	return sshtransport.Config{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHosts, Agent: &agent}
}

// Host returns the server as a host of a pool of its own, which the test
// closes at its end.
func (s *Server) Host() *sshtransport.Host {
	s.t.Helper()
	return s.HostOf(s.Pool(sshtransport.Options{}), s.Config())
}

// Pool returns a pool that the test closes. Its home directory is the
// server's, and it knows no environment.
func (s *Server) Pool(options sshtransport.Options) *sshtransport.Pool {
	options.Home = s.Home
	if options.Getenv == nil {
		options.Getenv = func(string) string { return "" }
	}
	pool := sshtransport.NewPool(options)
	s.t.Cleanup(func() { pool.Close() })
	return pool
}

// HostOf returns the server as a host of a pool.
func (s *Server) HostOf(pool *sshtransport.Pool, config sshtransport.Config) *sshtransport.Host {
	s.t.Helper()
	host, err := pool.Host(s.Address(), config, "ssh")
	s.check(err)
	return host
}

// Authorize lets a key in, and no other.
func (s *Server) Authorize(key ssh.PublicKey) {
	s.t.Helper()
	s.Write(filepath.Join(s.Dir, "authorized_keys"), string(ssh.MarshalAuthorizedKey(key)))
}

// Write writes a file that only its owner can read.
func (s *Server) Write(file, content string) {
	s.t.Helper()
	s.check(os.WriteFile(file, []byte(content), 0o600))
}

// start writes the configuration and starts the server on a free port.
func (s *Server) start(lines []string) {
	s.t.Helper()
	if os.Getuid() == 0 {
		s.check(os.MkdirAll("/run/sshd", 0o755)) // sshd insists on it
	}
	config := filepath.Join(s.Dir, "sshd_config")
	usual := []string{
		"HostKey " + filepath.Join(s.Dir, "host_key"),
		"AuthorizedKeysFile " + filepath.Join(s.Dir, "authorized_keys"),
		"PidFile none",
		"ListenAddress 127.0.0.1",
		"StrictModes no",
		"UsePAM no",
		"PasswordAuthentication no",
		"PermitRootLogin yes",
		"LogLevel VERBOSE",
		"SetEnv HOME=" + s.Home, // the login shell reads nothing of the user's own
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		s.check(err)
		s.Port = port
		s.Write(config, strings.Join(append(append([]string{fmt.Sprintf("Port %d", port)}, lines...), usual...), "\n")+"\n")
		err = s.run()
		if err == nil {
			return
		}
		// Somebody else may have taken the port since it was free.
		if attempt == 5 || !strings.Contains(s.Log(), "Address already in use") {
			s.t.Fatalf("sshd: %v\n%s", err, s.Log())
		}
	}
}

// run starts the server with its configuration and waits until it listens.
func (s *Server) run() error {
	cmd := exec.CommandContext(context.Background(), s.sshd, "-D", "-f", filepath.Join(s.Dir, "sshd_config"), "-E", s.logFile())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Endpoint())
		if err == nil {
			conn.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.cmd = cmd
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended: %w", err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), cmd.Process.Kill())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func freePort() (int, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) logFile() string { return filepath.Join(s.Dir, "log") }

// Log returns what the server has logged.
func (s *Server) Log() string {
	content, err := os.ReadFile(s.logFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Error(err)
	}
	return string(content)
}

// Logins returns how many connections have authenticated.
func (s *Server) Logins() int { return len(accepted.FindAllString(s.Log(), -1)) }

var accepted = regexp.MustCompile(`Accepted \S+ for `)

// Restart starts a stopped server again, on the same port.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.run(); err != nil {
		s.t.Fatalf("sshd: %v\n%s", err, s.Log())
	}
}
