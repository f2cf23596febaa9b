// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

// Ending a command means ending everything that it started: what descends
// from it, and what carries its mark after it has left the tree.

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
)

// kill kills everything that carries a mark.
func kill(args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("no mark is named")
	}
	mark := []byte(guestwire.MarkVariable + "=" + args[0])
	roots := map[int]bool{}
	// What is started while we look is found in the next round, since its
	// parent is stopped by then.
	for pid := range parents() {
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			continue // ended, or of a user that its parent gave it
		}
		for _, variable := range bytes.Split(environ, []byte{0}) {
			if bytes.Equal(variable, mark) && pid != os.Getpid() {
				roots[pid] = true
			}
		}
	}
	killTrees(roots)
	for pid := range roots {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return nil
}

// killTrees kills all descendants of the roots. Everything is stopped before
// anything is killed, so that nothing new appears meanwhile; a stopped process
// makes nothing, so the rounds are few, and their bound is a failsafe.
func killTrees(roots map[int]bool) {
	stopped := map[int]bool{}
	for range 100 {
		found := false
		parent := parents()
		for pid := range parent {
			if pid > 1 && pid != os.Getpid() && !stopped[pid] && descends(pid, roots, parent) {
				stopped[pid], found = true, true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if !found {
			break
		}
	}
	for pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func descends(pid int, roots map[int]bool, parent map[int]int) bool {
	for range 1000 { // the depth of a tree, whatever the table says
		up, ok := parent[pid]
		if !ok || up <= 1 && !roots[up] {
			return false
		}
		if roots[up] {
			return true
		}
		pid = up
	}
	return false
}

// parents reads the process table.
func parents() map[int]int {
	table := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return table
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		// The name is in parentheses and may hold anything.
		text := string(stat)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		if up, err := strconv.Atoi(fields[1]); err == nil {
			table[pid] = up
		}
	}
	return table
}
