// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtransport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// listen serves a unix socket below the server's directory.
func listen(t *testing.T, s *sshtest.Server, serve func(*net.UnixConn)) string {
	t.Helper()
	path := filepath.Join(s.Dir, "socket")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				serve(conn.(*net.UnixConn))
			})
		}
	})
	return path
}

// echo sends back what it receives, and then its end.
func echo(conn *net.UnixConn) { io.Copy(conn, conn) }

func dialUnix(t *testing.T, h *sshtransport.Host, path string) sshtransport.Conn {
	t.Helper()
	conn, err := h.DialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// A stream keeps the contract of net.Conn, deadlines included.
func TestStreamIsANetConn(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		path := filepath.Join(s.Dir, "conn")
		listener, err := net.Listen("unix", path)
		if err != nil {
			return nil, nil, nil, err
		}
		defer listener.Close()
		if c1, err = h.DialUnix(context.Background(), path); err != nil {
			return nil, nil, nil, err
		}
		if c2, err = listener.Accept(); err != nil {
			return nil, nil, nil, err
		}
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}

func TestStreamHalfClose(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	conn := dialUnix(t, h, listen(t, s, echo))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	go func() {
		conn.Write(sent)
		conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes came back of %d, %v", len(got), len(sent), err)
	}
	if _, err := conn.Write([]byte("x")); err == nil {
		t.Error("a write after CloseWrite succeeded")
	}
}

func TestTCPStream(t *testing.T) {
	s := sshtest.Start(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			io.WriteString(conn, "hello")
			conn.Close()
		}
	}()
	conn, err := s.Host().DialTCP(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); string(got) != "hello" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

// Fifty streams at once need one connection and no session.
func TestFiftyStreamsOnOneConnection(t *testing.T) {
	for name, lines := range map[string][]string{"stock": nil, "no sessions": {"MaxSessions 0"}} {
		t.Run(name, func(t *testing.T) {
			s := sshtest.Start(t, lines...)
			h := s.Host()
			path := listen(t, s, echo)
			var conns []sshtransport.Conn
			var mu sync.Mutex
			var opening sync.WaitGroup
			for range 50 {
				opening.Go(func() {
					conn, err := h.DialUnix(t.Context(), path)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					conns = append(conns, conn)
				})
			}
			opening.Wait()
			for _, conn := range conns { // all open
				if _, err := io.WriteString(conn, "ping"); err != nil {
					t.Error(err)
				}
			}
			for _, conn := range conns {
				conn.CloseWrite()
				if got, err := io.ReadAll(conn); string(got) != "ping" || err != nil {
					t.Errorf("read %q, %v", got, err)
				}
				conn.Close()
			}
			if len(conns) != 50 || s.Logins() != 1 {
				t.Errorf("%d streams on %d connections, want 50 on 1", len(conns), s.Logins())
			}
		})
	}
}

// Every way in which a server can refuse a stream is told as what it may be.
func TestRefusedStreams(t *testing.T) {
	cases := map[string]struct {
		lines []string
		reach bool // whether the socket is there
	}{
		"no such socket":                 {nil, false},
		"AllowStreamLocalForwarding no":  {[]string{"AllowStreamLocalForwarding no"}, true},
		"AllowTcpForwarding no, as well": {[]string{"AllowTcpForwarding no"}, true},
		"DisableForwarding yes":          {[]string{"DisableForwarding yes"}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := sshtest.Start(t, c.lines...)
			h := s.Host()
			path := filepath.Join(s.Dir, "nothing")
			if c.reach {
				path = listen(t, s, echo)
			}
			_, err := h.DialUnix(t.Context(), path)
			var refused *sshtransport.RefusedError
			if !errors.Is(err, sdk.ErrUnreachable) || !errors.As(err, &refused) {
				t.Fatalf("%v is no refusal", err)
			}
			for _, word := range []string{path, s.Endpoint(), "no such socket", "AllowStreamLocalForwarding"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %q", err, word)
				}
			}
			// The connection is well: a command still runs.
			if out, err := h.Output(t.Context(), "echo", "well"); out != "well\n" || err != nil {
				t.Errorf("%q, %v", out, err)
			}
			if s.Logins() != 1 {
				t.Errorf("%d connections, want 1", s.Logins())
			}
		})
	}
}

