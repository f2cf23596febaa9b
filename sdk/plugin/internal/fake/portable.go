// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package fake

import (
	"context"
	"io"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// archive is what every export writes: larger than one frame.
var archive = strings.Repeat("an archive ", 20_000)

func losses() []sdk.Loss {
	return []sdk.Loss{{Kind: sdk.LossMemory, Detail: "processes"}, {Kind: sdk.LossDevices, Detail: "device files", Count: 3, Paths: []string{"/dev/x", "/dev/y"}}}
}

// ExportSnapshot implements [sdk.PortableSnapshotter].
func (e *Extension) ExportSnapshot(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
	if _, err := e.GetSnapshot(ctx, sdk.GetSnapshotOptions{SnapshotID: opts.SnapshotID, Fleet: opts.Fleet}); err != nil {
		return sdk.ExportSnapshotResult{}, err
	}
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "export", Done: 1, Total: 2})
	}
	n, err := io.WriteString(opts.Archive, archive)
	return sdk.ExportSnapshotResult{Bytes: int64(n), Digest: "sha256:43", Losses: losses()}, err
}

// ImportSnapshot implements [sdk.PortableSnapshotter]. Only what an export
// wrote is taken.
func (e *Extension) ImportSnapshot(_ context.Context, opts sdk.ImportSnapshotOptions) (sdk.ImportSnapshotResult, error) {
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "import"})
	}
	content, err := io.ReadAll(io.LimitReader(opts.Archive, 1<<20))
	if err != nil {
		return sdk.ImportSnapshotResult{}, &sdk.Error{Kind: sdk.ErrInvalid, Message: "the archive is cut off", Err: err}
	}
	if string(content) != archive {
		return sdk.ImportSnapshotResult{}, sdk.Invalid("archive", "it is no archive")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	snapshot := sdk.Snapshot{
		ID: opts.SnapshotID, Ref: "snap-" + opts.SnapshotID, Kind: sdk.SnapshotFilesystem, Identity: opts.Identity,
		CreatedAt: e.now(), ExpiresAt: opts.ExpiresAt, Size: int64(len(content)), Digest: "sha256:43",
	}
	e.snapshots[snapshot.ID] = snapshot
	return sdk.ImportSnapshotResult{Snapshot: snapshot, Losses: losses()}, nil
}
