// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"time"
)

// Status is where a sandbox is in its life.
type Status string

// The statuses, in the order of a life.
const (
	StatusCreating   Status = "creating"
	StatusReady      Status = "ready"
	StatusPaused     Status = "paused"
	StatusExpired    Status = "expired"    // its deadline ended it, or is about to
	StatusDestroying Status = "destroying" // a destroy has begun and not finished
	StatusDestroyed  Status = "destroyed"
	StatusFailed     Status = "failed" // made, but never became ready
	StatusLost       Status = "lost"   // gone without us
)

// Sandbox is what a backend reports about one sandbox.
type Sandbox struct {
	ID       string
	Ref      string // the backend's own handle
	Status   Status
	Reason   string // why it is in this status; one line
	Identity Identity
	// Incarnation counts the runs of the underlying machine from 1.
	Incarnation int64
	Lease       Lease
	CreatedAt   time.Time
	// Endpoints maps a profile's port name to "host:port" as the client sees it.
	Endpoints map[string]string
	Guards    []Guard
	OnExpiry  OnExpiry
	// IdleTimeout, ExpirySnapshotTTL and PausedTTL are as in [CreateOptions].
	IdleTimeout       time.Duration
	ExpirySnapshotTTL time.Duration
	PausedTTL         time.Duration
	// IdleExpiresAt is when the sandbox ends if it is not used before, never
	// later than its deadline. Zero while no idle clock runs: none was asked
	// for, or it is paused.
	IdleExpiresAt time.Time
	// EndReason is what ended the sandbox, or had it paused where OnExpiry is
	// [OnExpiryPause]; empty while nothing has, or where that can't be told.
	EndReason EndReason
	// ExpirySnapshotID is the snapshot that was made at the end, if any.
	ExpirySnapshotID string
	// ExpirySnapshotError says why the snapshot that was due at the end was
	// not made, in one line.
	ExpirySnapshotError string
	Profile             Profile // as it was created; zero when the backend does not keep it
}

// Lease is what keeps a sandbox alive.
type Lease struct {
	ExpiresAt    time.Time `json:"expires_at"`
	MaxExpiresAt time.Time `json:"max_expires_at"`
	Generation   int64     `json:"generation"` // from 1; grows with each change
	Claimed      bool      `json:"claimed,omitempty"`
	ClaimHolder  string    `json:"claim_holder,omitempty"`
	Event        EventRef  `json:"event"` // the ledger event behind the last change
}

// Expired reports whether the lease's deadline has passed at now.
func (l Lease) Expired(now time.Time) bool { return !now.Before(l.ExpiresAt) }

// EventRef ties a lease record at a backend to the ledger event that wrote
// it, so that the chains of several ledgers join.
type EventRef struct {
	LedgerID string `json:"ledger_id,omitempty"`
	Sequence int64  `json:"sequence,omitempty"`
	Hash     string `json:"hash,omitempty"`
}

// Guard says what ends a sandbox at its deadline when every client is dead.
type Guard string

// The guards.
const (
	GuardSupervisor      Guard = "supervisor"       // a process beside the sandbox
	GuardReaperService   Guard = "reaper_service"   // `sandboxer serve` or reap in a loop
	GuardReaperContainer Guard = "reaper_container" // one per fleet on a container engine
	GuardBackend         Guard = "backend"          // the backend's own deadline
)

// OnExpiry is what happens when one of a sandbox's clocks ends it.
type OnExpiry string

// The choices for the end.
const (
	OnExpiryDestroy OnExpiry = "destroy"
	// OnExpirySnapshot makes a filesystem snapshot, then destroys. The
	// snapshot has the id of [ExpirySnapshotID] and is made before the end,
	// which it never delays: one that fails or is not done in time is given
	// up.
	OnExpirySnapshot OnExpiry = "snapshot"
	// OnExpiryPause pauses a sandbox that runs, which then has a deadline of
	// its own: see [PauseLease]. One that is paused at its deadline, by
	// whomever, is destroyed.
	OnExpiryPause OnExpiry = "pause"
)

// SnapshotKind is what a snapshot holds.
type SnapshotKind string

// The kinds of snapshot.
const (
	SnapshotFilesystem SnapshotKind = "filesystem"
	SnapshotMemory     SnapshotKind = "memory" // processes and memory as well
)

// Snapshot is what a backend reports about one snapshot.
type Snapshot struct {
	ID        string
	Ref       string
	SandboxID string
	Kind      SnapshotKind
	Identity  Identity
	CreatedAt time.Time
	ExpiresAt time.Time
	Size      int64  // bytes at rest
	Digest    string // of the content, "sha256:…"; empty when the backend has none
	// ContainsSecrets is true when memory or files may hold secret values.
	ContainsSecrets bool
	Profile         Profile // of the sandbox that it was made from
	// Lost names processes or state that a restore will not bring back.
	Lost []string
}

// Secret is a value that is never printed. Convert it to string only where
// the backend needs the value itself.
type Secret string

// String hides the value.
func (Secret) String() string { return "[secret]" }

// GoString hides the value.
func (Secret) GoString() string { return "[secret]" }

// MarshalText hides the value from every encoder that honours it.
func (Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }
