// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"context"
	"fmt"
	"maps"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Leaks is the difference between the ledger and the backends' own listings,
// in both directions.
type Leaks struct {
	Fleet string `json:"fleet"`
	// Unknown are sandboxes of the fleet that a backend holds and this ledger
	// has no record of: made elsewhere, or their log is lost.
	Unknown []lifecycle.Sandbox `json:"unknown"`
	// Lost are sandboxes that the ledger holds open and the backend does not
	// have, before their deadline.
	Lost []lifecycle.Sandbox `json:"lost"`
	// Reappeared are sandboxes that a backend lists although the ledger says
	// that they were seen gone.
	Reappeared []lifecycle.Sandbox `json:"reappeared"`
	// Overdue are sandboxes past their deadline that are still held open.
	Overdue []lifecycle.Sandbox `json:"overdue"`
	// The same of snapshots.
	UnknownSnapshots []lifecycle.Snapshot `json:"unknown_snapshots"`
	LostSnapshots    []lifecycle.Snapshot `json:"lost_snapshots"`
	OverdueSnapshots []lifecycle.Snapshot `json:"overdue_snapshots"`

	Unreachable map[string]string `json:"unreachable,omitempty"`
	Unreadable  []string          `json:"unreadable,omitempty"`
}

// Found reports whether there is any difference, or anything that could not
// be asked.
func (l Leaks) Found() bool {
	return len(l.Unknown)+len(l.Lost)+len(l.Reappeared)+len(l.Overdue) > 0 ||
		len(l.UnknownSnapshots)+len(l.LostSnapshots)+len(l.OverdueSnapshots) > 0 ||
		len(l.Unreachable)+len(l.Unreadable) > 0
}

// Leaks holds the ledger against the backends. It changes nothing.
func (r *Reaper) Leaks(ctx context.Context, backend string) (Leaks, error) {
	leaks := Leaks{
		Fleet: r.manager.Fleet(), Unreachable: map[string]string{},
		Unknown: []lifecycle.Sandbox{}, Lost: []lifecycle.Sandbox{}, Reappeared: []lifecycle.Sandbox{}, Overdue: []lifecycle.Sandbox{},
		UnknownSnapshots: []lifecycle.Snapshot{}, LostSnapshots: []lifecycle.Snapshot{}, OverdueSnapshots: []lifecycle.Snapshot{},
	}
	closed, err := r.closed(ctx)
	if err != nil {
		return leaks, err
	}
	list, err := r.manager.List(ctx, lifecycle.ListOptions{Backend: backend})
	if err != nil {
		return leaks, err
	}
	maps.Copy(leaks.Unreachable, list.Unreachable)
	leaks.Unreadable = list.Unreadable
	now := r.manager.Now()
	for _, s := range list.Sandboxes {
		switch {
		case s.Unreachable != "":
			leaks.Unreachable[s.Backend] = s.Unreachable
		case closed[s.ID]:
			leaks.Reappeared = append(leaks.Reappeared, s)
		case due(s, now) != "":
			leaks.Overdue = append(leaks.Overdue, s)
		case !s.Known:
			leaks.Unknown = append(leaks.Unknown, s)
		case s.Status == sdk.StatusLost:
			leaks.Lost = append(leaks.Lost, s)
		}
	}
	snapshots, err := r.manager.Snapshots(ctx, lifecycle.ListSnapshotsOptions{Backend: backend, Missing: true})
	if err != nil {
		return leaks, err
	}
	maps.Copy(leaks.Unreachable, snapshots.Unreachable)
	for _, s := range snapshots.Snapshots {
		switch {
		case !now.Before(s.ExpiresAt):
			leaks.OverdueSnapshots = append(leaks.OverdueSnapshots, s)
		case s.Missing && s.Ref == "":
			// Its intent is written before the backend is asked: somebody may
			// be asking right now.
		case s.Missing:
			leaks.LostSnapshots = append(leaks.LostSnapshots, s)
		case !s.Known:
			leaks.UnknownSnapshots = append(leaks.UnknownSnapshots, s)
		}
	}
	return leaks, nil
}

// closed returns the ids whose log says that they were seen gone, as it was
// before the backends are asked: what is destroyed meanwhile has not
// reappeared.
func (r *Reaper) closed(ctx context.Context) (map[string]bool, error) {
	records, _, err := r.ledger.List(ctx, ledger.Filter{Fleet: r.manager.Fleet(), Kind: ledger.KindSandbox})
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
