// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// What a killed creation, snapshot or deletion left half done, and its
// removal. Its maker holds a lock in it, so that the dead are told from the
// living at once.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/cgroup"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// beginGrace is how long a directory may be without its lock: the lock is
	// what is made in it first.
	beginGrace = 10 * time.Second

	newPrefix     = ".new-"
	deletedInfix  = ".deleted-"
	partialSuffix = ".partial"

	// staleGroup is how old a control group is that holds no process and is
	// no sandbox's of this state directory: another's puts one into it at once.
	staleGroup = time.Hour
)

// begin makes a directory that has no name yet and whose lock is held. It
// belongs to the user that sandboxes run as.
func (s store) begin(parent, lockName string) (dir string, lock *os.File, err error) {
	return s.beginFor(s.own, parent, lockName)
}

func (s store) beginFor(own func(dir string) error, parent, lockName string) (dir string, lock *os.File, err error) {
	for try := 0; ; try++ {
		if dir, err = os.MkdirTemp(s.path(parent), newPrefix+"*"); err != nil {
			return "", nil, err
		}
		if err = own(dir); err == nil {
			lock, err = record.Hold(dir, lockName)
		}
		if err == nil {
			return dir, lock, nil
		}
		_ = os.RemoveAll(dir)
		// Someone may look at the lock between its making and its taking.
		if try == 3 || !errors.Is(err, record.ErrHeld) && !errors.Is(err, os.ErrNotExist) {
			return "", nil, err
		}
	}
}

// errLive is half done work whose maker lives.
var errLive = errors.New("it is being made")

// removeDead removes half done work whose maker is gone. What is not there is
// removed already.
func removeDead(path, lockName string) error {
	held, err := record.HoldDead(path, lockName)
	switch {
	case errors.Is(err, record.ErrHeld):
		return errLive
	case errors.Is(err, os.ErrNotExist): // no lock, so no maker
	case err != nil:
		return err
	default:
		defer held.Close()
	}
	return remove(path)
}

// unnamed is a snapshot without its name, whose content is there.
const unnamed failpoint.Point = "local.snapshot.unnamed"

// remove takes a directory's name away before its content, so that what is
// half removed is not found.
func remove(path string) error {
	parent := filepath.Dir(path)
	gone := filepath.Join(parent, "."+strings.TrimPrefix(filepath.Base(path), ".")+deletedInfix+randomText(8))
	if err := os.Rename(path, gone); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := failpoint.Hit(unnamed); err != nil {
		return err
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("what was in %s could not be removed: %w", path, err)
	}
	return record.SyncDir(parent)
}

// sweep removes one entry of a directory if it is half done work of the dead.
// It is best effort: what can't be removed now is tried again.
func (s store) sweep(parent, name, lockName string) {
	path := s.path(parent, name)
	switch {
	case strings.HasPrefix(name, ".") && strings.Contains(name, deletedInfix):
		_ = os.RemoveAll(path)
	case strings.HasSuffix(name, partialSuffix):
		_ = removeDead(path, lockName)
	case strings.HasPrefix(name, newPrefix):
		if _, err := os.Lstat(filepath.Join(path, lockName)); errors.Is(err, os.ErrNotExist) && !older(path, beginGrace) {
			return
		}
		_ = removeDead(path, lockName)
	}
}

// older compares by the file system's clock, not by the backend's.
func older(path string, age time.Duration) bool {
	info, err := os.Lstat(path)
	return err == nil && time.Since(info.ModTime()) >= age
}

// tidy removes all that was left half done, and what the dead left running.
func (e *Extension) tidy(ctx context.Context) {
	s := e.store
	for parent, lockName := range map[string]string{"sandboxes": record.SupervisorLock, "snapshots": record.WriterLock, "bin": record.WriterLock} {
		entries, err := os.ReadDir(s.path(parent))
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if parent == "sandboxes" && sdk.IsSandboxID(entry.Name()) {
				dir := s.sandbox(entry.Name())
				if r, err := record.Read(dir, entry.Name()); err == nil {
					e.settle(ctx, r, dir)
				}
				continue
			}
			s.sweep(parent, entry.Name(), lockName)
		}
	}
	cgroup.Find().RemoveStale(staleGroup)
	s.images().Tidy()
}
