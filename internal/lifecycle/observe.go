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
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Get returns a sandbox as it is now. One that has ended is returned with
// the status expired, lost, failed or destroyed as long as the ledger (or
// the caller, by ExpiresAt) knows that it was there; [sdk.ErrNotFound] is for
// ids that nobody knows. It changes nothing about the sandbox; an end that it
// is the first to see is written into the ledger.
func (m *Manager) Get(ctx context.Context, id string, opts GetOptions) (Sandbox, error) {
	at, err := m.locate(ctx, id, opts.Backend, opts.Ref, opts.ExpiresAt)
	if err != nil {
		return Sandbox{}, err
	}
	if at.record.Known() && !at.record.Open {
		return viewRecord(at.record), nil
	}
	found, err := m.observe(ctx, at, opts.Batched)
	switch {
	case err == nil:
		view, err := m.view(at, found)
		m.witnessed(ctx, view, err)
		return view, err
	case errors.Is(err, sdk.ErrNotFound):
		view, err := m.ended(at)
		m.witnessed(ctx, view, err)
		return view, err
	case errors.Is(err, sdk.ErrUnreachable) && m.beyondDoubt(ctx, at):
		view := m.lastKnown(at)
		view.Status, view.Reason = sdk.StatusExpired, "its deadline passed on a backend that enforces it"
		view.Unreachable = err.Error()
		return view, nil
	}
	return Sandbox{}, failure("read sandbox", id, at.backend, err)
}

// observe asks the backend for one sandbox.
func (m *Manager) observe(ctx context.Context, at place, batched bool) (sdk.Sandbox, error) {
	if batched {
		list, err := m.lister(at.backend).shared(ctx)
		if err != nil {
			return sdk.Sandbox{}, err
		}
		if found, ok := list.byID[at.id]; ok {
			return found, nil
		}
		// A listing tells of the whole fleet; only what it lacks is asked
		// for by itself.
	}
	ext, err := m.open(ctx, at.backend)
	if err != nil {
		return sdk.Sandbox{}, err
	}
	got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
	return got.Sandbox, err
}

// view joins what the backend said with the ledger's record, and refuses an
// answer about something else.
func (m *Manager) view(at place, found sdk.Sandbox) (Sandbox, error) {
	if found.ID != at.id {
		return Sandbox{}, fmt.Errorf("backend %q answered with sandbox %.40q when asked for %s", at.backend, found.ID, at.id)
	}
	if found.Identity.Fleet != m.settings.Fleet {
		return Sandbox{}, foreign(at.id, found.Identity.Fleet, m.settings.Fleet)
	}
	var record *ledger.Record
	if at.record.Known() {
		record = &at.record
	}
	return viewBackend(at.backend, found, record), nil
}

// lastKnown shows a sandbox that the backend does not tell about.
func (m *Manager) lastKnown(at place) Sandbox {
	if at.record.Known() {
		return viewRecord(at.record)
	}
	return Sandbox{
		ID: at.id, Backend: at.backend, Ref: at.ref, Fleet: m.settings.Fleet, ExpiresAt: at.expiresAt,
		OnExpiry: sdk.OnExpiryDestroy, Labels: map[string]string{}, Endpoints: map[string]string{}, Guards: []sdk.Guard{},
	}
}

// ended shows a sandbox whose absence was observed.
func (m *Manager) ended(at place) (Sandbox, error) {
	if !at.record.Known() && at.expiresAt.IsZero() {
		return Sandbox{}, sdk.Errorf(sdk.ErrNotFound, "sandbox %s is not on backend %q and unknown to the ledger", at.id, at.backend)
	}
	view := m.lastKnown(at)
	passed := !m.clock.Now().Before(at.expiresAt)
	switch {
	case passed:
		view.Status, view.Reason, view.EndReason = sdk.StatusExpired, "its deadline passed", sdk.EndDeadline
	case at.record.Intended && at.record.Ref == "" && at.record.Status == sdk.StatusCreating:
		// The intent is written before the backend is asked: somebody may
		// be asking right now.
		view.Status = sdk.StatusCreating
	case at.record.Status == sdk.StatusLost:
		// The record says how.
	default:
		view.Status, view.Reason, view.EndReason = sdk.StatusLost, "gone from the backend before its deadline, and not by us", sdk.EndGone
	}
	return view, nil
}

// beyondDoubt reports whether a sandbox that can't be asked about has ended
// all the same: long past its deadline, on a backend that enforces deadlines.
func (m *Manager) beyondDoubt(ctx context.Context, at place) bool {
	if at.expiresAt.IsZero() || m.clock.Now().Before(at.expiresAt.Add(m.settings.Budgets.Grace)) {
		return false
	}
	described, err := m.describe(ctx, at.backend)
	return err == nil && described.Capabilities.Of(sdk.FeatureDeadline).Class == sdk.ClassEnforced
}

