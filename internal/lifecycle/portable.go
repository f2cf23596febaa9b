// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// ExportSnapshot writes a snapshot as an archive that other backends take. On
// an error, what was written is no whole archive.
func (m *Manager) ExportSnapshot(ctx context.Context, id string, opts ExportSnapshotOptions) (ExportedSnapshot, error) {
	_, backend, _, err := m.locateSnapshot(ctx, id, opts.Backend)
	if err != nil {
		return ExportedSnapshot{}, err
	}
	portable, err := m.portable(ctx, backend)
	if err != nil {
		return ExportedSnapshot{}, err
	}
	result, err := portable.ExportSnapshot(ctx, sdk.ExportSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet, Archive: opts.Archive, Progress: opts.Progress})
	if err != nil {
		return ExportedSnapshot{}, failure("export snapshot", id, backend, err)
	}
	return ExportedSnapshot{ID: id, Backend: backend, Bytes: result.Bytes, Digest: result.Digest, Losses: orNone(result.Losses)}, nil
}

// ImportSnapshot makes a snapshot from an archive, and returns when it is
// durable. Its intent is in the ledger first, as with [Manager.Snapshot].
func (m *Manager) ImportSnapshot(ctx context.Context, opts ImportSnapshotOptions) (ImportedSnapshot, error) {
	backend, err := m.BackendName(opts.Backend)
	if err != nil {
		return ImportedSnapshot{}, err
	}
	if err := sandbox.ProfileError(sandbox.ValidateLabels("labels", opts.Labels)); err != nil {
		return ImportedSnapshot{}, err
	}
	portable, err := m.portable(ctx, backend)
	if err != nil {
		return ImportedSnapshot{}, err
	}
	now := m.clock.Now().UTC()
	made := opts.Attribution.Or(m.settings.Attribution)
	id := sandbox.NewSnapshotID(now)
	request := sdk.ImportSnapshotOptions{
		SnapshotID: id, ExpiresAt: now.Add(cmp.Or(opts.TTL, DefaultSnapshotTTL)), Archive: opts.Archive, Progress: opts.Progress,
		Identity: sdk.Identity{
			ID: id, Fleet: m.settings.Fleet, Incarnation: 1, CreatedAt: now, Labels: orEmpty(opts.Labels),
			Owner: made.Owner, Task: made.Task, Run: made.Run, Actor: made.Actor,
		},
	}
	intended, err := m.append(ctx, id, ledger.Event{
		Type: ledger.Intended, Backend: backend, Lease: &sdk.Lease{ExpiresAt: request.ExpiresAt, MaxExpiresAt: request.ExpiresAt, Generation: 1},
		Intent: &ledger.Intent{Fleet: m.settings.Fleet, Identity: request.Identity, SnapshotKind: sdk.SnapshotFilesystem},
	})
	if err != nil {
		return ImportedSnapshot{}, err
	}
	request.Event = intended.event
	result, err := portable.ImportSnapshot(ctx, request)
	if err == nil && result.Snapshot.ID != id {
		err = errOtherSnapshot
	}
	at := place{backend: backend}
	if err != nil {
		result.Snapshot, err = m.searchSnapshot(ctx, at, id, failure("import snapshot", id, backend, err))
	}
	if err != nil {
		return ImportedSnapshot{}, err
	}
	kept, err := m.keepSnapshot(ctx, at, result.Snapshot, SnapshotOptions{Created: opts.Created})
	return ImportedSnapshot{Snapshot: kept, Losses: orNone(result.Losses)}, err
}

// portable returns what exports and imports the snapshots of a backend.
func (m *Manager) portable(ctx context.Context, backend string) (sdk.PortableSnapshotter, error) {
	described, err := m.describe(ctx, backend)
	if err != nil {
		return nil, err
	}
	ext, err := m.open(ctx, backend)
	if err != nil {
		return nil, err
	}
	portable, ok := sdk.As[sdk.PortableSnapshotter](ext)
	found := described.Capabilities.Of(sdk.FeaturePortableSnapshot)
	if !ok || found.Class == sdk.ClassUnsupported {
		return nil, sdk.Unsupported("backend", "snapshots of backend %q can be neither exported nor imported%s", backend, because(found.Reason))
	}
	return portable, nil
}

// orNone makes an empty report one that says so in JSON.
func orNone(losses []sdk.Loss) []sdk.Loss {
	if losses == nil {
		return []sdk.Loss{}
	}
	return losses
}
