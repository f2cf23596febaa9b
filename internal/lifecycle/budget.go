// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Bounds are how many sandboxes may be alive at a time; zero is no bound.
type Bounds struct {
	Fleet int // max_sandboxes
	Owner int // max_sandboxes_per_owner
}

// oldestShown is how many sandboxes a refusal names.
const oldestShown = 5

// withinBounds writes an intent if that keeps the fleet and its owner within
// their bounds. Looking and writing is one step for everybody who uses this
// ledger, so two who come at once never pass a bound together.
//
// What counts is what may be alive: every open log of the fleet that no
// listing shows as ended, and what only a backend's listing knows.
func (m *Manager) withinBounds(ctx context.Context, owner string, write func() error) error {
	if m.settings.Bounds == (Bounds{}) {
		return write()
	}
	// The listings are taken before the lock: what they can't show, because it
	// was made since, has a log that is younger.
	before := m.clock.Now()
	listings := m.listings(ctx, m.backends.Names(), map[string]string{})
	return m.ledger.Exclusive(ctx, func() error {
		alive, err := m.alive(ctx, listings, before)
		if err != nil {
			return err
		}
		if err := m.settings.Bounds.check(alive, 1, owner); err != nil {
			return err
		}
		return write()
	})
}

// alive returns what counts against the bounds, oldest first.
func (m *Manager) alive(ctx context.Context, listings map[string]*listing, before time.Time) ([]Sandbox, error) {
	records, unreadable, err := m.ledger.List(ctx, ledger.Filter{Fleet: m.settings.Fleet, Kind: ledger.KindSandbox})
	if err != nil {
		return nil, fmt.Errorf("count the sandboxes of fleet %q: %w", m.settings.Fleet, err)
	}
	for _, log := range unreadable {
		if !log.Quarantined {
			return nil, fmt.Errorf("count the sandboxes of fleet %q: the log %s can't be read: %s", m.settings.Fleet, log.Path, log.Reason)
		}
	}
	found := map[string]Sandbox{}
	closed := map[string]ledger.Record{}
	for _, r := range records {
		switch {
		case !r.Open:
			closed[r.ID] = r
		case m.mayLive(r, listings[r.Backend], before):
			found[r.ID] = viewRecord(r)
		}
	}
	for name, list := range listings {
		for _, s := range list.all {
			r, gone := closed[s.ID]
			// One that was seen gone since is gone.
			if s.Identity.Fleet == m.settings.Fleet && running(s.Status) && (!gone || r.ClosedAt.Before(before)) {
				found[s.ID] = viewBackend(name, s, nil)
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Sandbox) int { return strings.Compare(a.ID, b.ID) }), nil
}

// mayLive reports whether a sandbox with an open log may be alive. A backend
// that can't be asked lets it be, until its deadline.
func (m *Manager) mayLive(r ledger.Record, list *listing, before time.Time) bool {
	if list != nil && list.incomplete == "" {
		found, listed := list.byID[r.ID]
		switch {
		case listed:
			return running(found.Status)
		case list.unreadable[r.ID]:
			return true
		case r.LastTime.Before(before) && r.Ref != "":
			return false // it should have been there to be seen
		}
	}
	return m.clock.Now().Before(r.Lease.ExpiresAt)
}

// running reports whether a sandbox takes a place.
func running(status sdk.Status) bool {
	switch status {
	case sdk.StatusExpired, sdk.StatusLost, sdk.StatusDestroyed:
		return false
	}
	return true
}

// check returns the refusal of so many more sandboxes of an owner beside those
// that are alive.
func (b Bounds) check(alive []Sandbox, more int, owner string) error {
	if b.Fleet > 0 && len(alive)+more > b.Fleet {
		return overBound("max_sandboxes", b.Fleet, "the fleet has", alive)
	}
	own := slices.DeleteFunc(slices.Clone(alive), func(s Sandbox) bool { return s.Owner != owner })
	if b.Owner > 0 && len(own)+more > b.Owner {
		return overBound("max_sandboxes_per_owner", b.Owner, fmt.Sprintf("the owner %.80q has", owner), own)
	}
	return nil
}

func overBound(setting string, bound int, who string, alive []Sandbox) error {
	oldest := make([]string, 0, oldestShown)
	for _, s := range alive[:min(len(alive), oldestShown)] {
		oldest = append(oldest, fmt.Sprintf("%s (%s on %s, until %s)", s.ID, s.Status, s.Backend, s.ExpiresAt.UTC().Format(time.RFC3339)))
	}
	message := fmt.Sprintf("%s %d sandboxes and %d are allowed", who, len(alive), bound)
	if len(oldest) > 0 {
		message += "; the oldest: " + strings.Join(oldest, ", ")
	}
	return &sdk.Error{Kind: sdk.ErrQuota, Path: setting, Message: message, Advice: "destroy one, wait for a deadline, or raise " + setting}
}

// CheckBounds tells whether so many more sandboxes of an owner would be
// refused as things are. It promises nothing: others come and go until they are
// made.
func (m *Manager) CheckBounds(ctx context.Context, more int, owner string) error {
	if m.settings.Bounds == (Bounds{}) {
		return nil
	}
	before := m.clock.Now()
	alive, err := m.alive(ctx, m.listings(ctx, m.backends.Names(), map[string]string{}), before)
	if err != nil {
		return err
	}
	return m.settings.Bounds.check(alive, more, cmp.Or(owner, m.settings.Attribution.Owner))
}
