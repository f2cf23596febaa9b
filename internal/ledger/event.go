// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Type says what an event records.
type Type string

// The types of events. Those of a snapshot's own log are Intended,
// Snapshotted, SnapshotFailed, Extended, Destroying, DestroyFailed and
// SnapshotDeleted; in the log of the sandbox that it was made from,
// Snapshotting to SnapshotDeleted only tell.
const (
	Intended        Type = "intended"     // about to ask the backend for it; carries the Intent
	Created         Type = "created"      // the backend gave a ref
	CreateFailed    Type = "createfailed" // nothing was made; closes the log
	Ready           Type = "ready"
	Failed          Type = "failed"    // made, but never became ready
	Extending       Type = "extending" // about to ask the backend for a later deadline; the lease record refers to it
	Extended        Type = "extended"
	ExtendDenied    Type = "extenddenied"
	Shortening      Type = "shortening" // about to ask for an earlier deadline
	Shortened       Type = "shortened"
	Claiming        Type = "claiming" // about to claim the lease for destruction; the lease record refers to it
	Expired         Type = "expired"  // a clock ended it; the reason says which
	Paused          Type = "paused"
	Resumed         Type = "resumed"
	Snapshotting    Type = "snapshotting"
	Snapshotted     Type = "snapshotted"
	SnapshotFailed  Type = "snapshotfailed"
	SnapshotDeleted Type = "snapshotdeleted"
	Restored        Type = "restored" // the backend gave a ref for a sandbox made from a snapshot
	Adopted         Type = "adopted"  // found at the backend, taken into this ledger; may carry an Intent
	Destroying      Type = "destroying"
	Destroyed       Type = "destroyed" // its absence was observed; closes the log
	DestroyFailed   Type = "destroyfailed"
	Forgotten       Type = "forgotten"      // given up by whoever destroyed it, since the backend could not be asked; a sweep goes on
	OrphanDetected  Type = "orphandetected" // found at the backend, unknown or closed here; may carry an Intent
	Lost            Type = "lost"           // gone without us; the reason says how, as far as that is known
)

// ReasonExpiry is the reason of a snapshot's events in the log of its sandbox
// that was made, or should have been, at the sandbox's end.
const ReasonExpiry = "expiry"

// Types returns every type in the order of a life.
func Types() []Type {
	return []Type{Intended, Created, CreateFailed, Ready, Failed, Extending, Extended, ExtendDenied,
		Shortening, Shortened, Claiming,
		Expired, Paused, Resumed, Snapshotting, Snapshotted, SnapshotFailed, SnapshotDeleted, Restored, Adopted,
		Destroying, Destroyed, DestroyFailed, Forgotten, OrphanDetected, Lost}
}

// CloudEvent returns the type as CloudEvents name it.
func (t Type) CloudEvent() string { return "dev.sandboxer.sandbox." + string(t) + ".v1" }

// Status returns the status that an event of this type tells by itself; empty
// where it takes more than the type.
func (t Type) Status() sdk.Status {
	switch t {
	case Intended, Created, Restored:
		return sdk.StatusCreating
	case CreateFailed, Failed:
		return sdk.StatusFailed
	case Ready, Resumed:
		return sdk.StatusReady
	case Paused:
		return sdk.StatusPaused
	case Expired:
		return sdk.StatusExpired
	case Lost:
		return sdk.StatusLost
	case Destroying, DestroyFailed, Forgotten:
		return sdk.StatusDestroying
	case Destroyed:
		return sdk.StatusDestroyed
	}
	return ""
}

func (t Type) valid() bool { return slices.Contains(Types(), t) }

// closing reports whether the type belongs to the end of a life. Such an
// event is still accepted by a log that is full for all others: a sandbox can
// always be destroyed.
func (t Type) closing() bool {
	switch t {
	case Claiming, Expired, Destroying, Destroyed, DestroyFailed, Forgotten, SnapshotDeleted, CreateFailed, Lost:
		return true
	}
	return false
}

// Event is one line of a log. The ledger sets LedgerID, ID, Sequence, Time,
// PrevHash and Hash; the caller of [Ledger.Append] sets the rest. No field
// ever holds a secret.
type Event struct {
	LedgerID string    `json:"ledger_id"`
	ID       string    `json:"id"`       // of the sandbox or snapshot
	Sequence int64     `json:"sequence"` // from 1, without a gap
	Time     time.Time `json:"time"`     // UTC, by the ledger's clock
	Type     Type      `json:"type"`
	Reason   string    `json:"reason,omitempty"`  // a code: "ttl", "user", "replaced"
	Message  string    `json:"message,omitempty"` // for people; cut at 4 KiB
	Actor    string    `json:"actor,omitempty"`
	Run      string    `json:"run,omitempty"`

	// Fleet makes a log findable that begins without an Intent, which names
	// it as well.
	Fleet       string `json:"fleet,omitempty"`
	Backend     string `json:"backend,omitempty"` // name of the configured instance
	Ref         string `json:"ref,omitempty"`     // the backend's own handle
	Incarnation int64  `json:"incarnation,omitempty"`
	// Status is what the backend said, with Adopted and OrphanDetected.
	Status sdk.Status `json:"status,omitempty"`
	// Lease is the lease after the event: as asked for with Intended, as
	// granted with all others. For a snapshot it is the retention.
	Lease *sdk.Lease `json:"lease,omitempty"`
	// Until is the deadline that Extending asks for, and that Extended or
	// ExtendDenied answers.
	Until           time.Time       `json:"until,omitzero"`
	ProfileRevision string          `json:"profile_revision,omitempty"`
	SnapshotID      string          `json:"snapshot_id,omitempty"` // the snapshot that a sandbox's event is about
	Intent          *Intent         `json:"intent,omitempty"`      // with Intended, Adopted, OrphanDetected
	Data            json.RawMessage `json:"data,omitempty"`        // further facts, a JSON object of at most 64 KiB

	PrevHash string `json:"prev_hash,omitempty"` // of the line before; empty in the first
	Hash     string `json:"-"`                   // "sha256:…" of this line
}

// EventRef returns what a lease record at a backend carries about the event, so
// that the chains of several ledgers join.
func (e Event) EventRef() sdk.EventRef {
	return sdk.EventRef{LedgerID: e.LedgerID, Sequence: e.Sequence, Hash: e.Hash}
}

// Kind tells the log of a sandbox from the log of a snapshot.
type Kind string

// The kinds of logs.
const (
	KindSandbox  Kind = "sandbox"
	KindSnapshot Kind = "snapshot"
)

// Intent is what has to be known to find, finish or reap a sandbox or a
// snapshot when the process that asked for it is dead. It holds the profile,
// not the environment or the secrets of the one sandbox.
type Intent struct {
	Fleet        string           `json:"fleet"`
	Identity     sdk.Identity     `json:"identity"`
	Profile      sdk.Profile      `json:"profile"`
	OnExpiry     sdk.OnExpiry     `json:"on_expiry,omitempty"`
	IdleTimeout  string           `json:"idle_timeout,omitempty"`  // a Go duration
	RestoredFrom string           `json:"restored_from,omitempty"` // snapshot id
	SnapshotOf   string           `json:"snapshot_of,omitempty"`   // sandbox id; a snapshot's
	SnapshotKind sdk.SnapshotKind `json:"snapshot_kind,omitempty"`
}
