// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// maxDials bounds the dials for one connection. Under the default
	// MaxStartups of sshd, 10:30:100, each has at least a chance in three.
	maxDials = 8
	// The pauses between dials double, each with jitter.
	dialPauseFirst = 100 * time.Millisecond
	dialPauseMost  = 3 * time.Second
)

// stage is how far a handshake came.
type stage int32

const (
	stageConnect      stage = iota // TCP, or a stream of the jump host
	stageVersion                   // waiting for the first byte of the server
	stageKeyExchange               // host key not verified yet
	stageAuthenticate              // host key verified
)

// String says what the host is doing, for a message.
func (s stage) String() string {
	return [...]string{"connecting", "waiting for the server to say anything", "exchanging keys", "authenticating"}[s]
}

// connect dials, and dials again when the server dropped the connection
// before authentication, which sshd does to new connections when there are
// many (MaxStartups). Nothing has been asked of the host by then.
func (h *Host) connect(ctx context.Context) (*connection, error) {
	pause := dialPauseFirst
	for attempt := 1; ; attempt++ {
		conn, at, err := h.dialOnce(ctx)
		if err == nil {
			return conn, nil
		}
		err = h.explainDial(ctx, at, attempt, err)
		if !dropped(err, at) || attempt == maxDials {
			return nil, err
		}
		// Half of the pause and up to as much again: whoever else was dropped
		// comes back at another time.
		wait := pause/2 + rand.N(pause)
		if h.pool.options.Clock.Sleep(ctx, wait) != nil {
			return nil, err
		}
		pause = min(pause*2, dialPauseMost)
	}
}

// dropped tells whether the server closed the connection before it was asked
// for anything.
func dropped(err error, at stage) bool {
	if at != stageVersion && at != stageKeyExchange {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dialOnce makes one connection. It returns how far it came.
func (h *Host) dialOnce(ctx context.Context) (*connection, stage, error) {
	t := h.target
	verify, err := newVerifier(t)
	if err != nil {
		return nil, stageConnect, err
	}
	ids, err := loadIdentities(ctx, t, h.pool.local.getenv("SSH_AUTH_SOCK"))
	if err != nil {
		return nil, stageConnect, err
	}
	defer ids.close()
	raw, err := h.dialTransport(ctx)
	if err != nil {
		return nil, stageConnect, err
	}
	var verified atomic.Bool
	client, err := handshake(ctx, raw, t, &ssh.ClientConfig{
		User: t.user,
		Auth: ids.methods(t.config.Password),
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			err := verify.check(address, remote, key)
			verified.Store(err == nil)
			return err
		},
		HostKeyAlgorithms: verify.algorithms(),
		ClientVersion:     "SSH-2.0-sandboxer",
	})
	if err == nil {
		return h.newConnection(client, raw), stageAuthenticate, nil
	}
	at := stageVersion
	switch {
	case verified.Load():
		at = stageAuthenticate
		err = refusedUser(err, ids)
	case raw.received.Load():
		at = stageKeyExchange
	}
	return nil, at, err
}

// dialTransport opens what the SSH protocol is spoken on.
func (h *Host) dialTransport(ctx context.Context) (*transport, error) {
	if h.via != nil {
		conn, err := h.via.DialTCP(ctx, h.target.address())
		if err != nil {
			return nil, err
		}
		return &transport{Conn: conn}, nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.target.address())
	if err != nil {
		return nil, err
	}
	return &transport{Conn: conn}, nil
}

// handshake verifies the host and authenticates. The context ends it at any
// point, by closing the connection under it: the library's own timeout covers
// nothing but the TCP connect.
func handshake(ctx context.Context, raw *transport, t *target, config *ssh.ClientConfig) (*ssh.Client, error) {
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	conn, channels, requests, err := ssh.NewClientConn(raw, t.address(), config)
	if !stop() { // the context ended first
		if err == nil {
			conn.Close()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(conn, channels, requests), nil
}

// refusedUser is the error for a user that the server does not let in.
func refusedUser(err error, ids *identities) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "unable to authenticate"):
		return &sdk.Error{Kind: sdk.ErrUnauthenticated, Message: "the server does not let the user in", Err: err, Advice: ids.tried()}
	case strings.Contains(text, "Too many authentication failures"):
		return &sdk.Error{Kind: sdk.ErrUnauthenticated, Message: "the server ended the connection after too many wrong keys", Err: err,
			Advice: "name the right key with key_file and set identities_only; " + ids.tried()}
	case errors.Is(err, io.EOF):
		return err
	}
	return &sdk.Error{Kind: sdk.ErrUnauthenticated, Message: "authentication failed", Err: err, Advice: ids.tried()}
}

// explainDial says who could not be reached, how far it came and why.
func (h *Host) explainDial(ctx context.Context, at stage, attempts int, err error) error {
	if ctx.Err() != nil {
		return h.explainTimeout(ctx, at)
	}
	var typed *sdk.Error
	var name *net.DNSError
	var algorithms *ssh.AlgorithmNegotiationError
	switch {
	case errors.As(err, &typed):
		if typed.Path != "" || h.via != nil && errors.Is(typed, sdk.ErrUnreachable) {
			return typed // it names the attribute, or the jump host
		}
		return &sdk.Error{Kind: typed.Kind, Message: "SSH host " + h.Name(), Err: typed}
	case errors.As(err, &algorithms):
		e := unreachable(h.Name(), err, "the server and sandboxer have no algorithm in common")
		e.Advice = "when a host key is meant: known_hosts or host_key names another kind of key than the server has, or only SHA-1"
		return e
	case errors.As(err, &name):
		e := unreachable(h.Name(), err, "the name can't be resolved")
		if h.target.config.SSHConfigFile == "" {
			e.Advice = "when it is an alias of ~/.ssh/config, set ssh_config_file to that"
		}
		return e
	case dropped(err, at):
		e := unreachable(h.Name(), err, "the server closed the connection before authentication, %d times", attempts)
		e.Advice = "sshd drops new connections when there are many (MaxStartups), and a firewall or fail2ban may; or this is no SSH server"
		return e
	}
	return unreachable(h.Name(), err, "%s failed", at)
}

func (h *Host) explainTimeout(ctx context.Context, at stage) error {
	err := context.Cause(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	doing := at.String()
	e := unreachable(h.Name(), err, "no connection within %s, while %s", h.target.timeout, doing)
	if at == stageVersion {
		e.Advice = fmt.Sprintf("something accepts connections on port %d and is silent: is it an SSH server?", h.target.port)
	}
	return e
}

// transport is what the SSH protocol is spoken on. It remembers what the
// protocol's own errors don't tell: that anything was received at all, and
// that the connection ended, before any stream on it sees its end.
type transport struct {
	net.Conn
	received atomic.Bool
	end      atomic.Pointer[ending]
}

// ending is why a transport ended.
type ending struct{ err error }

// ended returns why the transport ended, nil while it has not.
func (t *transport) ended() error {
	if end := t.end.Load(); end != nil {
		return end.err
	}
	return nil
}

// Read implements [net.Conn].
func (t *transport) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.received.Store(true)
	}
	if err != nil {
		t.end.CompareAndSwap(nil, &ending{err})
	}
	return n, err
}

// Close implements [net.Conn].
func (t *transport) Close() error {
	t.end.CompareAndSwap(nil, &ending{net.ErrClosed})
	return t.Conn.Close()
}