// A peer that is frozen holds up nobody: closing, deadlines and contexts
// unblock whoever waits.
func TestFrozenPeerUnblocks(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	path := listen(t, s, echo)
	closed, late := dialUnix(t, h, path), dialUnix(t, h, path)
	s.Freeze()
	defer s.Thaw()

	reads := make(chan error, 1)
	go func() {
		_, err := closed.Read(make([]byte, 1))
		reads <- err
	}()
	closed.Close()
	if err := wait(t, reads); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read of a closed stream: %v", err)
	}

	late.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	go func() {
		_, err := late.Read(make([]byte, 1))
		reads <- err
	}()
	if err := wait(t, reads); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read past its deadline: %v", err)
	}

	for name, call := range map[string]func(context.Context) error{
		"DialUnix":    func(ctx context.Context) error { _, err := h.DialUnix(ctx, path); return err },
		"DialTCP":     func(ctx context.Context) error { _, err := h.DialTCP(ctx, "127.0.0.1:1"); return err },
		"DialCommand": func(ctx context.Context) error { _, err := h.DialCommand(ctx, "cat"); return err },
		"Exec": func(ctx context.Context) error {
			_, err := h.Exec(ctx, sshtransport.ExecOptions{Command: []string{"true"}})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		go func() { reads <- call(ctx) }()
		if err := wait(t, reads); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, sdk.ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// wait returns what a channel gives, and fails the test when it gives
// nothing: the test's own deadline would not say what hangs.
func wait[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs")
		panic("unreachable")
	}
}

// A keepalive that stays without an answer ends the connection, and with it
// everything that waits on it. The next use dials again.
func TestKeepaliveEndsAFrozenConnection(t *testing.T) {
	s := sshtest.Start(t)
	h := s.HostOf(s.Pool(sshtransport.Options{Keepalive: 50 * time.Millisecond}), s.Config())
	path := listen(t, s, echo)
	conn := dialUnix(t, h, path)
	s.Freeze()
	reads := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		reads <- err
	}()
	if err := wait(t, reads); !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("a read on a lost connection: %v", err)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a write on a lost connection: %v", err)
	}
	s.Thaw()
	dialUnix(t, h, path)
	if s.Logins() != 2 {
		t.Errorf("%d connections, want 2", s.Logins())
	}
}

// A peer that answers keeps its connection, however long nothing happens.
func TestKeepaliveKeepsAHealthyConnection(t *testing.T) {
	s := sshtest.Start(t)
	h := s.HostOf(s.Pool(sshtransport.Options{Keepalive: 400 * time.Millisecond}), s.Config())
	conn := dialUnix(t, h, listen(t, s, echo))
	for range 20 {
		time.Sleep(100 * time.Millisecond)
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// A killed server is an error and never the end of the data; after a restart
// the next use dials again.
func TestKilledAndRestarted(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	path := listen(t, s, echo)
	conn := dialUnix(t, h, path)
	runs := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		_, err := h.Exec(t.Context(), sshtransport.ExecOptions{Command: []string{"sh", "-c", "echo; sleep 60"}, Stdout: signalWriter(started)})
		runs <- err
	}()
	wait(t, started)
	s.Stop()
	if _, err := io.ReadAll(conn); !errors.Is(err, sdk.ErrUnreachable) || errors.Is(err, io.EOF) {
		t.Errorf("a stream of a killed server ended with %v", err) // many readers take what wraps io.EOF for a good end
	}
	if err := wait(t, runs); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a command of a killed server ended with %v", err)
	}
	if _, err := h.DialUnix(t.Context(), path); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a server that is down: %v", err)
	}
	s.Restart()
	dialUnix(t, h, path)
}

// signalWriter is a writer that closes a channel at the first write.
func signalWriter(written chan struct{}) io.Writer {
	var once sync.Once
	return writerFunc(func(p []byte) (int, error) {
		once.Do(func() { close(written) })
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
