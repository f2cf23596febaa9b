// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Conn is a stream to something on a host. Unlike a bare channel of SSH it
// has deadlines, and Close unblocks whoever reads or writes, even when the
// peer is gone silent. A stream that ends because the connection was lost ends
// with an error and never with io.EOF.
type Conn interface {
	net.Conn
	// CloseWrite tells the peer that nothing more will be written.
	CloseWrite() error
}

// DialUnix opens a stream to a unix socket of the host. It needs no shell
// there and does not count as a session. The context bounds the opening only.
func (h *Host) DialUnix(ctx context.Context, path string) (Conn, error) {
	if path == "" || path[0] != '/' || len(path) > 4096 || !allOf(path, isPathByte) {
		return nil, sdk.Invalid("socket", "%q is not an absolute path", clip(path))
	}
	return h.dialStream(ctx, "unix", kindUnix, path)
}

// DialTCP opens a stream to a TCP port as the host sees it; 127.0.0.1 is the
// host itself. The context bounds the opening only.
func (h *Host) DialTCP(ctx context.Context, address string) (Conn, error) {
	if _, port, err := net.SplitHostPort(address); err != nil {
		return nil, sdk.Invalid("address", "%q is not host:port", clip(address))
	} else if _, err := parsePort(port); err != nil {
		return nil, sdk.Invalid("address", "%q: %s", clip(address), err)
	}
	return h.dialStream(ctx, "tcp", kindTCP, address)
}

func (h *Host) dialStream(ctx context.Context, network, kind, where string) (Conn, error) {
	c, err := h.connection(ctx)
	if err != nil {
		return nil, err
	}
	what := "the " + kind + " " + where
	channel, err := open(ctx, c, what, kind, func() (channel, error) {
		conn, err := c.client.Dial(network, where)
		if err != nil {
			return nil, err
		}
		return conn.(channel), nil //nolint:forcetypeassert // the library's stream wraps a channel
	})
	if err != nil {
		return nil, err
	}
	return newStream(c, channel, addr{network, where}, nil), nil
}

// channel is a channel of the SSH protocol: a stream whose two directions end
// separately.
type channel interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// open waits for the peer to open something, as long as the context allows.
// What is opened too late is closed. The wait itself ends with the connection.
func open[T io.Closer](ctx context.Context, c *connection, what, kind string, do func() (T, error)) (T, error) {
	type outcome struct {
		opened T
		err    error
	}
	var none T
	done := make(chan outcome, 1)
	go func() {
		opened, err := do()
		if ctx.Err() != nil && err == nil {
			opened.Close()
			err = ctx.Err()
		}
		done <- outcome{opened, err}
	}()
	select {
	case <-ctx.Done():
		return none, contextError(ctx, c.host.Name(), "opening "+what)
	case o := <-done:
		var answer *ssh.OpenChannelError
		switch {
		case o.err == nil:
			return o.opened, nil
		case ctx.Err() != nil:
			return none, contextError(ctx, c.host.Name(), "opening "+what)
		case errors.As(o.err, &answer):
			return none, refused(c.host.Name(), what, kind, answer)
		}
		return none, c.lost()
	}
}

// stream is a [Conn]. A pipe in memory stands between the caller and each
// direction of the channel: its ends have deadlines and can be closed, which
// those of a channel can't as long as the peer does not answer.
type stream struct {
	conn    *connection
	channel channel
	remote  addr
	// end tells why the peer's direction ended; nil is by itself.
	end func() error

	in, out net.Conn      // our ends of the pipes
	read    chan struct{} // closed when nothing more comes
	written chan struct{} // closed when nothing more goes
	inErr   error         // after read; nil is io.EOF
	outErr  error         // after written
}

// newStream takes over a channel.
func newStream(c *connection, ch channel, remote addr, end func() error) *stream {
	s := &stream{conn: c, channel: ch, remote: remote, end: end, read: make(chan struct{}), written: make(chan struct{})}
	var in, out net.Conn
	s.in, in = net.Pipe()
	s.out, out = net.Pipe()
	go s.receive(in)
	go s.send(out)
	return s
}

// receive moves what the peer sends to the pipe.
func (s *stream) receive(pipe net.Conn) {
	_, err := io.Copy(writer{pipe}, reader{s.channel})
	switch {
	case errors.Is(err, io.ErrClosedPipe): // closed here
		if s.end != nil {
			// A command is not held up by output that nobody wants.
			io.Copy(io.Discard, reader{s.channel}) //nolint:errcheck // nobody is left to tell
		}
	case s.conn.raw.ended() != nil:
		s.inErr = s.conn.lost()
	case err == nil && s.end != nil:
		s.inErr = s.end()
	default:
		s.inErr = err
	}
	close(s.read)
	pipe.Close()
}

// send moves what the caller writes to the channel, and then its end.
func (s *stream) send(pipe net.Conn) {
	_, err := io.Copy(writer{s.channel}, reader{pipe})
	if err == nil {
		err = s.channel.CloseWrite()
	}
	switch {
	case s.conn.raw.ended() != nil:
		s.outErr = s.conn.lost()
	case err != nil && s.end != nil && s.end() != nil:
		s.outErr = s.end()
	case err != nil:
		s.outErr = fmt.Errorf("%s: the other side has closed the stream", s.remote)
	}
	close(s.written)
	pipe.Close()
}

// reader and writer hide the methods by which io.Copy would go around the
// buffer between the two.
type (
	reader struct{ io.Reader }
	writer struct{ io.Writer }
)

// Read implements [net.Conn].
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		<-s.read
		if s.inErr != nil {
			err = s.inErr
		}
	case errors.Is(err, io.ErrClosedPipe):
		err = net.ErrClosed
	}
	return n, err
}

// Write implements [net.Conn].
func (s *stream) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if s.conn.raw.ended() != nil {
		return 0, s.conn.lost() // the pipe would still take the bytes
	}
	n, err := s.out.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = net.ErrClosed
		select {
		case <-s.written:
			if s.outErr != nil {
				err = s.outErr
			}
		default:
		}
	}
	return n, err
}

// CloseWrite implements [Conn].
func (s *stream) CloseWrite() error { return s.out.Close() }

// Close implements [net.Conn]. What was written before is still sent.
func (s *stream) Close() error {
	err := errors.Join(s.in.Close(), s.out.Close())
	go func() {
		<-s.written
		s.channel.Close()
	}()
	return err
}

// LocalAddr implements [net.Conn].
func (s *stream) LocalAddr() net.Addr { return addr{"ssh", s.conn.host.Name()} }

// RemoteAddr implements [net.Conn].
func (s *stream) RemoteAddr() net.Addr { return s.remote }

// SetDeadline implements [net.Conn].
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (s *stream) SetReadDeadline(t time.Time) error { return closed(s.in.SetReadDeadline(t)) }

// SetWriteDeadline implements [net.Conn].
func (s *stream) SetWriteDeadline(t time.Time) error { return closed(s.out.SetWriteDeadline(t)) }

func closed(err error) error {
	if errors.Is(err, io.ErrClosedPipe) {
		return net.ErrClosed
	}
	return err
}

// addr is where a stream leads.
type addr struct{ network, where string }

// Network implements [net.Addr].
func (a addr) Network() string { return a.network }

// String implements [net.Addr].
func (a addr) String() string { return a.where }
