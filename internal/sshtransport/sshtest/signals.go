// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Freeze stops every process of the server, so that it keeps its connections
// and answers nothing. What runs in its sessions runs on.
func (s *Server) Freeze() {
	s.t.Helper()
	s.freeze(s.processes()[0])
}

// freeze stops a process and its descendants and returns them. A process that
// is stopped has no more children, so none is missed that comes just now.
func (s *Server) freeze(root int) []int {
	s.t.Helper()
	stopped := map[int]bool{}
	for {
		all := descendants(root)
		fresh := slices.DeleteFunc(slices.Clone(all), func(pid int) bool { return stopped[pid] })
		if len(fresh) == 0 {
			return all
		}
		s.signal(fresh, syscall.SIGSTOP)
		for _, pid := range fresh {
			waitStopped(pid)
			stopped[pid] = true
		}
	}
}

// waitStopped waits until a process is stopped, or is no more.
func waitStopped(pid int) {
	for {
		process, ok := stat(pid)
		if !ok || strings.Contains("TtZX", process.state) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Thaw continues what Freeze stopped.
func (s *Server) Thaw() {
	s.t.Helper()
	s.signal(s.processes(), syscall.SIGCONT)
}

// Stop kills the server and its connections. What runs in its sessions is
// not killed.
func (s *Server) Stop() {
	s.t.Helper()
	s.mu.Lock()
	cmd := s.cmd
	s.cmd = nil
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	s.signal(s.freeze(cmd.Process.Pid), syscall.SIGKILL)
	for exists(cmd.Process.Pid) {
		time.Sleep(time.Millisecond) // until the goroutine of run has reaped it
	}
}

// KillConnections kills the processes behind the connections. The server
// itself goes on.
func (s *Server) KillConnections() {
	s.t.Helper()
	s.signal(s.processes()[1:], syscall.SIGKILL)
}

// processes returns the processes of the server, the listening one first.
func (s *Server) processes() []int {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatal("the server does not run")
	}
	return descendants(s.cmd.Process.Pid)
}

func (s *Server) signal(pids []int, signal syscall.Signal) {
	s.t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil && err != syscall.ESRCH {
			s.t.Errorf("kill -%d %d: %v", signal, pid, err)
		}
	}
}

// descendants returns a process and those below it that are sshd too.
func descendants(root int) []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []int{root}
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if process, ok := stat(pid); ok && strings.HasPrefix(process.name, "sshd") {
			children[process.parent] = append(children[process.parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// process is what /proc tells of one.
type process struct {
	name   string
	state  string // one letter
	parent int
}

// stat returns a process; ok is false where there is none.
func stat(pid int) (p process, ok bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, false
	}
	text := string(content)
	begin, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if begin < 0 || end < begin {
		return p, false
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 2 {
		return p, false
	}
	parent, err := strconv.Atoi(fields[1])
	return process{name: text[begin+1 : end], state: fields[0], parent: parent}, err == nil
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }
