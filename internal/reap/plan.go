// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Reaper sweeps one fleet.
type Reaper struct {
	manager *lifecycle.Manager
	ledger  *ledger.Ledger
}

// New returns a reaper. It does nothing until asked.
func New(manager *lifecycle.Manager, l *ledger.Ledger) *Reaper {
	return &Reaper{manager: manager, ledger: l}
}

// The kinds of items.
const (
	KindSandbox  = "sandbox"
	KindSnapshot = "snapshot"
)

// The reasons for which something is selected.
const (
	ReasonExpired    = "expired"    // its deadline has passed, or it was idle for too long
	ReasonUnfinished = "unfinished" // a destroy has begun and not ended
	ReasonRetention  = "retention"  // a snapshot's retention has ended
	// ReasonReappeared is a thing of which the ledger says that it was seen
	// gone, and that a backend lists; in a sweep, one that is also due.
	ReasonReappeared = lifecycle.ReasonReappeared
)

// Item is one thing that a sweep would remove, or that a leak check found.
type Item struct {
	Kind      string    `json:"kind"`
	ID        string    `json:"id"`
	Backend   string    `json:"backend"`
	Profile   string    `json:"profile,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
	Reason    string    `json:"reason"`

	end    sdk.EndReason      // the clock because of which a sandbox is due
	listed *lifecycle.Sandbox // as the plan's listing told of it; nil for others
}

// Options are the options of [Reaper.Plan].
type Options struct {
	Backend string // empty is all
	Max     int    // at most so many items, the longest overdue first; 0 is no bound
}

// Selection is what a sweep will touch: computed once, shown, and only ever
// shrunk.
type Selection struct {
	Fleet string    `json:"fleet"`
	At    time.Time `json:"at"`
	Items []Item    `json:"items"`
	// Postponed counts what is due but over the bound.
	Postponed int `json:"postponed,omitempty"`
	// Unreachable names each backend that could not be asked, or not for
	// everything, and why.
	Unreachable map[string]string `json:"unreachable,omitempty"`
	// Unreadable names broken logs of the ledger, and why.
	Unreadable []string `json:"unreadable,omitempty"`

	seen []lifecycle.Sandbox // for the ledger, when the sweep is run
}

// Plan computes what is due now: sandboxes past their deadline, destroys
// that did not end, snapshots past their retention. It changes nothing.
func (r *Reaper) Plan(ctx context.Context, opts Options) (Selection, error) {
	now := r.manager.Now()
	selection := Selection{Fleet: r.manager.Fleet(), At: now.UTC(), Items: []Item{}, Unreachable: map[string]string{}}
	list, err := r.manager.List(ctx, lifecycle.ListOptions{Backend: opts.Backend})
	if err != nil {
		return selection, fmt.Errorf("plan the sweep: %w", err)
	}
	selection.Unreadable = list.Unreadable
	for name, why := range list.Unreachable {
		selection.Unreachable[name] = why
	}
	for _, s := range list.Sandboxes {
		if s.Unreachable != "" {
			selection.Unreachable[s.Backend] = s.Unreachable
			continue
		}
		if reason := due(s, now); reason != "" {
			selection.Items = append(selection.Items, itemOf(s, reason))
		}
		selection.seen = append(selection.seen, s)
	}
	snapshots, err := r.manager.Snapshots(ctx, lifecycle.ListSnapshotsOptions{Backend: opts.Backend, Missing: true})
	if err != nil {
		return selection, fmt.Errorf("plan the sweep: %w", err)
	}
	for name, why := range snapshots.Unreachable {
		selection.Unreachable[name] = why
	}
	for _, s := range snapshots.Snapshots {
		if !now.Before(s.ExpiresAt) {
			selection.Items = append(selection.Items, itemOfSnapshot(s, ReasonRetention))
		}
	}
	for i, item := range selection.Items {
		// A log that can't be read says nothing about its thing's end.
		if record, err := r.ledger.Get(ctx, item.ID); err == nil && record.Known() && !record.Open {
			selection.Items[i].Reason = ReasonReappeared
		}
	}
	slices.SortFunc(selection.Items, func(a, b Item) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.ID, b.ID))
	})
	if opts.Max > 0 && len(selection.Items) > opts.Max {
		selection.Postponed = len(selection.Items) - opts.Max
		selection.Items = selection.Items[:opts.Max]
	}
	return selection, nil
}

func itemOf(s lifecycle.Sandbox, reason string) Item {
	return Item{Kind: KindSandbox, ID: s.ID, Backend: s.Backend, Profile: s.Profile, Owner: s.Owner, ExpiresAt: s.ExpiresAt, Reason: reason, end: ended(s), listed: &s}
}

func itemOfSnapshot(s lifecycle.Snapshot, reason string) Item {
	return Item{Kind: KindSnapshot, ID: s.ID, Backend: s.Backend, Profile: s.Profile, Owner: s.Owner, ExpiresAt: s.ExpiresAt, Reason: reason}
}

// due returns why a sandbox is to be removed; empty when it is not.
func due(s lifecycle.Sandbox, now time.Time) string {
	switch s.Status {
	case sdk.StatusDestroying:
		// The holder of the claim may have died: whoever comes next goes on.
		return ReasonUnfinished
	case sdk.StatusDestroyed:
		return ""
	case sdk.StatusExpired:
		return ReasonExpired
	}
	if at, _ := s.EndsAt(); !at.IsZero() && !now.Before(at) {
		return ReasonExpired
	}
	return ""
}

// ended returns the clock because of which a sandbox is due.
func ended(s lifecycle.Sandbox) sdk.EndReason {
	_, clock := s.EndsAt()
	return cmp.Or(s.EndReason, clock)
}
