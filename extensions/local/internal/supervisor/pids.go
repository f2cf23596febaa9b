// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The bound on processes and threads. It is a control group of the sandbox's
// own kernel: there, at the limit, a process can't be started, as on any
// Linux. The host's groups count something else, the runtime's own threads.
// Whoever is root in the sandbox can mount that kernel's groups from a user
// namespace and step round the bound, which measure then sees.

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
)

const (
	// initPids is the init, which is always there.
	initPids = 1
	// helperPids is what helpers need beyond the limit. It is given only while
	// one runs, so that a sandbox at its limit can still be worked with.
	helperPids = 32
	// commandPids is what is ours of each command while it runs: its courier
	// and its shepherd. One that has an input has a thread for that too.
	commandPids = 2
)

// ours is how many of the sandbox's tasks are never the workload's.
func (c Config) ours() int64 {
	if len(c.Process.Command) > 0 {
		return initPids + 1 // and the main process's shepherd
	}
	return initPids
}

// boundPids sets the bound, with room beyond it.
func (s *supervisor) boundPids(ctx context.Context, room int64) error {
	bound := "max"
	if s.config.Pids > 0 {
		bound = strconv.FormatInt(s.config.Pids+s.config.ours()+room, 10)
	}
	return s.runsc.Run(ctx, shortCall, "write-control", s.config.ID, "pids", "/"+s.config.Process.Group, "pids.max", bound)
}

// pidsRoom is what is ours of the tasks, beyond what always is.
type pidsRoom struct {
	mu   sync.Mutex
	room int64
}

func (r *pidsRoom) get() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.room
}

// makeRoom makes room for tasks of ours in a sandbox that may be at its bound,
// and returns what takes it away.
func (s *supervisor) makeRoom(ctx context.Context, tasks int64) (leave func()) {
	if s.config.Pids == 0 {
		return func() {}
	}
	s.addRoom(ctx, tasks)
	return func() { s.addRoom(context.Background(), -tasks) }
}

func (s *supervisor) addRoom(ctx context.Context, tasks int64) {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.room.room += tasks
	if err := s.boundPids(ctx, s.room.room); err != nil {
		// Then it has to do with what the sandbox leaves it.
		fmt.Fprintln(os.Stderr, "make room for tasks of ours:", err)
	}
}
