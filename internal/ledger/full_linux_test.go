// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// fillUp appends until the disk refuses, and checks that the log is then what
// it was before, and goes on once there is room.
func fillUp(l *Ledger, id string, full error, makeRoom func() error) error {
	ctx := context.Background()
	var last Record
	for {
		_, after, err := l.Append(ctx, id, always(Event{Type: Extended, Message: strings.Repeat("m", 900)}))
		if err != nil {
			if !errors.Is(err, full) {
				return fmt.Errorf("got %w, want %w", err, full)
			}
			break
		}
		last = after
	}
	if !last.Known() {
		return errors.New("nothing could be appended at all")
	}
	if r, err := l.Get(ctx, id); err != nil || r.Hash != last.Hash {
		return fmt.Errorf("after the refusal: %+v, %w", r, err)
	}
	if content, err := os.ReadFile(l.logPath(id)); err != nil || !strings.HasSuffix(string(content), "\n") {
		return fmt.Errorf("half a line stayed (%w)", err)
	}
	if err := makeRoom(); err != nil {
		return err
	}
	if _, r, err := l.Append(ctx, id, always(Event{Type: Destroyed})); err != nil || r.Sequence != last.Sequence+1 {
		return fmt.Errorf("with room again: %+v, %w", r, err)
	}
	return nil
}

// With a file size limit a write comes back short, as on a full disk; it
// needs no privilege.
func TestAShortWriteLeavesTheLogValid(t *testing.T) {
	c := helper(t, "limited", t.TempDir(), sandbox.NewID(start))
	c.Stdout = os.Stdout
	if err := c.Run(); err != nil {
		t.Error(err)
	}
}

func appendUpToALimit(dir, id string) error {
	var unlimited unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &unlimited); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 10_000, Max: unlimited.Max}); err != nil {
		return err
	}
	return fillUp(New(dir, clock.System{}), id, syscall.EFBIG, func() error {
		return unix.Setrlimit(unix.RLIMIT_FSIZE, &unlimited)
	})
}

// A full file system, where this user may mount one; elsewhere the test above
// has to do.
func TestAFullDiskLeavesTheLogValid(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=96k"); err != nil {
		t.Logf("no file system of its own: %s", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 16<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	l := New(filepath.Join(dir, "ledger"), clock.System{})
	makeRoom := func() error {
		// A new log does not fit either, and must leave nothing behind.
		id := sandbox.NewID(start)
		if _, _, err := l.Append(t.Context(), id, always(Event{Type: Intended})); !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("a new log on a full disk: %w", err)
		}
		if r, err := l.Get(t.Context(), id); err != nil || r.Known() {
			return fmt.Errorf("a new log on a full disk left %+v, %w", r, err)
		}
		return os.Remove(ballast)
	}
	if err := fillUp(l, sandbox.NewID(start), syscall.ENOSPC, makeRoom); err != nil {
		t.Error(err)
	}
}
