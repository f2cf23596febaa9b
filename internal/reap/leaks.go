// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The differences that a leak check finds, beside [ReasonReappeared].
const (
	// ReasonUnknown is a thing of the fleet that a backend holds and this
	// ledger has no record of: made elsewhere, or its log is lost.
	ReasonUnknown = "unknown"
	// ReasonLost is a thing that the ledger holds open and the backend does
	// not have, before its deadline.
	ReasonLost = "lost"
	// ReasonOverdue is a thing past its deadline or retention, or whose
	// destroy has begun and not ended.
	ReasonOverdue = "overdue"
)

// Leaks is the difference between the ledger and the backends' own listings,
// in both directions.
type Leaks struct {
	Fleet string `json:"fleet"`
	// Items are what differs; the reason of each says how.
	Items []Item `json:"items"`
	// Unreachable names each backend that could not be asked, or not for
	// everything, and why.
	Unreachable map[string]string `json:"unreachable,omitempty"`
	// Unreadable names broken logs of the ledger, and why.
	Unreadable []string `json:"unreadable,omitempty"`
	// Untold are the ids of what a backend holds and can't tell about, by
	// backend.
	Untold map[string][]string `json:"untold,omitempty"`
}

// Clean reports whether there is no difference, and nothing that could not be
// asked.
func (l Leaks) Clean() bool {
	return len(l.Items)+len(l.Unreachable)+len(l.Unreadable)+len(l.Untold) == 0
}

// Leaks holds the ledger against the listings of one backend, or of all when
// none is named. It changes nothing.
func (r *Reaper) Leaks(ctx context.Context, backend string) (Leaks, error) {
	leaks := Leaks{Fleet: r.manager.Fleet(), Items: []Item{}, Unreachable: map[string]string{}}
	closed, err := r.closed(ctx)
	if err != nil {
		return leaks, err
	}
	list, err := r.manager.List(ctx, lifecycle.ListOptions{Backend: backend})
	if err != nil {
		return leaks, err
	}
	maps.Copy(leaks.Unreachable, list.Unreachable)
	leaks.Unreadable, leaks.Untold = list.Unreadable, list.Untold
	for _, s := range list.Sandboxes {
		if s.Unreachable != "" {
			leaks.Unreachable[s.Backend] = s.Unreachable
			continue
		}
		if reason := r.leaking(s, closed); reason != "" {
			leaks.Items = append(leaks.Items, itemOf(s, reason))
		}
	}
	snapshots, err := r.manager.Snapshots(ctx, lifecycle.ListSnapshotsOptions{Backend: backend, Missing: true})
	if err != nil {
		return leaks, err
	}
	maps.Copy(leaks.Unreachable, snapshots.Unreachable)
	for _, s := range snapshots.Snapshots {
		if reason := r.leakingSnapshot(s, closed); reason != "" {
			leaks.Items = append(leaks.Items, itemOfSnapshot(s, reason))
		}
	}
	slices.SortFunc(leaks.Items, func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
	return leaks, nil
}

// leaking returns how a sandbox differs from what it should be; empty when it
// does not.
func (r *Reaper) leaking(s lifecycle.Sandbox, closed map[string]bool) string {
	switch {
	case closed[s.ID]:
		return ReasonReappeared
	case due(s, r.manager.Now()) != "":
		return ReasonOverdue
	case !s.Known:
		return ReasonUnknown
	case s.Status == sdk.StatusLost:
		return ReasonLost
	}
	return ""
}

// leakingSnapshot is [Reaper.leaking] of a snapshot.
func (r *Reaper) leakingSnapshot(s lifecycle.Snapshot, closed map[string]bool) string {
	switch {
	case closed[s.ID]:
		return ReasonReappeared
	case !r.manager.Now().Before(s.ExpiresAt):
		return ReasonOverdue
	case s.Missing && s.Ref == "":
		// Its intent is written before the backend is asked: somebody may
		// be asking right now.
		return ""
	case s.Missing:
		return ReasonLost
	case !s.Known:
		return ReasonUnknown
	}
	return ""
}

// closed returns the ids whose log says that they were seen gone, as it was
// before the backends are asked: what is destroyed meanwhile has not
// reappeared.
func (r *Reaper) closed(ctx context.Context) (map[string]bool, error) {
	records, _, err := r.ledger.List(ctx, ledger.Filter{Fleet: r.manager.Fleet()})
	if err != nil {
		return nil, fmt.Errorf("list the ledger: %w", err)
	}
	closed := map[string]bool{}
	for _, record := range records {
		if !record.Open {
			closed[record.ID] = true
		}
	}
	return closed, nil
}
