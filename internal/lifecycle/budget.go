// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Bounds are how many sandboxes may be alive at a time, and what they may
// cost together; zero is no bound.
type Bounds struct {
	Fleet int // max_sandboxes
	Owner int // max_sandboxes_per_owner
	Cost  CostBound
}

// oldestShown is how many sandboxes a refusal names.
const oldestShown = 5

// demand is what somebody wants to be alive: a new sandbox, or one that is
// there for longer.
type demand struct {
	id      string // of the one that is there; empty for a new one
	owner   string
	backend string
	profile sdk.Profile
	from    time.Time // of its creation
	until   time.Time // the deadline
}

// withinBounds writes an event if what it announces keeps the fleet, its
// owner and the costs within their bounds. Looking and writing is one step for
// everybody who uses this ledger, so two who come at once never pass a bound
// together.
//
// What counts is what may be alive: every open log of the fleet that no
// listing shows as ended, and what only a backend's listing knows.
func (m *Manager) withinBounds(ctx context.Context, want demand, write func() error) error {
	if !m.bounded(want) {
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
		if err := m.checkBounds(alive, want); err != nil {
			return err
		}
		return write()
	})
}

// bounded reports whether anything can refuse what is wanted. How many are
// alive is no matter of one that is there.
func (m *Manager) bounded(want demand) bool {
	b := m.settings.Bounds
	return b.Cost != (CostBound{}) || profileBound(want.profile) != (CostBound{}) || (want.id == "" && b != (Bounds{}))
}

// alive returns what counts against the bounds, oldest first.
func (m *Manager) alive(ctx context.Context, listings map[string]*listing, before time.Time) ([]living, error) {
	records, unreadable, err := m.ledger.List(ctx, ledger.Filter{Fleet: m.settings.Fleet, Kind: ledger.KindSandbox})
	if err != nil {
		return nil, fmt.Errorf("count the sandboxes of fleet %q: %w", m.settings.Fleet, err)
	}
	for _, log := range unreadable {
		if !log.Quarantined {
			return nil, fmt.Errorf("count the sandboxes of fleet %q: the log %s can't be read: %s", m.settings.Fleet, log.Path, log.Reason)
		}
	}
	found := map[string]living{}
	closed := map[string]ledger.Record{}
	for _, r := range records {
		switch {
		case !r.Open:
			closed[r.ID] = r
		case m.mayLive(r, listings[r.Backend], before):
			found[r.ID] = living{viewRecord(r), r.CommittedUntil()}
		}
	}
	for name, list := range listings {
		for _, s := range list.all {
			r, gone := closed[s.ID]
			// One that was seen gone since is gone.
			if s.Identity.Fleet == m.settings.Fleet && running(s.Status) && (!gone || r.ClosedAt.Before(before)) {
				known, until := found[s.ID], s.Lease.ExpiresAt
				if known.until.After(until) {
					until = known.until // it was asked for since
				}
				found[s.ID] = living{viewBackend(name, s, nil), until}
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b living) int { return strings.Compare(a.ID, b.ID) }), nil
}

// living is a sandbox that may be alive, with the latest deadline that it may
// come to have.
type living struct {
	Sandbox
	until time.Time
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

// checkBounds returns the refusal of what is wanted beside those that are
// alive.
func (m *Manager) checkBounds(alive []living, want demand) error {
	others := slices.DeleteFunc(slices.Clone(alive), func(s living) bool { return s.ID == want.id })
	if want.id == "" {
		if err := m.settings.Bounds.checkNumber(others, want.owner); err != nil {
			return err
		}
	}
	return m.checkCosts(others, want)
}

// checkNumber returns the refusal of one more sandbox of an owner.
func (b Bounds) checkNumber(alive []living, owner string) error {
	if b.Fleet > 0 && len(alive) >= b.Fleet {
		return overBound("max_sandboxes", b.Fleet, "the fleet has", alive)
	}
	own := slices.DeleteFunc(slices.Clone(alive), func(s living) bool { return s.Owner != owner })
	if b.Owner > 0 && len(own) >= b.Owner {
		return overBound("max_sandboxes_per_owner", b.Owner, fmt.Sprintf("the owner %.80q has", owner), own)
	}
	return nil
}

func overBound(setting string, bound int, who string, alive []living) error {
	message := fmt.Sprintf("%s %d sandboxes and %d are allowed", who, len(alive), bound)
	return refuseBound(setting, message, alive)
}

// refuseBound is the refusal by a bound; it names the oldest that take the
// place.
func refuseBound(setting, message string, alive []living) error {
	oldest := make([]string, 0, oldestShown)
	for _, s := range alive[:min(len(alive), oldestShown)] {
		oldest = append(oldest, fmt.Sprintf("%s (%s on %s, until %s)", s.ID, s.Status, s.Backend, s.until.UTC().Format(time.RFC3339)))
	}
	advice := "raise " + setting
	if len(oldest) > 0 {
		message += "; the oldest: " + strings.Join(oldest, ", ")
		advice = "destroy one, wait for a deadline, or " + advice
	}
	return &sdk.Error{Kind: sdk.ErrQuota, Path: setting, Message: message, Advice: advice}
}

// Forecast tells of several sandboxes that are about to be made whether bounds
// would refuse them together. It looks once at what is alive, and promises
// nothing: others come and go until they are made.
type Forecast struct {
	manager *Manager

	mu    sync.Mutex
	alive []living // beside what is wanted, what was wanted before
	known bool
}

// Wanted is a sandbox that a [Forecast] is asked about.
type Wanted struct {
	Backend string
	Profile sdk.Profile
	TTL     time.Duration
	Owner   string // empty is the settings'
}

// Forecast returns a new one.
func (m *Manager) Forecast() *Forecast { return &Forecast{manager: m} }

// Add returns the refusal of a sandbox beside those that are alive and those
// that were added before. It is an [sdk.ErrInvalid] when it would be refused
// with nothing beside it, and an [sdk.ErrQuota] otherwise.
func (f *Forecast) Add(ctx context.Context, w Wanted) error {
	m := f.manager
	now := m.clock.Now()
	want := demand{
		owner: cmp.Or(w.Owner, m.settings.Attribution.Owner), backend: w.Backend, profile: w.Profile,
		from: now, until: now.Add(w.TTL),
	}
	if !m.bounded(want) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(ctx, now); err != nil {
		return err
	}
	err := m.checkBounds(f.alive, want)
	f.alive = append(f.alive, living{Sandbox{
		ID: "planned", Status: sdk.StatusCreating, Backend: want.backend, Owner: want.owner, Profile: want.profile.Name,
		CreatedAt: want.from, document: want.profile,
	}, want.until})
	if alone := m.checkBounds(nil, want); alone != nil {
		var refusal *sdk.Error
		if errors.As(alone, &refusal) {
			refusal.Kind = sdk.ErrInvalid
		}
		return alone
	}
	return err
}

// look finds out what is alive, once.
func (f *Forecast) look(ctx context.Context, now time.Time) error {
	if f.known {
		return nil
	}
	m := f.manager
	alive, err := m.alive(ctx, m.listings(ctx, m.backends.Names(), map[string]string{}), now)
	if err != nil {
		return err
	}
	f.alive, f.known = alive, true
	return nil
}
