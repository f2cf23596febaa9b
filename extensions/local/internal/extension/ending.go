// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// The end of a sandbox, as the client sees it: what the supervisor is told
// about it beforehand, what is shown of it, and the snapshot that it leaves.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/snapshot"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// validateEnd refuses what is no end.
func validateEnd(opts sdk.CreateOptions) error {
	switch opts.OnExpiry {
	case "", sdk.OnExpiryDestroy, sdk.OnExpirySnapshot, sdk.OnExpiryPause:
	default:
		return sdk.Invalid("on_expiry", "%q is none of destroy, snapshot and pause", clip(string(opts.OnExpiry)))
	}
	for at, d := range map[string]time.Duration{"idle_timeout": opts.IdleTimeout, "expiry_snapshot_ttl": opts.ExpirySnapshotTTL, "paused_ttl": opts.PausedTTL} {
		if d < 0 {
			return sdk.Invalid(at, "%s is not longer than zero", d)
		}
	}
	return nil
}

// endOf is what a supervisor has to know about the end of its sandbox.
func endOf(r record.Record) supervisor.End {
	end := supervisor.End{OnExpiry: r.OnExpiry, Idle: r.IdleTimeout, Paused: r.PausedTTL, Keep: r.ExpirySnapshotTTL}
	if r.OnExpiry != sdk.OnExpirySnapshot {
		return end
	}
	id := sdk.ExpirySnapshotID(r.ID)
	identity := r.Identity.Clone()
	identity.ID, identity.Incarnation = id, 1
	end.Snapshot = snapshot.Manifest{
		Format: snapshot.Format, ID: id, Kind: sdk.SnapshotFilesystem, SandboxID: r.ID, Identity: identity, Profile: r.Profile,
		Event: r.Lease.Event, Image: r.Image, ImageEnv: r.ImageEnv, Env: r.Env, Home: r.Home, Host: snapshot.ThisHost(),
	}
	return end
}

// idleExpiresAt returns when a sandbox ends if it is not used before; zero
// when no idle clock runs. It is as fresh as the supervisor's last note of a
// use, so it may be a little early; the supervisor decides.
func idleExpiresAt(r record.Record, dir string, status sdk.Status) time.Time {
	if r.IdleTimeout == 0 || status != sdk.StatusReady {
		return time.Time{}
	}
	used := record.Used(dir)
	if used.Before(r.CreatedAt) {
		used = r.CreatedAt // its supervisor has not come that far
	}
	at, _ := sdk.IdleDeadline(r.Lease, used, r.IdleTimeout)
	return at.UTC()
}

// endReason returns what ended a sandbox, or had it paused.
func endReason(r record.Record, status sdk.Status) sdk.EndReason {
	switch {
	case status == sdk.StatusLost && exceeded(r) != "":
		return sdk.EndLimit
	case status == sdk.StatusLost && r.Status != sdk.StatusLost:
		return sdk.EndSupervisorDied
	case status == sdk.StatusExpired && r.EndReason == "":
		return sdk.EndDeadline
	case status == sdk.StatusDestroying && r.Status != sdk.StatusExpired:
		return ""
	}
	return r.EndReason
}

// pauseGrace is how long after its deadline a sandbox is left to the
// supervisor that has to pause it.
const pauseGrace = 20 * time.Second

// pausing says that a sandbox whose deadline has just passed is about to be
// paused, and has not ended.
func (e *Extension) pausing(r record.Record, dir string) bool {
	return r.OnExpiry == sdk.OnExpiryPause && r.Status == sdk.StatusReady && !r.Lease.Claimed &&
		r.Lease.ExpiresAt.Before(r.Lease.MaxExpiresAt) && e.now().Before(r.Lease.ExpiresAt.Add(pauseGrace)) && record.SupervisorAlive(dir)
}

// ending says that the last snapshot of a sandbox is made, or was.
func ending(r record.Record) bool {
	return r.OnExpiry == sdk.OnExpirySnapshot && r.Status == sdk.StatusPaused && r.EndReason != ""
}

// errNoSnapshot is what lies in the place of a snapshot and is none.
var errNoSnapshot = errors.New("what the sandbox left is no snapshot")

// harvest moves the snapshot of a sandbox's end to the other snapshots, once
// the sandbox is over. Doing it twice is no error. The directory that it comes
// from belongs to the user that sandboxes run as: what is taken over is a
// directory with a manifest about this very snapshot, or nothing.
func (s store) harvest(r record.Record, dir string) error {
	id := sdk.ExpirySnapshotID(r.ID)
	from, to := filepath.Join(dir, supervisor.ExpiryName), s.snapshot(id)
	if r.ExpirySnapshotID != id || record.SupervisorAlive(dir) {
		return nil
	}
	unlock, err := record.Lock(dir)
	if errors.Is(err, record.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("snapshot %s: %w", id, err)
	}
	defer unlock()
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil // it is there already, or was
	case err != nil:
		return fmt.Errorf("snapshot %s: %w", id, err)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is no directory", errNoSnapshot, from)
	}
	m, err := snapshot.Read(from)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoSnapshot, err)
	}
	if m.ID != id || m.SandboxID != r.ID || m.Identity.ID != id || m.Identity.Fleet != r.Identity.Fleet {
		return fmt.Errorf("%w: the manifest in %s is about something else", errNoSnapshot, from)
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("snapshot %s: %w", id, err)
	}
	return errors.Join(record.SyncDir(s.path("snapshots")), record.SyncDir(dir))
}

// harvestAll does so for every sandbox that is over. It is best effort: what
// can't be moved now is tried again, and its record names it.
func (s store) harvestAll() {
	entries, err := os.ReadDir(s.path("sandboxes"))
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !sdk.IsSandboxID(entry.Name()) {
			continue
		}
		dir := s.sandbox(entry.Name())
		if _, err := os.Lstat(filepath.Join(dir, supervisor.ExpiryName)); err != nil {
			continue
		}
		if r, err := record.Read(dir, entry.Name()); err == nil {
			_ = s.harvest(r, dir)
		}
	}
}

// harvestOf does so for the sandbox that a snapshot would be of.
func (s store) harvestOf(snapshotID string) {
	id := "sbx-" + snapshotID[len("snp-"):]
	dir := s.sandbox(id)
	if r, err := record.Read(dir, id); err == nil {
		_ = s.harvest(r, dir)
	}
}
