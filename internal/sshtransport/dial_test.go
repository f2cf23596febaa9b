// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtransport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// All callers of a host share one dial, and two hosts of the same name and
// configuration are one.
func TestOneConnectionForAll(t *testing.T) {
	s := sshtest.Start(t)
	pool := s.Pool(sshtransport.Options{})
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			if err := s.HostOf(pool, s.Config()).Connect(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if s.Logins() != 1 {
		t.Errorf("%d connections, want 1", s.Logins())
	}
	// Another way to prove who one is shares nothing.
	other := s.Config()
	other.Password = "x"
	if err := s.HostOf(pool, other).Connect(t.Context()); err != nil || s.Logins() != 2 {
		t.Errorf("%d connections, want 2, %v", s.Logins(), err)
	}
}

// A caller that gives up leaves the dial to the others; when all have, it is
// ended, and the next caller begins anew.
func TestCallersThatGiveUp(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	s.Freeze()
	impatient, giveUp := context.WithCancel(t.Context())
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() { left <- h.Connect(impatient) }()
	go func() { stayed <- h.Connect(t.Context()) }()
	giveUp()
	if err := wait(t, left); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up got %v", err)
	}
	s.Thaw()
	if err := wait(t, stayed); err != nil {
		t.Errorf("who stayed got %v", err)
	}
	h.Close()

	s.Freeze()
	impatient, giveUp = context.WithCancel(t.Context())
	go func() { left <- h.Connect(impatient) }()
	giveUp()
	wait(t, left)
	s.Thaw()
	if err := h.Connect(t.Context()); err != nil {
		t.Error(err)
	}
}

// Many processes that dial at once are all let in, although the server drops
// most of what it has not authenticated yet.
func TestManyDialsUnderMaxStartups(t *testing.T) {
	s := sshtest.Start(t, "MaxStartups 2:50:4")
	var dialling sync.WaitGroup
	for range 16 {
		h := s.Host() // of a pool of its own, as in another process
		dialling.Go(func() {
			if err := h.Connect(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	dialling.Wait()
	if s.Logins() != 16 || !strings.Contains(s.Log(), "past MaxStartups") {
		t.Errorf("%d connections, want 16; some were to be dropped:\n%s", s.Logins(), s.Log())
	}
}

// serveTCP accepts connections and hands them to serve, until the test ends.
func serveTCP(t *testing.T, serve func(net.Conn)) sshtransport.Address {
	t.Helper()
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
				serve(conn)
			})
		}
	})
	return sshtransport.Address{User: "u", Host: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port}
}

// drain reads until the other side closes.
func drain(conn net.Conn) { io.Copy(io.Discard, conn) }

// What is no SSH server, or not a well one, is an error in time, that says how
// far it came.
func TestServersThatAreNone(t *testing.T) {
	closed := serveTCP(t, drain)
	var dials atomic.Int32
	cases := map[string]struct {
		serve func(net.Conn)
		says  string
		dials int32 // zero is not counted
	}{
		"silent":              {drain, "silent: is it an SSH server?", 1},
		"banner, then silent": {func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"); drain(c) }, "while exchanging keys", 1},
		"endless banner": {func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, "hello\r\n"); err != nil {
					return
				}
			}
		}, "exchanging keys", 0},
		"HTTP":              {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }, "closed the connection before authentication", 8},
		"closes":            {func(net.Conn) {}, "MaxStartups", 8},
		"garbage after all": {func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"+strings.Repeat("\xff", 4096)); drain(c) }, "exchanging keys failed", 1},
		"SSH 1":             {func(c net.Conn) { io.WriteString(c, "SSH-1.5-x\r\n"); drain(c) }, "", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dials.Store(0)
			address := serveTCP(t, func(conn net.Conn) {
				dials.Add(1)
				c.serve(conn)
			})
			pauses := clock.NewFake(time.Now())
			pauses.Auto = true
			pool := sshtransport.NewPool(sshtransport.Options{Home: t.TempDir(), Getenv: func(string) string { return "" }, Clock: pauses})
			defer pool.Close()
			timeout := "1s"
			if c.dials > 1 {
				timeout = "5m"
			}
			h, err := pool.Host(address, sshtransport.Config{ConnectTimeout: timeout}, "ssh")
			if err != nil {
				t.Fatal(err)
			}
			connects := make(chan error, 1)
			go func() { connects <- h.Connect(t.Context()) }()
			err = wait(t, connects)
			if !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), fmt.Sprint(address.Port)) {
				t.Errorf("%v", err)
			}
			if c.dials != 0 && dials.Load() != c.dials {
				t.Errorf("%d dials, want %d", dials.Load(), c.dials)
			}
		})
	}
	t.Run("nothing listens", func(t *testing.T) {
		closed.Port = 1
		pool := sshtransport.NewPool(sshtransport.Options{Home: t.TempDir()})
		defer pool.Close()
		h, err := pool.Host(closed, sshtransport.Config{}, "ssh")
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Connect(t.Context()); !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v", err)
		}
	})
	t.Run("no such name", func(t *testing.T) {
		pool := sshtransport.NewPool(sshtransport.Options{Home: t.TempDir()})
		defer pool.Close()
		h, err := pool.Host(sshtransport.Address{User: "u", Host: "no-such-host.invalid"}, sshtransport.Config{}, "ssh")
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Connect(t.Context()); !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), "ssh_config_file") {
			t.Errorf("%v", err)
		}
	})
}