// List returns the fleet: every backend's listing joined with the ledger. A
// backend that can't be asked is named, and what the ledger knew of it last
// is shown marked as unreachable. An error means that nothing can be told.
func (m *Manager) List(ctx context.Context, opts ListOptions) (ListResult, error) {
	records, unreadable, err := m.ledger.List(ctx, ledger.Filter{Fleet: m.settings.Fleet, Kind: ledger.KindSandbox})
	if err != nil {
		return ListResult{}, fmt.Errorf("list the ledger: %w", err)
	}
	names := m.backends.Names()
	if opts.Backend != "" {
		if !slices.Contains(names, opts.Backend) {
			return ListResult{}, noBackend(opts.Backend, names)
		}
		names = []string{opts.Backend}
	}
	result := ListResult{Sandboxes: []Sandbox{}, Unreachable: map[string]string{}, Untold: map[string][]string{}}
	for _, q := range unreadable {
		result.Unreadable = append(result.Unreadable, fmt.Sprintf("%s: %s", q.Path, q.Reason))
	}
	listings := m.listings(ctx, names, result.Unreachable)
	seen := map[string]bool{}
	byID := make(map[string]*ledger.Record, len(records))
	for i := range records {
		byID[records[i].ID] = &records[i]
	}
	for _, name := range names {
		list, ok := listings[name]
		if !ok {
			continue
		}
		if len(list.unreadable) > 0 {
			result.Untold[name] = slices.Sorted(maps.Keys(list.unreadable))
		}
		for _, found := range list.all {
			if found.Identity.Fleet != m.settings.Fleet || seen[found.ID] {
				continue
			}
			seen[found.ID] = true
			result.Sandboxes = append(result.Sandboxes, viewBackend(name, found, byID[found.ID]))
		}
	}
	for _, record := range records {
		if seen[record.ID] || (opts.Backend != "" && record.Backend != opts.Backend) {
			continue
		}
		if view, show := m.unlisted(record, listings, result.Unreachable, opts.Closed); show {
			result.Sandboxes = append(result.Sandboxes, view)
		}
	}
	result.Sandboxes = slices.DeleteFunc(result.Sandboxes, func(s Sandbox) bool { return !opts.match(s) })
	slices.SortFunc(result.Sandboxes, func(a, b Sandbox) int { return cmp.Compare(a.ID, b.ID) })
	return result, nil
}

// unlisted shows a record that no listing confirmed.
func (m *Manager) unlisted(record ledger.Record, listings map[string]*listing, unreachable map[string]string, closed bool) (Sandbox, bool) {
	if !record.Open {
		return viewRecord(record), closed
	}
	list, asked := listings[record.Backend]
	if asked && list.unreadable[record.ID] {
		view := viewRecord(record)
		view.Unreachable = "it is there, and the backend can't read its own record of it"
		return view, true
	}
	if asked && list.incomplete == "" {
		view, err := m.ended(place{id: record.ID, backend: record.Backend, record: record, expiresAt: record.Lease.ExpiresAt})
		return view, err == nil
	}
	view := viewRecord(record)
	view.Unreachable = cmp.Or(unreachable[record.Backend], fmt.Sprintf("backend %q is not configured here", record.Backend))
	return view, true
}

// listings asks several backends at once. Those that fail, and those whose
// listing may lack something, are named in unreachable.
func (m *Manager) listings(ctx context.Context, names []string, unreachable map[string]string) map[string]*listing {
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[string]*listing{}
	for _, name := range names {
		wg.Go(func() {
			list, err := m.lister(name).fresh(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unreachable[name] = err.Error()
				return
			}
			if list.incomplete != "" {
				unreachable[name] = list.incomplete
			}
			got[name] = list
		})
	}
	wg.Wait()
	return got
}

func (o ListOptions) match(s Sandbox) bool {
	if len(o.Status) > 0 && !slices.Contains(o.Status, s.Status) {
		return false
	}
	if (o.Owner != "" && o.Owner != s.Owner) || (o.Profile != "" && o.Profile != s.Profile) {
		return false
	}
	for _, key := range slices.Collect(maps.Keys(o.Labels)) {
		if value, ok := s.Labels[key]; !ok || value != o.Labels[key] {
			return false
		}
	}
	return true
}

// Events returns the ledger's events of a sandbox or snapshot, oldest first.
func (m *Manager) Events(ctx context.Context, id string) ([]ledger.Event, error) {
	return m.ledger.Events(ctx, id)
}
