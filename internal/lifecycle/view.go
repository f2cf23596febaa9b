// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Sandbox is one sandbox as every face shows it: what the backend reports,
// joined with what the ledger knows. The JSON names are the attribute names
// of HCL.
type Sandbox struct {
	ID              string       `json:"id"`
	Status          sdk.Status   `json:"status"`
	Reason          string       `json:"reason,omitempty"` // why it is in this status
	Backend         string       `json:"backend"`
	Ref             string       `json:"ref,omitempty"`
	Fleet           string       `json:"fleet"`
	Profile         string       `json:"profile"` // its name
	ProfileRevision string       `json:"profile_revision"`
	CreatedAt       time.Time    `json:"created_at"`
	ExpiresAt       time.Time    `json:"expires_at"`
	MaxExpiresAt    time.Time    `json:"max_expires_at"`
	Generation      int64        `json:"generation"`
	Incarnation     int64        `json:"incarnation"`
	OnExpiry        sdk.OnExpiry `json:"on_expiry"`
	// Durations as Go writes them; empty where they say nothing.
	IdleTimeout       string `json:"idle_timeout,omitempty"`
	ExpirySnapshotTTL string `json:"expiry_snapshot_ttl,omitempty"`
	PausedTTL         string `json:"paused_ttl,omitempty"`
	// IdleExpiresAt is when it ends if it is not used before; see
	// [sdk.Sandbox].
	IdleExpiresAt    time.Time         `json:"idle_expires_at,omitzero"`
	EndReason        sdk.EndReason     `json:"end_reason,omitempty"` // what ended it, or had it paused
	Owner            string            `json:"owner,omitempty"`
	Task             string            `json:"task,omitempty"`
	Run              string            `json:"run,omitempty"`
	Actor            string            `json:"actor,omitempty"`
	Labels           map[string]string `json:"labels"`
	Endpoints        map[string]string `json:"endpoints"`
	Guards           []sdk.Guard       `json:"guards"`
	Snapshot         string            `json:"snapshot,omitempty"` // that it was restored from
	ExpirySnapshotID string            `json:"expiry_snapshot_id,omitempty"`
	// ExpirySnapshotError says why the snapshot that was due at its end is
	// missing.
	ExpirySnapshotError string `json:"expiry_snapshot_error,omitempty"`
	// Unreachable says why the backend could not be asked; what is shown is
	// then what the ledger knew last.
	Unreachable string `json:"unreachable,omitempty"`
	// Known is false for a sandbox of this fleet that the backend reports and
	// this ledger has no record of.
	Known bool `json:"known"`

	document sdk.Profile
	found    sdk.Sandbox // what the backend told; empty when it told nothing
}

// Document returns the profile that the sandbox was made from; its name is
// empty when neither the backend nor the ledger kept it.
func (s Sandbox) Document() sdk.Profile { return s.document }

// EndsAt returns when the sandbox ends as things stand, and by which of its
// clocks.
func (s Sandbox) EndsAt() (time.Time, sdk.EndReason) {
	return sdk.Sandbox{Lease: sdk.Lease{ExpiresAt: s.ExpiresAt}, IdleExpiresAt: s.IdleExpiresAt}.EndsAt()
}

// Alive reports whether the sandbox can be used or will become usable.
func (s Sandbox) Alive() bool {
	return s.Status == sdk.StatusCreating || s.Status == sdk.StatusReady || s.Status == sdk.StatusPaused
}

// Snapshot is one snapshot as every face shows it.
type Snapshot struct {
	ID              string            `json:"id"`
	SandboxID       string            `json:"sandbox_id"`
	Kind            sdk.SnapshotKind  `json:"kind"`
	Backend         string            `json:"backend"`
	Ref             string            `json:"ref,omitempty"`
	Fleet           string            `json:"fleet"`
	Profile         string            `json:"profile"`
	ProfileRevision string            `json:"profile_revision"`
	CreatedAt       time.Time         `json:"created_at"`
	ExpiresAt       time.Time         `json:"expires_at"`
	Size            int64             `json:"size"`
	Digest          string            `json:"digest,omitempty"`
	ContainsSecrets bool              `json:"contains_secrets"`
	Owner           string            `json:"owner,omitempty"`
	Labels          map[string]string `json:"labels"`
	Lost            []string          `json:"lost,omitempty"` // what a restore will not bring back
	Known           bool              `json:"known"`
	// Missing is true for one that only the ledger tells of.
	Missing bool `json:"missing,omitempty"`

	document sdk.Profile
}

// Document returns the profile of the sandbox that the snapshot was made from.
func (s Snapshot) Document() sdk.Profile { return s.document }

