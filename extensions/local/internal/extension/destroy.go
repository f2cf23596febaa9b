// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/cgroup"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// killDeadline bounds the wait for a killed supervisor. Killing is one signal
// to the first process of a pid namespace; on a busy machine its many
// processes still need a while.
const killDeadline = 30 * time.Second

// Destroy implements [sdk.Extension]. The record goes last, so that a destroy
// that was interrupted is continued by the next one.
func (e *Extension) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	r, dir, err := e.read(opts.Target)
	recordless := errors.Is(err, errNoRecord)
	if errors.Is(err, sdk.ErrNotFound) && r.ID == "" {
		if _, statErr := os.Lstat(dir); errors.Is(statErr, os.ErrNotExist) {
			return sdk.DestroyResult{}, nil
		}
		recordless = true
	}
	if err != nil && !recordless {
		return sdk.DestroyResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return sdk.DestroyResult{}, err
	}
	// From here on it is one step that is finished even when the caller is
	// interrupted: a half destroyed sandbox helps nobody.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	if recordless {
		// Whoever took the record away has ended it: its supervisor does so when
		// it looks, whatever the fleet was.
		supervisor.Poke(dir)
		return e.finish(ctx, record.Record{ID: opts.Target.ID}, dir)
	}
	r, err = record.Update(dir, opts.Target.ID, func(r *record.Record) error {
		lease, err := sdk.ClaimLease(r.Lease, e.now(), r.Lease.Generation, "destroy", false, r.Lease.Event)
		if err != nil {
			return err
		}
		r.Lease = lease
		if r.Status != sdk.StatusExpired {
			r.Status, r.Reason = sdk.StatusDestroying, "a destroy has begun"
		}
		return nil
	})
	if errors.Is(err, record.ErrGone) {
		return sdk.DestroyResult{Existed: true}, nil // another destroy was faster
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// A full disk is a reason to destroy, not one against it. An extend can't
		// be written either, or finds nothing when it can.
		err = nil
	}
	if err != nil {
		return sdk.DestroyResult{Existed: true}, fmt.Errorf("%s: claim it for destruction: %w", named(opts.Target.ID), err)
	}
	if err := failpoint.Hit(destroyClaimed); err != nil {
		return sdk.DestroyResult{Existed: true}, err
	}
	return e.finish(ctx, r, dir)
}

const (
	destroyClaimed    failpoint.Point = "local.destroy.claimed"
	destroyKilled     failpoint.Point = "local.destroy.killed"
	destroyUngrouped  failpoint.Point = "local.destroy.ungrouped"
	destroyEmptied    failpoint.Point = "local.destroy.emptied"    // all but record and lock is gone
	destroyUnrecorded failpoint.Point = "local.destroy.unrecorded" // the record is gone too; hit again when the lock is
	destroyRemoved    failpoint.Point = "local.destroy.removed"
)

// finish ends what runs and removes what is there.
func (e *Extension) finish(ctx context.Context, r record.Record, dir string) (sdk.DestroyResult, error) {
	result := sdk.DestroyResult{Existed: true}
	if err := supervisor.Kill(ctx, dir, r.ID); err != nil {
		result.Leftovers = append(result.Leftovers, "process "+r.ID+": "+err.Error())
		return result, fmt.Errorf("%s: end it: %w", named(r.ID), err)
	}
	result.Removed = append(result.Removed, "process "+r.ID)
	if err := failpoint.Hit(destroyKilled); err != nil {
		return result, err
	}
	// What its end has left is not part of it.
	if err := e.store.harvest(r, dir); errors.Is(err, errNoSnapshot) {
		result.Removed = append(result.Removed, "snapshot "+r.ExpirySnapshotID+": "+err.Error())
	} else if err != nil {
		result.Leftovers = append(result.Leftovers, "snapshot "+r.ExpirySnapshotID+": "+err.Error())
		return result, fmt.Errorf("%s: keep the snapshot of its end: %w", named(r.ID), err)
	}
	for _, group := range cgroup.Find().Of(r.ID, r.Cgroups) {
		if err := cgroup.Remove(ctx, group); err != nil {
			result.Leftovers = append(result.Leftovers, "cgroup "+group+": "+err.Error())
			return result, fmt.Errorf("%s: remove control group: %w", named(r.ID), err)
		}
		result.Removed = append(result.Removed, "cgroup "+group)
	}
	if err := failpoint.Hit(destroyUngrouped); err != nil {
		return result, err
	}
	if err := removeSandboxDir(dir); err != nil {
		result.Leftovers = append(result.Leftovers, "directory "+dir+": "+err.Error())
		return result, fmt.Errorf("%s: remove its directory: %w", named(r.ID), err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		result.Leftovers = append(result.Leftovers, "directory "+dir)
		return result, fmt.Errorf("%s: its directory is still there", named(r.ID))
	}
	result.Removed = append(result.Removed, "directory "+dir)
	return result, failpoint.Hit(destroyRemoved)
}

// removeSandboxDir removes everything, the record and its lock last.
func removeSandboxDir(dir string) error {
	unlock, err := record.Lock(dir)
	if errors.Is(err, record.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	for try := 0; ; try++ {
		err := emptyAndRemove(dir)
		if err == nil {
			return record.SyncDir(filepath.Dir(dir))
		}
		// Someone who wants the lock makes it again when it is gone before its
		// directory is.
		if !errors.Is(err, unix.ENOTEMPTY) || try == 100 {
			return err
		}
	}
}

func emptyAndRemove(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	last := []string{"record.json", "lock"}
	for _, entry := range entries {
		if slices.Contains(last, entry.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	if err := failpoint.Hit(destroyEmptied); err != nil {
		return err
	}
	for _, name := range last {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := failpoint.Hit(destroyUnrecorded); err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
