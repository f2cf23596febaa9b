// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package record

// Processes, named so that a pid that was used again is never mistaken.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BootID returns the kernel's id of this boot.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// StartTime returns a process's start time as in field 22 of its stat.
func StartTime(pid string) (string, error) {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", err
	}
	// The name in field 2 may hold anything, so count from its last bracket.
	_, rest, ok := cutLast(string(data), ")")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return "", fmt.Errorf("/proc/%s/stat has an unknown form", pid)
	}
	return fields[19], nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// ErrOther is returned for a process that is not the one it is said to be.
var ErrOther = errors.New("it is another process")

// Kill kills the process and waits until it is gone. A process that is not
// there any more is gone. One whose pid belongs to another by now, or that is
// not what it is said to be, is left alone: [ErrOther].
func (p Process) Kill(ctx context.Context, is func(pid int) bool) error {
	if p.Pid <= 1 || p.Boot != BootID() {
		return ErrOther
	}
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.Pid, err)
	}
	defer unix.Close(fd)
	// The descriptor pins the process, so what is read now is about it.
	start, err := StartTime(fmt.Sprint(p.Pid))
	if err != nil || start != p.Start || !is(p.Pid) {
		return ErrOther
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.Pid, err)
	}
	for {
		wait := 100 * time.Millisecond
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait.Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("process %d did not end: %w", p.Pid, ctx.Err())
		}
	}
}
