// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints && linux

package crash

// What has to hold after a strike, and in the end.

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// until waits for a condition of the outside world and reports whether it
// came to hold.
func until(within time.Duration, holds func() bool) bool {
	for end := time.Now().Add(within); !holds(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// judge looks at what a strike has left, goes on as a user would, and looks
// again.
func (s *suite) judge(t *testing.T, l *lane, p plan, b *blow, struck bool) {
	t.Helper()
	var left []process
	if !until(overdue, func() bool {
		left = slices.DeleteFunc(l.ours(), func(p process) bool { return p.role == roleSupervisor })
		return len(left) == 0
	}) {
		t.Errorf("programs live on: %+v", left)
	}
	known := s.nothingUnknown(t, l, struck && b.interrupted())

	// Go on.
	tool := filepath.Join(l.bin, "sandboxer")
	r := random(s.seed, p.name()+" after")
	switch r.IntN(3) {
	case 0:
		s.command(t, l, p.verb.command[0])
	case 1:
		for _, args := range [][]string{{"reap"}, {"list"}} {
			if said, err := l.run(t.Context(), tool, args...); err != nil {
				t.Errorf("sandboxer %s: %v\n%s", args[0], err, said)
			}
		}
	}
	s.command(t, l, "destroy")
	s.end(t, l, known)
}

// nothingUnknown checks that everything that the backend holds is in the
// state, or, where that may be, in an open log of the ledger. It returns the
// ids that are known anywhere.
func (s *suite) nothingUnknown(t *testing.T, l *lane, interrupted bool) map[string]bool {
	t.Helper()
	known, err := inState(l.work)
	if err != nil {
		// Terraform was killed while it wrote. A user restores a backup; here
		// the ledger has to do.
		t.Logf("%v", err)
		if err := os.Remove(filepath.Join(l.work, "terraform.tfstate")); err != nil {
			t.Fatal(err)
		}
		known = map[string]bool{}
	}
	state := maps.Clone(known)
	logs, err := chains(l.state)
	if err != nil {
		t.Errorf("the ledger: %v", err)
	}
	open := map[string]bool{}
	for _, c := range logs {
		known[c.id] = true
		open[c.id] = !c.closed()
	}
	held, _, err := l.held()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range held {
		switch {
		case interrupted && !state[o.id]:
			t.Errorf("%s is held and not in the state after an interrupt", o.id)
		case !state[o.id] && !open[o.id]:
			t.Errorf("%s is held, and neither the state nor an open log knows it", o.id)
		}
		known[o.id] = true
	}
	for _, p := range l.ours() {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(known)), func(id string) bool { return strings.Contains(p.line, id) }) {
			t.Errorf("a program of something unknown lives: %s", p.line)
		}
	}
	return known
}

// end waits for the deadline of whatever is left, sweeps, and expects
// nothing.
func (s *suite) end(t *testing.T, l *lane, known map[string]bool) {
	t.Helper()
	s.outlive(t, l, known)
	tool := filepath.Join(l.bin, "sandboxer")
	if said, err := l.run(t.Context(), tool, "reap"); err != nil {
		t.Errorf("reap: %v\n%s", err, said)
	}
	var held []object
	var unfinished, listed []string
	var err error
	// What a kill has left half done is removed by a listing, some of it only
	// when it has been there for a while.
	if !until(overdue, func() bool {
		if listed, err = l.listed(t.Context()); err != nil {
			return true
		}
		held, unfinished, err = l.held()
		return err != nil || len(held)+len(unfinished)+len(listed) == 0
	}) || err != nil {
		t.Errorf("left at the backend: %+v, unfinished %v, listed %v, %v", held, unfinished, listed, err)
	}
	if left := l.ours(); len(left) > 0 {
		t.Errorf("programs live on: %+v", left)
	}
	logs, err := chains(l.state)
	if err != nil {
		t.Errorf("the ledger: %v", err)
	}
	for _, c := range logs {
		known[c.id] = true
		if !c.closed() {
			t.Errorf("the log of %s is open: it ends with %s", c.id, c.last)
		}
	}
	if left := naming(known); len(left) > 0 {
		t.Errorf("processes live on: %+v", left)
	}
	if left := groups(known); len(left) > 0 {
		t.Errorf("control groups are left: %v", left)
	}
	s.foreignAsItWas(t, l)
}

// outlive waits until the deadline of everything that is known has passed,
// and expects that nothing of it lives on.
func (s *suite) outlive(t *testing.T, l *lane, known map[string]bool) {
	t.Helper()
	logs, err := chains(l.state)
	if err != nil {
		t.Errorf("the ledger: %v", err)
	}
	var last time.Time
	ids := map[string]bool{}
	for _, c := range logs {
		if known[c.id] = true; !c.closed() {
			ids[c.id] = true
			last = later(last, c.deadline)
		}
	}
	held, _, err := l.held()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range held {
		ids[o.id] = true
		last = later(last, o.deadline)
	}
	if len(ids) == 0 {
		return
	}
	s.busy.leave()
	time.Sleep(time.Until(last))
	var left []process
	if !until(overdue, func() bool { left = naming(ids); return len(left) == 0 }) {
		t.Errorf("alive %s after the deadline: %+v", overdue, left)
	}
	s.busy.enter()
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// foreignAsItWas checks that nobody has touched what is not ours.
func (s *suite) foreignAsItWas(t *testing.T, l *lane) {
	t.Helper()
	if now := l.foreignContent(t); !maps.Equal(now, l.foreign.content) {
		t.Errorf("what is not ours has changed: %s", difference(l.foreign.content, now))
	}
	for _, name := range l.foreign.names {
		_, a := os.Stat(filepath.Join(l.state, "local", "sandboxes", name))
		_, b := os.Stat(filepath.Join(l.state, "local", "snapshots", name))
		if a != nil && b != nil {
			t.Errorf("%s, which is not ours, is gone", name)
		}
	}
	if len(naming(map[string]bool{l.foreign.sandbox: true})) == 0 {
		t.Error("the sandbox of the other fleet does not live any more")
	}
	if len(processes(func(line, _ string) bool { return line == "sandboxer-supervisor\x00100000\x00" })) == 0 {
		t.Error("a process that is only called like a supervisor was killed")
	}
}

func difference(before, now map[string]string) string {
	var names []string
	for name, text := range before {
		if now[name] != text {
			names = append(names, fmt.Sprintf("%s (%d bytes, now %d)", name, len(text), len(now[name])))
		}
	}
	for name := range now {
		if _, ok := before[name]; !ok {
			names = append(names, name+" is new")
		}
	}
	return strings.Join(names, ", ")
}
