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
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/snapshot"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// snapshotDeadline bounds a snapshot. It is written at the speed of the disk,
// and no bound of time fits every size, so this is where a stuck one ends.
const snapshotDeadline = 15 * time.Minute

const (
	snapshotBegun     failpoint.Point = "local.snapshot.begun"  // its directory is there, named as unfinished
	snapshotCopied    failpoint.Point = "local.snapshot.copied" // the content, not yet durable
	snapshotSealed    failpoint.Point = "local.snapshot.sealed"
	snapshotDescribed failpoint.Point = "local.snapshot.described" // with its manifest
	snapshotNamed     failpoint.Point = "local.snapshot.named"
)

// Snapshot implements [sdk.Snapshotter]. The source goes on.
func (e *Extension) Snapshot(ctx context.Context, opts sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	if !sdk.IsSnapshotID(opts.SnapshotID) {
		return sdk.SnapshotResult{}, sdk.Invalid("snapshot_id", "%q is not a snapshot id", clip(opts.SnapshotID))
	}
	if opts.Kind != sdk.SnapshotFilesystem && opts.Kind != sdk.SnapshotMemory {
		return sdk.SnapshotResult{}, sdk.Invalid("kind", "%q is neither filesystem nor memory", clip(string(opts.Kind)))
	}
	if opts.ExpiresAt.IsZero() {
		return sdk.SnapshotResult{}, sdk.Invalid("ttl", "there is no snapshot without a retention")
	}
	r, dir, err := e.running(opts.Target)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	if err := e.store.open(); err != nil {
		return sdk.SnapshotResult{}, err
	}
	if r.Image != "" {
		// The sandbox may be gone before its snapshot says what it lies on.
		lies, err := e.store.images().Lookup(r.Image)
		if err != nil {
			return sdk.SnapshotResult{}, fmt.Errorf("%s: its image %s: %w", named(r.ID), r.Image, err)
		}
		defer lies.Close()
	}
	release := func() {}
	if e.maxState > 0 {
		if release, err = e.admit(ctx, "snapshot "+opts.SnapshotID, e.snapshotSize(ctx, dir, opts.Kind)); err != nil {
			return sdk.SnapshotResult{}, err
		}
	}
	defer release() // it is counted when it is written
	partial, lock, err := e.beginSnapshot(opts.SnapshotID)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	defer lock.Close()
	defer os.RemoveAll(partial)
	if err := failpoint.Hit(snapshotBegun); err != nil {
		return sdk.SnapshotResult{}, err
	}
	m, err := e.write(ctx, opts, r, dir, partial)
	if err == nil {
		err = failpoint.Hit(snapshotDescribed)
	}
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	if err := e.nameSnapshot(ctx, partial, opts.SnapshotID); err != nil {
		return sdk.SnapshotResult{}, err
	}
	return sdk.SnapshotResult{Snapshot: e.snapshotOf(m)}, nil
}

// nameSnapshot gives a snapshot that is on disk its name, unless whoever wants
// it has given up meanwhile: he may have looked for it already.
func (e *Extension) nameSnapshot(ctx context.Context, partial, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.Rename(partial, e.store.snapshot(id)); err != nil {
		return fmt.Errorf("snapshot %s: %w", id, err)
	}
	if err := failpoint.Hit(snapshotNamed); err != nil {
		return err
	}
	return record.SyncDir(e.store.path("snapshots"))
}

// beginSnapshot makes the directory that a snapshot is written into, whose
// lock is held for as long as it is.
func (e *Extension) beginSnapshot(id string) (partial string, lock *os.File, err error) {
	if _, err := os.Lstat(e.store.snapshot(id)); err == nil {
		return "", nil, sdk.Errorf(sdk.ErrConflict, "snapshot %s exists already", id)
	}
	partial = e.store.partial(id)
	err = removeDead(partial, record.WriterLock) // of a writer that was killed
	if errors.Is(err, errLive) {
		return "", nil, beingWritten(id)
	}
	if err != nil {
		return "", nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	temp, lock, err := e.store.begin("snapshots", record.WriterLock)
	if err != nil {
		return "", nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	if err := os.Rename(temp, partial); err != nil {
		lock.Close()
		_ = os.RemoveAll(temp)
		if errors.Is(err, os.ErrExist) {
			return "", nil, beingWritten(id)
		}
		return "", nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	return partial, lock, nil
}

func beingWritten(id string) error {
	return &sdk.Error{Kind: sdk.ErrConflict, Message: "snapshot " + id + " is being written", Advice: "wait for it, or end the process that makes it"}
}

// write fills a snapshot's directory.
func (e *Extension) write(ctx context.Context, opts sdk.SnapshotOptions, r record.Record, dir, partial string) (snapshot.Manifest, error) {
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "snapshot", Message: string(opts.Kind) + " of " + r.ID})
	}
	fail := func(err error) (snapshot.Manifest, error) {
		return snapshot.Manifest{}, e.callError(r.ID, dir, string(opts.Kind)+" snapshot", err)
	}
	to, err := os.Open(partial)
	if err != nil {
		return fail(err)
	}
	defer to.Close()
	made, err := supervisor.Checkpoint(ctx, dir, string(opts.Kind), snapshotDeadline, to)
	if err == nil {
		err = failpoint.Hit(snapshotCopied)
	}
	if err != nil {
		return fail(err)
	}
	var lost []string
	if opts.Kind == sdk.SnapshotFilesystem {
		if r.Status == sdk.StatusPaused {
			lost = append(lost, "fractions of seconds in the times of files, and extended attributes that are no text: the sandbox was paused")
		} else if err := e.writeAttributes(ctx, opts.Target, partial); err != nil {
			return fail(err)
		}
	}
	files, err := snapshot.Seal(partial)
	if err == nil {
		err = failpoint.Hit(snapshotSealed)
	}
	if err != nil {
		return fail(err)
	}
	identity := opts.Identity.Clone()
	identity.ID = opts.SnapshotID
	if identity.Fleet == "" {
		identity.Fleet = r.Identity.Fleet
	}
	m := snapshot.Manifest{
		Format: snapshot.Format, ID: opts.SnapshotID, Kind: opts.Kind, SandboxID: r.ID, Identity: identity, Profile: r.Profile,
		CreatedAt: e.now().UTC().Round(0), ExpiresAt: opts.ExpiresAt.UTC().Round(0), Event: opts.Event,
		ContainsSecrets: opts.Kind == sdk.SnapshotMemory && len(r.Secrets) > 0, Lost: lost, Files: files,
		Image: r.Image, ImageEnv: r.ImageEnv, Env: r.Env, Home: r.Home, Host: snapshot.ThisHost(),
		Network: made.Network, Gateway: made.Gateway, Process: made.Process,
	}
	// What counts is what drives the sandbox, which may be older than we are.
	m.Host.GVisor, m.Host.Init = r.GVisor, made.Init
	if opts.Kind == sdk.SnapshotMemory {
		m.Spec, m.Names = made.Spec, made.Names
	}
	if err := snapshot.Write(partial, m); err != nil {
		return fail(err)
	}
	return m, nil
}

// GetSnapshot implements [sdk.Snapshotter].
func (e *Extension) GetSnapshot(_ context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	m, _, err := e.readSnapshot(opts.SnapshotID, opts.Fleet)
	if err != nil {
		return sdk.GetSnapshotResult{}, err
	}
	return sdk.GetSnapshotResult{Snapshot: e.snapshotOf(m)}, nil
}

// ListSnapshots implements [sdk.Snapshotter]. On the way it removes what the
// dead left half done.
func (e *Extension) ListSnapshots(ctx context.Context, opts sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	fleet, err := e.fleetOf(opts.Fleet)
	if err != nil {
		return sdk.ListSnapshotsResult{}, err
	}
	e.store.harvestAll()
	entries, err := os.ReadDir(e.store.path("snapshots"))
	if errors.Is(err, os.ErrNotExist) {
		return sdk.ListSnapshotsResult{}, nil
	}
	if err != nil {
		return sdk.ListSnapshotsResult{}, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "the state directory can't be read", Err: err}
	}
	var result sdk.ListSnapshotsResult
	var broken []string
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return sdk.ListSnapshotsResult{}, err
		}
		if !sdk.IsSnapshotID(entry.Name()) {
			e.store.sweep("snapshots", entry.Name(), record.WriterLock)
			continue
		}
		m, err := snapshot.Read(e.store.snapshot(entry.Name()))
		switch {
		case errors.Is(err, snapshot.ErrGone):
		case err != nil:
			broken = append(broken, entry.Name()+": "+err.Error())
		case m.Identity.Fleet == fleet:
			result.Snapshots = append(result.Snapshots, e.snapshotOf(m))
		}
	}
	if len(broken) > 0 {
		result.Incomplete = clipAt("manifests that can't be read: "+strings.Join(broken, "; "), 2000)
	}
	return result, nil
}

