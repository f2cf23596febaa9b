// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// Filesystem snapshots: images of the vendor's, which end at their retention by
// themselves and whose retention nothing prolongs.

import (
	"context"
	"errors"
	"fmt"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// lost is what a restore does not bring back.
const lost = "processes and memory, and what is on volumes: a filesystem snapshot is all there is"

// Snapshot implements [sdk.Snapshotter].
func (e *Extension) Snapshot(ctx context.Context, opts sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	if opts.Kind != sdk.SnapshotFilesystem {
		found := capabilities().Of(sdk.FeatureMemorySnapshot)
		return sdk.SnapshotResult{}, sdk.Unsupported("kind", "a %s snapshot is unsupported by Modal: %s", opts.Kind, found.Reason)
	}
	if !sdk.IsSnapshotID(opts.SnapshotID) {
		return sdk.SnapshotResult{}, sdk.Invalid("id", "%.80q is not a snapshot id", opts.SnapshotID)
	}
	f, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	if _, err := e.records.get(opts.SnapshotID, opts.Identity.Fleet); err == nil {
		return sdk.SnapshotResult{}, sdk.Conflict(f.lease, "snapshot %s exists", opts.SnapshotID)
	}
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "snapshot", Message: "Modal makes an image of " + f.vendor.ref})
	}
	created := e.now().UTC()
	image, err := e.capture(ctx, f.vendor.ref, opts.ExpiresAt, f.object.EndsAt)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	kept := record{Version: recordVersion, Snapshot: sdk.Snapshot{
		ID: opts.SnapshotID, Ref: image, SandboxID: opts.Target.ID, Kind: sdk.SnapshotFilesystem, Identity: opts.Identity, CreatedAt: created,
		ExpiresAt: opts.ExpiresAt.UTC(), ContainsSecrets: f.object.Secrets, Profile: f.object.Profile, Lost: []string{lost},
	}}
	if err := e.records.put(kept); err != nil {
		return sdk.SnapshotResult{}, errors.Join(err, e.client.deleteImage(context.WithoutCancel(ctx), image))
	}
	return sdk.SnapshotResult{Snapshot: kept.Snapshot}, nil
}

// capture makes an image of a sandbox that is kept until a time. The lifetime of
// the sandbox, which ends at a time as well, has to last for it.
func (e *Extension) capture(ctx context.Context, ref string, until, ends time.Time) (string, error) {
	now := e.now()
	ttl := until.Sub(now)
	if ttl <= 0 {
		return "", sdk.Invalid("ttl", "the retention %s has passed", until.UTC().Format(time.RFC3339))
	}
	budget := min(e.settings.SnapshotTimeout, ends.Sub(now).Truncate(time.Second))
	if budget < time.Second {
		return "", sdk.Errorf(sdk.ErrExpired, "the lifetime that Modal gave the sandbox ends at %s, too soon for a snapshot", ends.UTC().Format(time.RFC3339))
	}
	handle, err := e.handle(ctx, ref)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, budget+callDeadline)
	defer cancel()
	image, err := handle.SnapshotFilesystem(ctx, &modal.SandboxSnapshotFilesystemParams{
		// Whole seconds, and no less than was asked for.
		Timeout: budget, TTL: (ttl + time.Second - 1).Truncate(time.Second),
	})
	if err != nil {
		e.forget(ref) // its connection may be of a task that is over
		return "", fmt.Errorf("snapshot of Modal sandbox %s within %s: %w", ref, budget, e.client.translate(ctx, err))
	}
	return image.ImageID, nil
}

// GetSnapshot returns one snapshot, if the vendor still has its image.
func (e *Extension) GetSnapshot(ctx context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	kept, _, err := e.snapshot(ctx, opts.SnapshotID, opts.Fleet)
	return sdk.GetSnapshotResult{Snapshot: kept.Snapshot}, err
}

// snapshot returns the record of a snapshot, and its image.
func (e *Extension) snapshot(ctx context.Context, id, fleet string) (record, *modal.Image, error) {
	kept, err := e.records.get(id, fleet)
	if err != nil {
		return kept, nil, err
	}
	image, err := e.client.imageThere(ctx, kept.Snapshot.Ref)
	if errors.Is(err, sdk.ErrNotFound) {
		return kept, nil, &sdk.Error{Kind: sdk.ErrNotFound, Message: fmt.Sprintf("Modal does not keep the image of snapshot %s any more", id), Err: err}
	}
	return kept, image, err
}

