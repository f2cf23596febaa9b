// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"io"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The choices for a sandbox that was made but did not become ready.
const (
	OnFailedDestroy = "destroy"
	OnFailedKeep    = "keep"
)

// CreateOptions are the options of [Manager.Create]. Exactly one of Profile
// (with a name) and Snapshot is set.
type CreateOptions struct {
	Profile     sdk.Profile
	Snapshot    string        // id of the snapshot to restore
	Backend     string        // empty is the snapshot's, or the default
	TTL         time.Duration // zero is the profile's, then the provider's default
	End         sandbox.End   // zero fields are the profile's, then the built-in defaults
	OnFailed    string        // empty is destroy
	Env         map[string]string
	Secrets     map[string]sdk.Secret
	Labels      map[string]string
	Attribution sandbox.Attribution // empty fields are the settings'
	// Created is called once, as soon as the sandbox has an id and a ref and
	// the ledger holds them, before setup and readiness. Terraform saves its
	// state here.
	Created  func(Sandbox)
	Progress func(sdk.Progress)

	verifies bool // as in [CheckOptions]
}

// ExtendOptions are the options of [Manager.Extend]. Exactly one of TTL, By
// and To is set.
type ExtendOptions struct {
	Backend string        // empty: as the ledger says, else every backend is searched
	TTL     time.Duration // the deadline becomes now + TTL, when that is later
	By      time.Duration // the deadline moves by this much
	To      time.Time     // the deadline becomes this
	// AllowLess accepts a grant that is less than asked, which is an error
	// otherwise.
	AllowLess bool
	Reason    string
}

// ExpireOptions are the options of [Manager.Expire].
type ExpireOptions struct {
	Backend string
	At      time.Time // zero is now
	Reason  string
}

const (
	// ReasonRetention is the reason of the end of a snapshot whose retention is
	// over.
	ReasonRetention = "retention"
	// ReasonReappeared is the reason for which the log of a thing is opened
	// again that was seen gone.
	ReasonReappeared = "reappeared"
)

// OnUnreachable is what a destroy does whose backend can't be reached.
type OnUnreachable string

const (
	// UnreachableFail is an error, which is what an empty choice means.
	UnreachableFail OnUnreachable = "fail"
	// UnreachableForget ends the destroy with a record in the ledger, which a
	// sweep acts on once the backend is there again.
	UnreachableForget OnUnreachable = "forget"
)

// Check refuses what is no choice.
func (o OnUnreachable) Check() error {
	switch o {
	case "", UnreachableFail, UnreachableForget:
		return nil
	}
	return sdk.Invalid("on_unreachable", "%.40q is not one of fail, forget", string(o))
}

// DestroyOptions are the options of [Manager.Destroy].
type DestroyOptions struct {
	Backend string
	Reason  string
	// OnUnreachable is the settings' when it is empty.
	OnUnreachable OnUnreachable
	// OnlyExpired refuses with [sdk.ErrConflict] while the deadline has not
	// passed by the backend's clock. The reaper sets it.
	OnlyExpired bool
	// ExpiresAt is the last deadline that the caller knows, for a sandbox
	// that neither ledger nor backend can tell about. See [Manager.Get].
	ExpiresAt time.Time
	Ref       string // likewise
	// Listed is the sandbox as a listing of this manager told of it. Where the
	// backend's claim notices a lease that has changed since, it is not asked
	// again.
	Listed *Sandbox
}

// DestroyResult is the result of [Manager.Destroy].
type DestroyResult struct {
	ID      string   `json:"id"`
	Backend string   `json:"backend"`
	Existed bool     `json:"existed"` // false when it was already gone
	Removed []string `json:"removed,omitempty"`
	// Unverifiable says why absence could not be observed although the
	// deadline has passed long ago on a backend that enforces it.
	Unverifiable string `json:"unverifiable,omitempty"`
	// Forgotten says why the backend could not be asked, where the caller
	// gives it up then: it may live until its deadline, and longer where nothing
	// guards it.
	Forgotten string `json:"forgotten,omitempty"`
}

// GetOptions are the options of [Manager.Get].
type GetOptions struct {
	Backend string
	// Batched lets the answer come from one listing that is shared by all
	// concurrent calls of this process. It sees every write of this process.
	Batched bool
	// ExpiresAt and Ref are what the caller knew last (Terraform's state),
	// for a sandbox that the ledger of this machine has no record of.
	ExpiresAt time.Time
	Ref       string
}

// ListOptions are the options of [Manager.List].
type ListOptions struct {
	Backend string       // empty is all
	Status  []sdk.Status // empty is all but destroyed
	Owner   string
	Profile string
	Labels  map[string]string // all must match
	// Closed also lists destroyed sandboxes whose tombstone is still there.
	Closed bool
}