// ExtendSnapshot implements [sdk.Snapshotter].
func (e *Extension) ExtendSnapshot(_ context.Context, opts sdk.ExtendSnapshotOptions) (sdk.ExtendSnapshotResult, error) {
	_, dir, err := e.readSnapshot(opts.SnapshotID, opts.Fleet)
	if err != nil {
		return sdk.ExtendSnapshotResult{}, err
	}
	unlock, err := record.Lock(dir)
	if err != nil {
		return sdk.ExtendSnapshotResult{}, err
	}
	defer unlock()
	m, err := snapshot.Read(dir)
	if errors.Is(err, snapshot.ErrGone) {
		return sdk.ExtendSnapshotResult{}, sdk.Errorf(sdk.ErrNotFound, "snapshot %s was deleted meanwhile", opts.SnapshotID)
	}
	if err != nil {
		return sdk.ExtendSnapshotResult{}, err
	}
	if opts.ExpiresAt.After(m.ExpiresAt) {
		m.ExpiresAt = opts.ExpiresAt.UTC().Round(0)
		if err := snapshot.Write(dir, m); err != nil {
			return sdk.ExtendSnapshotResult{}, err
		}
	}
	return sdk.ExtendSnapshotResult{Snapshot: e.snapshotOf(m)}, nil
}

// DeleteSnapshot implements [sdk.Snapshotter]. Sandboxes that were restored
// from it hold the files open and go on.
func (e *Extension) DeleteSnapshot(_ context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	m, dir, err := e.readSnapshot(opts.SnapshotID, opts.Fleet)
	if errors.Is(err, sdk.ErrNotFound) && m.ID == "" {
		return sdk.DeleteSnapshotResult{}, nil
	}
	if errors.Is(err, errUnfinished) {
		err := removeDead(e.store.partial(opts.SnapshotID), record.WriterLock)
		if errors.Is(err, errLive) {
			err = beingWritten(opts.SnapshotID)
		}
		if err != nil {
			err = fmt.Errorf("snapshot %s: %w", opts.SnapshotID, err)
		}
		return sdk.DeleteSnapshotResult{Existed: true}, err
	}
	if err != nil {
		return sdk.DeleteSnapshotResult{}, err
	}
	unlock, err := record.Lock(dir)
	if errors.Is(err, record.ErrGone) {
		return sdk.DeleteSnapshotResult{Existed: true}, nil
	}
	if err != nil {
		return sdk.DeleteSnapshotResult{}, err
	}
	defer unlock()
	if err := remove(dir); err != nil {
		return sdk.DeleteSnapshotResult{Existed: true}, fmt.Errorf("snapshot %s: %w", opts.SnapshotID, err)
	}
	return sdk.DeleteSnapshotResult{Existed: true}, nil
}

// errUnfinished is a snapshot whose writer died.
var errUnfinished = errors.New("its writer is gone")

func (e *Extension) readSnapshot(id, fleet string) (snapshot.Manifest, string, error) {
	fleet, err := e.fleetOf(fleet)
	if err != nil {
		return snapshot.Manifest{}, "", err
	}
	if !sdk.IsSnapshotID(id) {
		return snapshot.Manifest{}, "", sdk.Invalid("snapshot_id", "%q is not a snapshot id", clip(id))
	}
	dir := e.store.snapshot(id)
	m, err := snapshot.Read(dir)
	if errors.Is(err, snapshot.ErrGone) {
		e.store.harvestOf(id)
		partial := e.store.partial(id)
		if _, statErr := os.Lstat(partial); statErr == nil {
			if record.Held(partial, record.WriterLock) {
				return m, dir, beingWritten(id)
			}
			return m, dir, &sdk.Error{Kind: sdk.ErrConflict, Message: "snapshot " + id + " was not finished", Advice: "delete it", Err: errUnfinished}
		}
		m, err = snapshot.Read(dir) // it may have got its name between the two looks
	}
	if errors.Is(err, snapshot.ErrGone) {
		return m, dir, sdk.Errorf(sdk.ErrNotFound, "snapshot %s is not in %s", id, filepath.Dir(e.store.root))
	}
	if err != nil {
		return m, dir, fmt.Errorf("snapshot %s in %s can't be read: %w (use the sandboxer that wrote it; a damaged one is removed with its directory)", id, dir, err)
	}
	if m.Identity.Fleet != fleet {
		return m, dir, sdk.Errorf(sdk.ErrNotFound, "snapshot %s is not of fleet %q", id, clip(fleet))
	}
	return m, dir, nil
}

func (e *Extension) snapshotOf(m snapshot.Manifest) sdk.Snapshot {
	return sdk.Snapshot{
		ID: m.ID, Ref: e.store.ref(m.ID), SandboxID: m.SandboxID, Kind: m.Kind, Identity: m.Identity.Clone(), CreatedAt: m.CreatedAt,
		ExpiresAt: m.ExpiresAt, Size: m.Size(), Digest: m.Digest(), ContainsSecrets: m.ContainsSecrets, Profile: m.Profile, Lost: m.Lost,
	}
}
