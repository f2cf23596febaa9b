// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Ending a supervisor, from the side of the client. The file with its name
// belongs to the user that the sandbox runs as, and whoever kills may be
// root: so the process that it names is looked at before it is killed.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
)

// searchAfter is how long the lock may be held by what has no name before the
// holder is searched for.
const searchAfter = time.Second

// Kill ends a supervisor, and with it its sandbox, and returns when both are
// gone.
func Kill(ctx context.Context, dir, id string) error {
	search := time.Now().Add(searchAfter)
	for record.SupervisorAlive(dir) {
		// Whoever holds the lock leaves its name here first of all. Until then
		// it is still being started.
		p, err := Name(dir)
		if err == nil {
			err = killSupervisor(ctx, p, dir, id)
		}
		if err != nil && time.Now().After(search) {
			err = killHolder(ctx, dir, id)
			search = time.Now().Add(searchAfter)
		}
		if ctx.Err() != nil {
			if err != nil {
				return fmt.Errorf("the supervisor does not end: %w", err)
			}
			return fmt.Errorf("the supervisor does not end: %w", ctx.Err())
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

func killSupervisor(ctx context.Context, p record.Process, dir, id string) error {
	return p.Kill(ctx, func(pid int) bool { return isSupervisor(pid, dir, id) })
}

// killHolder kills the supervisor that holds the lock and has no name, or a
// wrong one.
func killHolder(ctx context.Context, dir, id string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !isSupervisor(pid, dir, id) {
			continue
		}
		start, err := record.StartTime(entry.Name())
		if err != nil {
			continue
		}
		return killSupervisor(ctx, record.Process{Pid: pid, Start: start, Boot: record.BootID()}, dir, id)
	}
	return errors.New("its lock is held, and not by a supervisor that can be found")
}

// isSupervisor reports whether a process is the supervisor of a sandbox: its
// command line, its user, and the lock that it holds.
func isSupervisor(pid int, dir, id string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil || !bytes.HasPrefix(line, []byte(Argv0+"\x00"+id+"\x00")) {
		return false
	}
	info, err := os.Lstat(dir)
	if err != nil || !runsAs(proc, info.Sys().(*syscall.Stat_t).Uid) {
		return false
	}
	lock, err := os.Lstat(filepath.Join(dir, record.SupervisorLock))
	if err != nil {
		return false
	}
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return false
	}
	for _, file := range files {
		if open, err := os.Stat(filepath.Join(proc, "fd", file.Name())); err == nil && os.SameFile(open, lock) {
			return true
		}
	}
	return false
}

// runsAs reports whether all of a process's user ids are uid.
func runsAs(proc string, uid uint32) bool {
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		ids, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		fields := strings.Fields(ids)
		for _, field := range fields {
			if field != strconv.FormatUint(uint64(uid), 10) {
				return false
			}
		}
		return len(fields) > 0
	}
	return false
}

// KillStrays kills what is left of a dead sandbox. The kernel ends everything
// with a supervisor, which is the first process of a pid namespace, so there
// is nothing; but what would be left is a process that nobody watches.
func KillStrays(ctx context.Context, dir, id string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	uid := info.Sys().(*syscall.Stat_t).Uid
	is := func(pid int) bool {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil {
			return false
		}
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		return (args[0] == Argv0 || runsc.Dispatched(args[0])) && slices.Contains(args[1:], id) && runsAs(proc, uid)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !is(pid) {
			continue
		}
		start, err := record.StartTime(entry.Name())
		if err != nil {
			continue
		}
		// A record that is held again is a sandbox that lives.
		if record.SupervisorAlive(dir) {
			return nil
		}
		if err := (record.Process{Pid: pid, Start: start, Boot: record.BootID()}).Kill(ctx, is); err != nil && !errors.Is(err, record.ErrOther) {
			return err
		}
	}
	return nil
}
