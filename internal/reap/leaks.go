// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"context"

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
	// Overdue are sandboxes past their deadline that are still held open.
	Overdue     []lifecycle.Sandbox `json:"overdue"`
	Unreachable map[string]string   `json:"unreachable,omitempty"`
	Unreadable  []string            `json:"unreadable,omitempty"`
}

// Found reports whether there is any difference, or anything that could not
// be asked.
func (l Leaks) Found() bool {
	return len(l.Unknown)+len(l.Lost)+len(l.Overdue)+len(l.Unreachable)+len(l.Unreadable) > 0
}

// Leaks holds the ledger against the backends. It changes nothing.
func (r *Reaper) Leaks(ctx context.Context, backend string) (Leaks, error) {
	leaks := Leaks{Fleet: r.manager.Fleet(), Unknown: []lifecycle.Sandbox{}, Lost: []lifecycle.Sandbox{}, Overdue: []lifecycle.Sandbox{}}
	list, err := r.manager.List(ctx, lifecycle.ListOptions{Backend: backend})
	if err != nil {
		return leaks, err
	}
	leaks.Unreachable, leaks.Unreadable = list.Unreachable, list.Unreadable
	now := r.manager.Now()
	for _, s := range list.Sandboxes {
		switch {
		case s.Unreachable != "":
		case due(s, now) != "":
			leaks.Overdue = append(leaks.Overdue, s)
		case !s.Known:
			leaks.Unknown = append(leaks.Unknown, s)
		case s.Status == sdk.StatusLost:
			leaks.Lost = append(leaks.Lost, s)
		}
	}
	return leaks, nil
}
