// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// place is where a sandbox is, as far as is known before its backend is
// asked.
type place struct {
	id      string
	backend string
	record  ledger.Record // zero when the ledger has none
	// Of the record, else of the caller.
	ref       string
	expiresAt time.Time
}

func (p place) target(fleet string) sdk.Target {
	return sdk.Target{ID: p.id, Ref: p.ref, Fleet: fleet}
}

// locate finds the backend of a sandbox: as the caller says, as the ledger
// says, else by a listing of every backend.
func (m *Manager) locate(ctx context.Context, id, backend, ref string, expiresAt time.Time) (place, error) {
	if err := sandbox.ParseID(id); err != nil {
		return place{}, sdk.Invalid("id", "%s", err)
	}
	record, err := m.record(ctx, id)
	if err != nil {
		return place{}, err
	}
	if record.Known() && record.Fleet != "" && record.Fleet != m.settings.Fleet {
		return place{}, foreign(id, record.Fleet, m.settings.Fleet)
	}
	at := place{id: id, record: record, backend: cmp.Or(backend, record.Backend), ref: cmp.Or(record.Ref, ref), expiresAt: record.Lease.ExpiresAt}
	if at.expiresAt.IsZero() {
		at.expiresAt = expiresAt
	}
	if at.backend != "" {
		return at, nil
	}
	var unreachable []string
	for _, name := range m.backends.Names() {
		found, err := m.lister(name).shared(ctx)
		if err == nil && found.incomplete != "" {
			err = errors.New(found.incomplete)
		}
		if err != nil {
			unreachable = append(unreachable, fmt.Sprintf("backend %q: %s", name, err))
		}
		if found == nil {
			continue
		}
		if _, ok := found.byID[id]; ok {
			at.backend = name
			return at, nil
		}
	}
	if len(unreachable) > 0 {
		return place{}, sdk.Errorf(sdk.ErrUnreachable, "sandbox %s is unknown to the ledger and these backends could not be asked: %s", id, strings.Join(unreachable, "; "))
	}
	return place{}, sdk.Errorf(sdk.ErrNotFound, "sandbox %s is known to neither the ledger nor a backend of fleet %q", id, m.settings.Fleet)
}

// record returns what the ledger knows of an id. A broken log has been moved
// to quarantine: the sandbox is then one that only its backend knows.
func (m *Manager) record(ctx context.Context, id string) (ledger.Record, error) {
	record, err := m.ledger.Get(ctx, id)
	var broken *ledger.BrokenError
	if errors.As(err, &broken) && broken.NotMoved == nil {
		return ledger.Record{}, nil
	}
	if err != nil {
		return ledger.Record{}, fmt.Errorf("read the ledger of %s: %w", id, err)
	}
	return record, nil
}

func foreign(id, fleet, ours string) error {
	return &sdk.Error{
		Kind: sdk.ErrInvalid, Path: "id", Message: fmt.Sprintf("%s belongs to the fleet %q, not to %q", id, fleet, ours),
		Advice: "act for that fleet: SANDBOXER_FLEET, or fleet in the provider block",
	}
}

// open returns the extension of a backend.
func (m *Manager) open(ctx context.Context, backend string) (sdk.Extension, error) {
	ext, err := m.backends.Open(ctx, backend)
	if err != nil {
		return nil, fmt.Errorf("open backend %q: %w", backend, err)
	}
	return ext, nil
}

// failure says which step failed on which object and backend, and keeps the
// error's kind.
func failure(step, id, backend string, err error) error {
	return fmt.Errorf("%s %s on backend %q: %w", step, id, backend, err)
}

// written is what an append leaves: the log as it is then, and what a lease
// record at a backend carries about the event.
type written struct {
	record ledger.Record
	event  sdk.EventRef
}

// append writes an event to the log of an id although the caller's context
// may have ended: what has happened is written down.
func (m *Manager) append(ctx context.Context, id string, e ledger.Event) (written, error) {
	return m.appendIf(ctx, id, e, func(ledger.Record) bool { return true })
}

// appendIf appends an event where holds is true of the log as it then is; else
// it writes nothing.
func (m *Manager) appendIf(ctx context.Context, id string, e ledger.Event, holds func(ledger.Record) bool) (written, error) {
	ctx, cancel := outliving(ctx, m.settings.Budgets.Rollback)
	defer cancel()
	e.Fleet = m.settings.Fleet
	e.Actor = cmp.Or(e.Actor, m.settings.Attribution.Actor)
	e.Run = cmp.Or(e.Run, m.settings.Attribution.Run)
	event, record, err := m.ledger.Append(ctx, id, func(present ledger.Record) (ledger.Event, error) {
		if !holds(present) {
			return ledger.Event{}, nil
		}
		return e, nil
	})
	if err != nil {
		return written{}, fmt.Errorf("write %s to the ledger of %s: %w", e.Type, id, err)
	}
	return written{record: record, event: event.EventRef()}, nil
}
