// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Record is what a log says, folded: where a sandbox or snapshot stands.
// What no event told is zero.
type Record struct {
	ID          string
	Kind        Kind
	Fleet       string
	Backend     string
	Ref         string
	Incarnation int64
	Status      sdk.Status
	Reason      string // of the event that led to the status
	Message     string
	Identity    sdk.Identity
	Lease       sdk.Lease
	// Asked are the deadlines that were asked for and not answered yet: each
	// may come to be.
	Asked        []time.Time
	Profile      sdk.Profile
	OnExpiry     sdk.OnExpiry
	IdleTimeout  string
	RestoredFrom string // snapshot id
	SnapshotOf   string // sandbox id; a snapshot's
	SnapshotKind sdk.SnapshotKind

	// EndReason and EndMessage are those of the event Expired or Lost: why it
	// died, whoever removed afterwards what was left of it.
	EndReason  string
	EndMessage string
	// ExpirySnapshotID is the snapshot that was made at its end,
	// ExpirySnapshotError why none was.
	ExpirySnapshotID    string
	ExpirySnapshotError string

	// Intended is true when this ledger holds the intent: the sandbox was
	// made from here. A sandbox made elsewhere has a log here when it was
	// extended, destroyed or adopted from here.
	Intended bool
	// Open is true until the log says that nothing is left at the backend.
	Open     bool
	BeganAt  time.Time // of the first event
	ClosedAt time.Time // of the event that closed it; zero while it is open

	Sequence int64  // of the last event; 0 when there is no log
	Hash     string // of the last event
	LastType Type
	LastTime time.Time
}

// Known reports whether there is a log at all.
func (r Record) Known() bool { return r.Sequence > 0 }

// Fold returns what the events of one log, in their order, come to. It is
// total: a type that it does not know changes no status.
func Fold(events []Event) Record {
	var r Record
	for _, e := range events {
		r = r.fold(e)
	}
	return r
}

func (r Record) fold(e Event) Record {
	if !r.Known() {
		r.ID, r.Kind, r.BeganAt, r.Open = e.ID, kindOf(e.ID), e.Time, true
	}
	r.Sequence, r.Hash, r.LastType, r.LastTime = e.Sequence, e.Hash, e.Type, e.Time
	r.foldFacts(e)
	status, open := r.next(e)
	if status != r.Status {
		r.Status, r.Reason, r.Message = status, e.Reason, e.Message
	}
	switch {
	case open:
		r.ClosedAt = time.Time{}
	case r.Open:
		r.ClosedAt = e.Time
	}
	r.Open = open
	return r
}

// foldFacts takes over what an event tells besides its type.
func (r *Record) foldFacts(e Event) {
	if e.Fleet != "" {
		r.Fleet = e.Fleet
	}
	if e.Backend != "" {
		r.Backend = e.Backend
	}
	if e.Ref != "" {
		r.Ref = e.Ref
	}
	if e.Incarnation > 0 {
		r.Incarnation = e.Incarnation
	}
	// A report that was overtaken by a later change of the lease must not
	// turn it back.
	if e.Lease != nil && e.Lease.Generation >= r.Lease.Generation {
		r.Lease = *e.Lease
	}
	r.foldAsked(e)
	if e.Type == Intended {
		r.Intended = true
	}
	if i := e.Intent; i != nil {
		r.Fleet, r.Identity, r.Profile, r.OnExpiry = cmp.Or(i.Fleet, r.Fleet), i.Identity, i.Profile, i.OnExpiry
		r.IdleTimeout = i.IdleTimeout
		r.RestoredFrom, r.SnapshotOf, r.SnapshotKind = i.RestoredFrom, i.SnapshotOf, i.SnapshotKind
	}
	r.foldEnd(e)
}

// foldAsked takes over what an event tells of deadlines that are asked for. The
// slice is copied: a record is a value.
func (r *Record) foldAsked(e Event) {
	if e.Until.IsZero() {
		return
	}
	switch e.Type {
	case Extending:
		r.Asked = append(slices.Clone(r.Asked), e.Until)
	case Extended, ExtendDenied:
		if i := slices.IndexFunc(r.Asked, e.Until.Equal); i >= 0 {
			r.Asked = slices.Delete(slices.Clone(r.Asked), i, i+1)
		}
	}
}

// CommittedUntil returns the latest deadline that the sandbox has or may come
// to have by what was asked for.
func (r Record) CommittedUntil() time.Time {
	until := r.Lease.ExpiresAt
	for _, asked := range r.Asked {
		if asked.After(until) {
			until = asked
		}
	}
	return until
}

// foldEnd takes over what an event tells about the end.
func (r *Record) foldEnd(e Event) {
	switch e.Type {
	case Expired, Lost:
		r.EndReason, r.EndMessage = e.Reason, e.Message
	case Adopted, OrphanDetected, Resumed:
		r.EndReason, r.EndMessage = "", "" // it was not the end
	case Snapshotted:
		if e.Reason == ReasonExpiry {
			r.ExpirySnapshotID = e.SnapshotID
		}
	case SnapshotFailed:
		if e.Reason == ReasonExpiry {
			r.ExpirySnapshotError = e.Message
		}
	}
}

// next returns status and openness after an event.
func (r Record) next(e Event) (sdk.Status, bool) {
	if !r.Open {
		// Nothing changes an end but the sight of the thing at the backend:
		// then it was not the end.
		switch e.Type {
		case OrphanDetected, Adopted:
			if e.Status != "" {
				return e.Status, true
			}
			return sdk.StatusDestroying, true
		}
		return r.Status, false
	}
	if r.Kind == KindSnapshot {
		switch e.Type {
		case Snapshotted:
			return sdk.StatusReady, true
		case SnapshotFailed:
			return sdk.StatusFailed, false
		case SnapshotDeleted:
			return sdk.StatusDestroyed, false
		}
	}
	if status := e.Type.Status(); status != "" {
		return status, e.Type != CreateFailed && e.Type != Destroyed
	}
	if (e.Type == Adopted || e.Type == OrphanDetected) && e.Status != "" {
		return e.Status, true
	}
	if r.Status == "" {
		return sdk.StatusCreating, true
	}
	return r.Status, true
}

func kindOf(id string) Kind {
	if strings.HasPrefix(id, sandbox.SnapshotIDPrefix) {
		return KindSnapshot
	}
	return KindSandbox
}
