// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package guest

// Ending a command means ending everything that it started.

import (
	"fmt"
	"os"
	"slices"
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
		end := strings.LastIndex(text, ")")
		if end < 0 {
			continue
		}
		fields := strings.Fields(text[end+1:])
		if len(fields) < 4 {
			continue
		}
		p := process{pid: pid}
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

// marked reports whether a process carries a mark.
func marked(pid int, mark string) bool {
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && slices.Contains(strings.Split(string(environ), "\x00"), MarkVariable+"="+mark)
}