// ListResult is the result of [Manager.List].
type ListResult struct {
	Sandboxes []Sandbox `json:"sandboxes"`
	// Unreachable names each backend that could not be asked, and why.
	Unreachable map[string]string `json:"unreachable,omitempty"`
	// Unreadable names logs of the ledger that could not be read, and why.
	Unreadable []string `json:"unreadable,omitempty"`
	// Untold are the ids of what a backend holds and can't tell about, by
	// backend, of whatever fleet: whether it is one of these is not known.
	Untold map[string][]string `json:"untold,omitempty"`
}

// ExecOptions are the options of [Manager.Exec].
type ExecOptions struct {
	Backend string
	Command []string
	Env     map[string]string
	User    string
	Workdir string
	Timeout time.Duration
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

// SnapshotOptions are the options of [Manager.Snapshot].
type SnapshotOptions struct {
	Backend     string
	Kind        sdk.SnapshotKind // empty is filesystem
	TTL         time.Duration    // retention; zero is [DefaultSnapshotTTL]
	Labels      map[string]string
	Attribution sandbox.Attribution
	// Created is called once the snapshot is durable, before anything else.
	Created  func(Snapshot)
	Progress func(sdk.Progress)
}

// ExportSnapshotOptions are the options of [Manager.ExportSnapshot].
type ExportSnapshotOptions struct {
	Backend  string
	Archive  io.Writer
	Progress func(sdk.Progress)
}

// ExportedSnapshot is the result of [Manager.ExportSnapshot].
type ExportedSnapshot struct {
	ID      string     `json:"id"`
	Backend string     `json:"backend"`
	Bytes   int64      `json:"bytes"`
	Digest  string     `json:"digest"` // of the image in the archive
	Losses  []sdk.Loss `json:"losses"`
}

// ImportSnapshotOptions are the options of [Manager.ImportSnapshot].
type ImportSnapshotOptions struct {
	Backend     string        // empty is the default
	TTL         time.Duration // retention; zero is [DefaultSnapshotTTL]
	Labels      map[string]string
	Attribution sandbox.Attribution
	Archive     io.Reader // not trusted
	// Created is called once the snapshot is durable, before anything else.
	Created  func(Snapshot)
	Progress func(sdk.Progress)
}

// ImportedSnapshot is the result of [Manager.ImportSnapshot].
type ImportedSnapshot struct {
	Snapshot
	Losses []sdk.Loss `json:"losses"`
}

// DefaultSnapshotTTL is how long a snapshot is kept when nobody says: a week.
const DefaultSnapshotTTL = 7 * 24 * time.Hour

// ListSnapshotsOptions are the options of [Manager.Snapshots].
type ListSnapshotsOptions struct {
	Backend   string
	SandboxID string
	// Missing also returns snapshots that the ledger holds open and their
	// backend does not list.
	Missing bool
}

// ListSnapshotsResult is the result of [Manager.Snapshots].
type ListSnapshotsResult struct {
	Snapshots   []Snapshot        `json:"snapshots"`
	Unreachable map[string]string `json:"unreachable,omitempty"`
}

// CheckOptions are the options of [Manager.Check].
type CheckOptions struct {
	Backend string
	Profile sdk.Profile
	End     sandbox.End // overrides the profile's
	TTL     time.Duration
	// Needs are further requirements: of a restore, of a snapshot's kind.
	Needs []sandbox.Requirement
	// Restores means that the sandbox is made from a snapshot: what the
	// profile names to make it from is then not needed.
	Restores bool

	// verifies means that the sandbox is made to find out about credential
	// isolation, which can't be needed then.
	verifies bool
}

// CheckResult is the result of [Manager.Check].
type CheckResult struct {
	Backend    string
	Life       sandbox.Life
	Mismatches []sandbox.Mismatch // certain: refuse
	// Undecided are requirements that only the machine can tell, which could
	// not be asked, for the reason in Unreachable: warn, and check again
	// before the intent.
	Undecided   []sandbox.Mismatch
	Unreachable string
	// Guards that will protect a sandbox there; empty means that no live
	// guard is known: warn.
	Guarded bool
}

// BackendInfo is a configured backend as every face shows it.
type BackendInfo struct {
	Name         string           `json:"name"`
	Extension    string           `json:"extension"`
	Version      string           `json:"version"`
	Default      bool             `json:"default"`
	Usable       *bool            `json:"usable,omitempty"` // nil when not probed
	Reason       string           `json:"reason,omitempty"`
	Advice       string           `json:"advice,omitempty"`
	Capabilities sdk.Capabilities `json:"capabilities,omitempty"`
	Details      []sdk.Detail     `json:"details,omitempty"`
}