// viewRecord shows what the ledger alone knows.
func viewRecord(r ledger.Record) Sandbox {
	status, reason, ended := r.Status, r.Reason, sdk.EndReason(r.EndReason)
	switch {
	case r.Open || !ended.Valid():
	case ended == sdk.EndDeadline || ended == sdk.EndIdle:
		// For whoever asks afterwards, this is what happened to it, and not
		// that something was left to be destroyed.
		status, reason = sdk.StatusExpired, cmp.Or(r.EndMessage, reason)
	default:
		status, reason = sdk.StatusLost, cmp.Or(r.EndMessage, reason)
	}
	return Sandbox{
		ID: r.ID, Status: status, Backend: r.Backend, Ref: r.Ref, Fleet: r.Fleet,
		Profile: r.Identity.Profile, ProfileRevision: r.Identity.ProfileRevision,
		CreatedAt: r.Identity.CreatedAt, ExpiresAt: r.Lease.ExpiresAt, MaxExpiresAt: r.Lease.MaxExpiresAt,
		Generation: r.Lease.Generation, Incarnation: r.Incarnation, OnExpiry: cmp.Or(r.OnExpiry, sdk.OnExpiryDestroy),
		IdleTimeout: r.IdleTimeout, EndReason: ended, ExpirySnapshotID: r.ExpirySnapshotID, ExpirySnapshotError: r.ExpirySnapshotError,
		Owner: r.Identity.Owner, Task: r.Identity.Task, Run: r.Identity.Run, Actor: r.Identity.Actor,
		Labels: orEmpty(r.Identity.Labels), Endpoints: map[string]string{}, Guards: []sdk.Guard{},
		Snapshot: r.RestoredFrom, Reason: reason, Known: true, document: r.Profile,
	}
}

// viewBackend shows what a backend reports, completed by the ledger's record
// where there is one.
func viewBackend(backend string, s sdk.Sandbox, r *ledger.Record) Sandbox {
	view := Sandbox{
		ID: s.ID, Status: s.Status, Reason: s.Reason, Backend: backend, Ref: s.Ref, Fleet: s.Identity.Fleet,
		Profile: s.Identity.Profile, ProfileRevision: s.Identity.ProfileRevision,
		CreatedAt: s.CreatedAt, ExpiresAt: s.Lease.ExpiresAt, MaxExpiresAt: s.Lease.MaxExpiresAt,
		Generation: s.Lease.Generation, Incarnation: s.Incarnation, OnExpiry: cmp.Or(s.OnExpiry, sdk.OnExpiryDestroy),
		Owner: s.Identity.Owner, Task: s.Identity.Task, Run: s.Identity.Run, Actor: s.Identity.Actor,
		Labels: orEmpty(s.Identity.Labels), Endpoints: orEmpty(s.Endpoints), Guards: s.Guards,
		IdleTimeout: durationText(s.IdleTimeout), IdleExpiresAt: s.IdleExpiresAt, EndReason: s.EndReason,
		ExpirySnapshotID: s.ExpirySnapshotID, ExpirySnapshotError: s.ExpirySnapshotError, document: s.Profile, found: s,
	}
	switch s.OnExpiry {
	case sdk.OnExpirySnapshot:
		view.ExpirySnapshotTTL = durationText(s.ExpirySnapshotTTL)
	case sdk.OnExpiryPause:
		view.PausedTTL = durationText(s.PausedTTL)
	}
	if view.Guards == nil {
		view.Guards = []sdk.Guard{}
	}
	if s.Lease.Claimed && view.Alive() {
		view.Status, view.Reason = sdk.StatusDestroying, "claimed by "+s.Lease.ClaimHolder
	}
	if r == nil {
		return view
	}
	view.Known = true
	view.Snapshot = r.RestoredFrom
	if view.document.Name == "" {
		view.document = r.Profile
	}
	if view.Alive() {
		switch r.Status {
		case sdk.StatusFailed, sdk.StatusDestroying:
			// Only the ledger knows that readiness was never reached, or
			// that a destroy has begun and must be finished.
			view.Status, view.Reason = r.Status, r.Reason
		case sdk.StatusCreating:
			view.Status = sdk.StatusCreating
		}
	}
	return view
}

func viewSnapshot(backend string, s sdk.Snapshot, r *ledger.Record) Snapshot {
	view := Snapshot{
		ID: s.ID, SandboxID: s.SandboxID, Kind: s.Kind, Backend: backend, Ref: s.Ref, Fleet: s.Identity.Fleet,
		Profile: s.Identity.Profile, ProfileRevision: s.Identity.ProfileRevision,
		CreatedAt: s.CreatedAt, ExpiresAt: s.ExpiresAt, Size: s.Size, Digest: s.Digest,
		ContainsSecrets: s.ContainsSecrets, Owner: s.Identity.Owner, Labels: orEmpty(s.Identity.Labels),
		Lost: s.Lost, Known: r != nil, document: s.Profile,
	}
	if view.document.Name == "" && r != nil {
		view.document = r.Profile
	}
	return view
}

// viewMissingSnapshot shows a snapshot that only the ledger tells of.
func viewMissingSnapshot(r ledger.Record) Snapshot {
	return Snapshot{
		ID: r.ID, SandboxID: r.SnapshotOf, Kind: r.SnapshotKind, Backend: r.Backend, Ref: r.Ref, Fleet: r.Fleet,
		Profile: r.Identity.Profile, ProfileRevision: r.Identity.ProfileRevision, CreatedAt: r.Identity.CreatedAt,
		ExpiresAt: r.Lease.ExpiresAt, Owner: r.Identity.Owner, Labels: orEmpty(r.Identity.Labels), Known: true, Missing: true,
		document: r.Profile,
	}
}

// durationText is empty for a duration that is not set.
func durationText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// profileLabels returns the label fields of a profile.
func profileLabels(p sdk.Profile) (name, revision string) {
	return p.Name, sandbox.Revision(p)
}
