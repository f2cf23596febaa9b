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
	// ownPids is how many of the sandbox's tasks are always ours: the init.
	ownPids = 1
	// helperPids is what helpers need beyond the limit. It is given only while
	// one runs, so that a sandbox at its limit can still be worked with.
	helperPids = 32
)

// boundPids sets the bound, with room beyond it.
func (s *supervisor) boundPids(ctx context.Context, room int64) error {
	bound := "max"
	if s.config.Pids > 0 {
		bound = strconv.FormatInt(s.config.Pids+ownPids+room, 10)
	}
	return s.runsc.Run(ctx, shortCall, "write-control", s.config.ID, "pids", "/"+s.config.Process.Group, "pids.max", bound)
}

// helperRoom counts the helpers that run.
type helperRoom struct {
	mu sync.Mutex
	n  int
}

// enterHelper makes room for a helper in a sandbox that may be at its bound,
// and returns what takes it away after the last one.
func (s *supervisor) enterHelper(ctx context.Context) (leave func()) {
	if s.config.Pids == 0 {
		return func() {}
	}
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	s.helpers.n++
	if s.helpers.n == 1 {
		if err := s.boundPids(ctx, helperPids); err != nil {
			// Then it has to do with what the sandbox leaves it.
			fmt.Fprintln(os.Stderr, "make room for a helper:", err)
		}
	}
	return func() {
		s.helpers.mu.Lock()
		defer s.helpers.mu.Unlock()
		s.helpers.n--
		if s.helpers.n == 0 {
			if err := s.boundPids(context.Background(), 0); err != nil {
				fmt.Fprintln(os.Stderr, "take a helper's room away:", err)
			}
		}
	}
}
