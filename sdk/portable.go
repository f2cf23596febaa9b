// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"context"
	"io"
	"time"
)

// PortableSnapshotter is implemented by extensions whose filesystem snapshots
// can be restored on other backends, and who can take those of others. The
// archive is a tar of an OCI image layout; package sdk/portable writes and
// reads it.
type PortableSnapshotter interface {
	Snapshotter

	// ExportSnapshot writes a snapshot as an archive. The sandbox's secrets
	// and the variables of its create are not in it. What else is not is in
	// the result's Losses, and in the archive. A snapshot that can't be
	// carried at all, as one of memory, is [ErrUnsupported], and then nothing
	// is written.
	ExportSnapshot(ctx context.Context, opts ExportSnapshotOptions) (ExportSnapshotResult, error)

	// ImportSnapshot makes a snapshot from an archive. It is Snapshot with
	// another source and follows the same rules. The archive is hostile: one
	// that is cut off, whose digests are wrong, or whose names lead out of the
	// sandbox is [ErrInvalid]; one that does not fit the backend's machine is
	// [ErrUnsupported]. Neither leaves anything behind.
	ImportSnapshot(ctx context.Context, opts ImportSnapshotOptions) (ImportSnapshotResult, error)
}

// ExportSnapshotOptions are the options of [PortableSnapshotter.ExportSnapshot].
type ExportSnapshotOptions struct {
	SnapshotID string
	Fleet      string
	Archive    io.Writer
	Progress   func(Progress)
}

// ExportSnapshotResult is the result of [PortableSnapshotter.ExportSnapshot].
type ExportSnapshotResult struct {
	Bytes  int64  // of the archive
	Digest string // of the image in it, "sha256:…"
	Losses []Loss
}

// ImportSnapshotOptions are the options of [PortableSnapshotter.ImportSnapshot].
type ImportSnapshotOptions struct {
	SnapshotID string // made by the caller
	ExpiresAt  time.Time
	// Identity is of the snapshot; its ID is SnapshotID. Profile, revision and
	// labels that it does not have are those of the archive.
	Identity Identity
	Event    EventRef
	Archive  io.Reader
	Progress func(Progress)
}

// ImportSnapshotResult is the result of [PortableSnapshotter.ImportSnapshot].
type ImportSnapshotResult struct {
	Snapshot Snapshot // Lost has every loss as one line
	// Losses are those of the export, and what this backend can't keep.
	Losses []Loss
}

// Loss is something that a sandbox had and that its portable snapshot, or a
// backend that has taken one, does not.
type Loss struct {
	Kind   LossKind `json:"kind"`
	Detail string   `json:"detail"`          // what, and why, in one line
	Count  int64    `json:"count,omitempty"` // zero where it can't be told
	Paths  []string `json:"paths,omitempty"` // the first few of the files
}

// LossKind is what is lost.
type LossKind string

// The kinds of loss.
const (
	LossMemory      LossKind = "memory"      // processes, and what they hold open
	LossSecrets     LossKind = "secrets"     // secret files: given anew at a restore
	LossEnvironment LossKind = "environment" // variables that the create added to the profile's
	LossSockets     LossKind = "sockets"     // unix sockets in the file system
	LossDevices     LossKind = "devices"     // device files
	LossAttributes  LossKind = "attributes"  // extended attributes of files, file capabilities among them
	LossTimes       LossKind = "times"       // fractions of seconds in the times of files
	LossFiles       LossKind = "files"       // files that can't be told apart from the backend's own
	LossVolumes     LossKind = "volumes"     // that a directory was a volume; its content is there
)

// String returns a loss as one line.
func (l Loss) String() string {
	text := string(l.Kind) + ": " + l.Detail
	for i, path := range l.Paths {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		text += separator + path
	}
	if more := l.Count - int64(len(l.Paths)); len(l.Paths) > 0 && more > 0 {
		text += " …"
	}
	return text
}