// A server that dies while it authenticates a user is not asked again: it may
// count failures.
func TestNoRetryAfterAuthenticationBegan(t *testing.T) {
	key := sshtest.Keys{T: t}.New(filepath.Join(t.TempDir(), "key"))
	var dials atomic.Int32
	address := serveTCP(t, func(conn net.Conn) {
		dials.Add(1)
		config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			conn.Close()
			return nil, errors.New("gone")
		}}
		config.AddHostKey(key)
		ssh.NewServerConn(conn, config)
	})
	s := sshtest.Start(t)
	pool := s.Pool(sshtransport.Options{})
	h, err := pool.Host(address, sshtransport.Config{HostKey: string(ssh.MarshalAuthorizedKey(key.PublicKey())), KeyFile: s.KeyFile}, "ssh")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Connect(t.Context()); err == nil || dials.Load() != 1 {
		t.Errorf("%d dials, want 1; %v", dials.Load(), err)
	}
}

// Hosts behind jump hosts are reached, verified and shared like any other.
func TestJumpHosts(t *testing.T) {
	first, second, last := sshtest.Start(t), sshtest.Start(t), sshtest.Start(t)
	// All three let the key of the last one in.
	for _, s := range []*sshtest.Server{first, second} {
		s.Authorize(last.Key.PublicKey())
	}
	known := func(servers ...*sshtest.Server) string {
		file := filepath.Join(t.TempDir(), "known_hosts")
		var content string
		for _, s := range servers {
			content += line("[127.0.0.1]:"+fmt.Sprint(s.Port), signerOf{s.HostKey})
		}
		last.Write(file, content)
		return file
	}
	config := last.Config()
	config.KnownHostsFile = known(first, second, last)
	config.ProxyJump = []string{first.URL(), fmt.Sprintf("%s@127.0.0.1:%d", second.User, second.Port)}
	pool := last.Pool(sshtransport.Options{})
	h := last.HostOf(pool, config)
	if out, err := h.Output(t.Context(), "sh", "-c", "echo $SSH_CONNECTION"); err != nil || !strings.HasSuffix(out, fmt.Sprintf(" %d\n", last.Port)) {
		t.Fatalf("%q, %v", out, err)
	}
	// The connection to the jump host serves what goes to it directly, too.
	direct := config
	direct.ProxyJump = nil
	jump, err := pool.Host(first.Address(), direct, "ssh")
	if err != nil {
		t.Fatal(err)
	}
	if err := jump.Connect(t.Context()); err != nil {
		t.Error(err)
	}
	for name, s := range map[string]*sshtest.Server{"first": first, "second": second, "last": last} {
		if s.Logins() != 1 {
			t.Errorf("%d connections to the %s, want 1", s.Logins(), name)
		}
	}

	// A jump host that dies is the end of what goes through it, and is dialled
	// again.
	conn := dialUnix(t, h, listen(t, last, echo))
	first.KillConnections()
	if _, err := io.ReadAll(conn); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a stream through a dead jump host ended with %v", err)
	}
	if err := h.Connect(t.Context()); err != nil {
		t.Error(err)
	}

	// Each is verified, and the error names the one that is not known.
	config.KnownHostsFile = known(first, last)
	var problem *sshtransport.HostKeyError
	err = last.HostOf(last.Pool(sshtransport.Options{}), config).Connect(t.Context())
	if !errors.As(err, &problem) || !strings.Contains(err.Error(), second.Endpoint()) {
		t.Errorf("an unknown jump host: %v", err)
	}

	// One that is frozen is an error in time.
	config.KnownHostsFile, config.ConnectTimeout = known(first, second, last), "1s"
	second.Freeze()
	defer second.Thaw()
	fresh := last.HostOf(last.Pool(sshtransport.Options{}), config)
	connects := make(chan error, 1)
	go func() { connects <- fresh.Connect(t.Context()) }()
	if err := wait(t, connects); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a frozen jump host: %v", err)
	}
}

// signerOf is a key of which only the public half is known.
type signerOf struct{ public ssh.PublicKey }

func (s signerOf) PublicKey() ssh.PublicKey                       { return s.public }
func (s signerOf) Sign(io.Reader, []byte) (*ssh.Signature, error) { return nil, errors.ErrUnsupported }

// A pool that is closed ends what waits, and is of no use any more.
func TestClosedPool(t *testing.T) {
	s := sshtest.Start(t)
	pool := s.Pool(sshtransport.Options{})
	h := s.HostOf(pool, s.Config())
	conn := dialUnix(t, h, listen(t, s, echo))
	reads := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		reads <- err
	}()
	pool.Close()
	if err := wait(t, reads); !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), "closed here") {
		t.Errorf("%v", err)
	}
	if _, err := pool.Host(s.Address(), s.Config(), "ssh"); err == nil {
		t.Error("a closed pool gives hosts")
	}
	s.Freeze()
	pending := s.Pool(sshtransport.Options{})
	frozen := s.HostOf(pending, s.Config())
	go func() { reads <- frozen.Connect(t.Context()) }()
	time.Sleep(20 * time.Millisecond)
	pending.Close()
	if err := wait(t, reads); err == nil {
		t.Error("a dial outlived its pool")
	}
	s.Thaw()
}