// ListSnapshots returns the snapshots of a fleet that are known here and whose
// retention has not passed.
func (e *Extension) ListSnapshots(ctx context.Context, opts sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	kept, err := e.records.all(opts.Fleet)
	if err != nil {
		return sdk.ListSnapshotsResult{}, err
	}
	result := sdk.ListSnapshotsResult{}
	for _, k := range kept {
		if !e.now().Before(k.Snapshot.ExpiresAt) {
			// The vendor has removed the image by itself.
			if _, err := e.client.imageThere(ctx, k.Snapshot.Ref); errors.Is(err, sdk.ErrNotFound) {
				if err := e.records.drop(k.Snapshot.ID); err != nil {
					return result, err
				}
				continue
			}
		}
		result.Snapshots = append(result.Snapshots, k.Snapshot)
	}
	return result, ctx.Err()
}

// helperLife bounds the sandbox that prolongs a snapshot, by the vendor.
const helperLife = 2 * time.Minute

// ExtendSnapshot moves a retention later. The vendor's is fixed, so a sandbox is
// made from the image for as long as it takes to make another image.
func (e *Extension) ExtendSnapshot(ctx context.Context, opts sdk.ExtendSnapshotOptions) (sdk.ExtendSnapshotResult, error) {
	var result sdk.ExtendSnapshotResult
	err := e.records.locked(ctx, opts.SnapshotID, func() error {
		kept, image, err := e.snapshot(ctx, opts.SnapshotID, opts.Fleet)
		if err != nil {
			return err
		}
		result.Snapshot = kept.Snapshot
		if !opts.ExpiresAt.After(kept.Snapshot.ExpiresAt) {
			return nil
		}
		app, err := e.client.app(ctx, appName(opts.Fleet), true)
		if err != nil {
			return err
		}
		vendor, err := e.client.vendor()
		if err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, createDeadline)
		defer cancel()
		life := helperLife + e.settings.SnapshotTimeout
		helper, err := vendor.Sandboxes.Create(within, app, image, &modal.SandboxCreateParams{
			Timeout: life, BlockNetwork: true, Command: []string{"sleep", "172800"}, Tags: map[string]string{tagFleet: fleetKey(opts.Fleet), tagHelper: opts.SnapshotID},
		})
		if err != nil {
			// One that was made and not answered for ends by its own lifetime.
			return e.client.translate(ctx, err)
		}
		ends := e.now().Add(life)
		defer func() {
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupDeadline)
			defer cancel()
			_, _ = e.remove(cleanup, helper.SandboxID) // its lifetime ends it in any case
			e.forget(helper.SandboxID)
		}()
		made, err := e.capture(ctx, helper.SandboxID, opts.ExpiresAt, ends)
		if err != nil {
			return err
		}
		old := kept.Snapshot.Ref
		kept.Snapshot.Ref, kept.Snapshot.ExpiresAt = made, opts.ExpiresAt.UTC()
		if err := e.records.put(kept); err != nil {
			return errors.Join(err, e.client.deleteImage(context.WithoutCancel(ctx), made))
		}
		result.Snapshot = kept.Snapshot
		// The old one ends at its own retention when this fails.
		if err := e.client.deleteImage(ctx, old); err != nil && !errors.Is(err, sdk.ErrNotFound) && !errors.Is(err, sdk.ErrUnreachable) {
			return err
		}
		return nil
	})
	return result, err
}

// DeleteSnapshot removes a snapshot, and returns when the vendor does not find
// its image.
func (e *Extension) DeleteSnapshot(ctx context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	result := sdk.DeleteSnapshotResult{}
	kept, err := e.records.get(opts.SnapshotID, opts.Fleet)
	if errors.Is(err, sdk.ErrNotFound) {
		return result, nil
	}
	if err != nil {
		return result, err
	}
	var last error
	for attempt := range goneTries {
		if attempt > 0 {
			if err := e.opts.Clock.Sleep(ctx, gonePause<<attempt); err != nil {
				return result, errors.Join(err, last)
			}
		}
		last = e.client.deleteImage(ctx, kept.Snapshot.Ref)
		if last == nil {
			result.Existed = true
		}
		if last != nil && !errors.Is(last, sdk.ErrNotFound) && !errors.Is(last, sdk.ErrUnreachable) {
			return result, last
		}
		_, look := e.client.imageThere(ctx, kept.Snapshot.Ref)
		if errors.Is(look, sdk.ErrNotFound) {
			return result, e.records.drop(opts.SnapshotID)
		}
		last = errors.Join(last, look)
	}
	if last == nil {
		last = errContradiction
	}
	return result, fmt.Errorf("snapshot %s could not be seen gone: %w", opts.SnapshotID, last)
}

// Restore makes a sandbox from a snapshot.
func (e *Extension) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	if err := errors.Join(ctx.Err(), opts.Create.Check(e.now()), refuse(opts.Create, true)); err != nil {
		return sdk.CreateResult{}, err
	}
	kept, image, err := e.snapshot(ctx, opts.SnapshotID, opts.Create.Identity.Fleet)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	app, err := e.client.app(ctx, appName(opts.Create.Identity.Fleet), true)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	return e.create(ctx, opts.Create, app, image, origin{snapshot: true, secrets: kept.Snapshot.ContainsSecrets})
}
