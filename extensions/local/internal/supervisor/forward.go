// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Published ports. The listener was made by the client in the host's network
// namespace and handed to us; each connection is carried into the sandbox
// through runsc's control socket, so nothing of the host's network is changed
// and no privilege is needed.

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// maxForwards bounds the connections of one port that are open at a time.
const maxForwards = 256

func (s *supervisor) forward(listener *net.TCPListener, port int) {
	slots := make(chan struct{}, maxForwards)
	for {
		slots <- struct{}{}
		conn, err := listener.AcceptTCP()
		if err != nil {
			<-slots
			fmt.Fprintln(os.Stderr, "accept on a published port:", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go func() {
			defer func() { <-slots }()
			// A failure is seen by the client, whose connection ends; writing
			// each one down would fill the disk.
			_ = s.carry(conn, port)
		}()
	}
}

func (s *supervisor) carry(outside *net.TCPConn, port int) error {
	defer outside.Close()
	if s.config.Network == "host" {
		return s.carryOverHost(outside, port)
	}
	call := s.newCall()
	path := string(call) + ".sock"
	defer os.Remove(path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := s.runsc.Run(context.Background(), shortCall, "port-forward", "-stream="+path, s.config.ID, strconv.Itoa(port)); err != nil {
		return err
	}
	_ = listener.SetDeadline(time.Now().Add(time.Second)) // it has connected by now
	inside, err := listener.AcceptUnix()
	if err != nil {
		return err
	}
	defer inside.Close()
	s.splice(outside, inside)
	return nil
}

// carryOverHost reaches a server of a sandbox that uses the host's network:
// it listens there, and so are we.
func (s *supervisor) carryOverHost(outside *net.TCPConn, port int) error {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialTCP(context.Background(), "tcp", netip.AddrPort{}, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	s.splice(outside, conn)
	return nil
}

// halfCloser is a connection whose two directions end one by one.
type halfCloser interface {
	io.ReadWriter
	CloseWrite() error
}

// splice copies both ways until both ends have said all they had. What they
// say is use of the sandbox; a connection that says nothing is none.
func (s *supervisor) splice(outside, inside halfCloser) {
	var fromOutside, fromInside io.Reader = outside, inside
	if s.config.End.Idle > 0 {
		// Only then: the kernel copies between bare connections.
		fromOutside, fromInside = watched{outside, &s.activity}, watched{inside, &s.activity}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(inside, fromOutside)
		_ = inside.CloseWrite()
	}()
	_, _ = io.Copy(outside, fromInside)
	_ = outside.CloseWrite()
	<-done
}

// watched is a reader whose bytes are activity.
type watched struct {
	io.Reader
	activity *activity
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.activity.touch()
	}
	return n, err
}
