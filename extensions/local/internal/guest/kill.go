// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package guest

// Ending a command means ending everything that it started.

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killTree kills a process and all its descendants, and those that were
// given to init but still are in its session. Everything is stopped before
// anything is killed, so that nothing new appears meanwhile.
//
// Everything that a command started carries its mark in its environment, so
// what has left the tree and the session is found as well, unless it has
// emptied its environment.
func killTree(arg, mark string) error {
	root, err := strconv.Atoi(arg)
	if err != nil || root <= 1 {
		return fmt.Errorf("%q is not a process", arg)
	}
	stopped := map[int]bool{}
	// Each round stops what the last one made; a stopped process makes
	// nothing, so the number of rounds is small. The bound is a failsafe.
	for range 100 {
		found := false
		for pid := range treeOf(root, mark, stopped) {
			if !stopped[pid] {
				stopped[pid], found = true, true
				_ = unix.Kill(pid, unix.SIGSTOP)
			}
		}
		if !found {
			break
		}
	}
	for pid := range stopped {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return nil
}

// process is one line of the process table.
type process struct {
	pid, parent, session int
	name                 string
}

// processes reads the process table, without PID 1 and ourselves.
func processes() (list []process) {
	self := os.Getpid()
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == 1 || pid == self {
			continue
		}
		data, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name is in brackets and may hold anything.
		text := string(data)
		open, end := strings.Index(text, "("), strings.LastIndex(text, ")")
		if open < 0 || end < open {
			continue
		}
		fields := strings.Fields(text[end+1:])
		if len(fields) < 4 {
			continue
		}
		p := process{pid: pid, name: text[open+1 : end]}
		p.parent, _ = strconv.Atoi(fields[1])
		p.session, _ = strconv.Atoi(fields[3])
		list = append(list, p)
	}
	return list
}

// treeOf returns the processes that belong to root or to one already known.
func treeOf(root int, mark string, known map[int]bool) map[int]bool {
	all := processes()
	tree := map[int]bool{root: true}
	for pid := range known {
		tree[pid] = true
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !tree[p.pid] && (tree[p.parent] || p.session == root || mark != "" && marked(p.pid, mark)) {
				tree[p.pid], grown = true, true
			}
		}
	}
	return tree
}

// MarkVariable marks in the environment what a call to exec started.
const MarkVariable = "SANDBOXER_EXEC"

// marked reports whether a process carries a mark; an empty one is any.
func marked(pid int, mark string) bool {
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for variable := range strings.SplitSeq(string(environ), "\x00") {
		if value, ok := strings.CutPrefix(variable, MarkVariable+"="); ok {
			return mark == "" || value == mark
		}
	}
	return false
}

// printStrays names the processes that were not started by PID 1's tree: those
// that a memory snapshot will not bring back.
func printStrays(to io.Writer) error {
	all := processes()
	tree := map[int]bool{1: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !tree[p.pid] && tree[p.parent] {
				tree[p.pid], grown = true, true
			}
		}
	}
	for _, p := range all {
		if tree[p.pid] && !marked(p.pid, "") {
			continue
		}
		name := strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return '?'
			}
			return r
		}, p.name)
		if _, err := fmt.Fprintf(to, "%s (process %d)\n", name, p.pid); err != nil {
			return err
		}
	}
	return nil
}
