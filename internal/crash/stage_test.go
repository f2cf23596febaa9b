// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints && linux

package crash

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
)

// hit is one arrival of a process at a point.
type hit struct {
	point failpoint.Point
	nth   int // of this point since the stage was set, from 1
	pid   int
	alive map[string]bool // roles, when the stage notes them
}

// strike is what happens at a hit. It returns what the program gets in place
// of what its act gave; empty is nothing.
type strike struct {
	point failpoint.Point
	nth   int
	// ready reports whether the strike can fall at a hit; a later one of any
	// point is taken when it can't at the chosen one.
	ready func() bool
	act   func(hit) string

	due bool // the chosen hit has come
}

// stage is the suite's end of the failpoints of one lane.
type stage struct {
	path     string
	listener *net.UnixListener

	mu     sync.Mutex
	counts map[failpoint.Point]int // since the stage was set
	trace  []hit
	armed  *strike
	struck *hit
	ever   map[failpoint.Point]bool
	note   func() map[string]bool // which roles live; nil is not to be noted
}

func newStage(t *testing.T, path string) *stage {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	// A supervisor is another user.
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	s := &stage{path: path, listener: listener, counts: map[failpoint.Point]int{}, ever: map[failpoint.Point]bool{}}
	go s.accept()
	t.Cleanup(func() { _ = listener.Close() })
	return s
}

func (s *stage) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			return // closed
		}
		go s.converse(conn)
	}
}

// converse answers one process until it ends.
func (s *stage) converse(conn *net.UnixConn) {
	defer conn.Close()
	pid, err := peer(conn)
	if err != nil {
		return
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		answer := s.arrive(failpoint.Point(lines.Text()), pid)
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return
		}
	}
}

// peer returns the number that the process at the other end has here,
// whatever it has in a namespace of its own.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	return int(credentials.Pid), nil
}

// arrive counts a hit, and strikes when it is the one.
func (s *stage) arrive(point failpoint.Point, pid int) string {
	s.mu.Lock()
	s.counts[point]++
	s.ever[point] = true
	h := hit{point: point, nth: s.counts[point], pid: pid}
	if s.note != nil {
		h.alive = s.note()
	}
	s.trace = append(s.trace, h)
	now := s.armed
	if now != nil {
		now.due = now.due || now.point == point && now.nth == h.nth
		if !now.due || now.ready != nil && !now.ready() {
			now = nil
		} else {
			s.armed, s.struck = nil, &h
		}
	}
	s.mu.Unlock()
	if now == nil {
		return ""
	}
	return strings.ReplaceAll(now.act(h), "\n", " ")
}

// set begins a new count, with a strike or nil.
func (s *stage) set(armed *strike) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts, s.trace, s.armed, s.struck = map[failpoint.Point]int{}, nil, armed, nil
}

// clear ends the count and returns what was hit, and at which hit the strike
// fell.
func (s *stage) clear() (trace []hit, struck *hit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	trace, struck = s.trace, s.struck
	s.counts, s.trace, s.armed, s.struck = map[failpoint.Point]int{}, nil, nil, nil
	return trace, struck
}
