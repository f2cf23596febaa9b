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
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// claimTries bounds how often a claim is repeated against extenders.
	claimTries = 8
	// goneTries bounds how often absence is looked for; a backend's listing
	// may lag behind.
	goneTries = 10
)

// reasonUnverifiable closes a log whose sandbox could not be seen gone. A
// later destroy asks again.
const reasonUnverifiable = "unverifiable"

// Destroy removes a sandbox and returns when its absence was observed, by
// ref and in the backend's listing. It succeeds from every status, also when
// nothing is there any more; what was seen gone once and is listed again is
// removed again. An unreachable backend is an error, except for
// a sandbox whose deadline has passed long ago on a backend that enforces it, and
// where the caller chooses to forget.
func (m *Manager) Destroy(ctx context.Context, id string, opts DestroyOptions) (DestroyResult, error) {
	result := DestroyResult{ID: id}
	at, err := m.locate(ctx, id, opts.Backend, opts.Ref, opts.ExpiresAt)
	if errors.Is(err, sdk.ErrNotFound) {
		return result, nil
	}
	if err != nil {
		return result, err
	}
	result.Backend = at.backend
	if at.record.Known() && !at.record.Open && at.record.Reason != reasonUnverifiable {
		at.record, err = m.reappeared(ctx, at)
		if err != nil || !at.record.Open {
			return result, err
		}
	}
	ext, err := m.open(ctx, at.backend)
	if err != nil {
		return m.unasked(ctx, at, result, opts, err)
	}
	got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
	switch {
	case err == nil:
		view, err := m.view(at, got.Sandbox)
		m.witnessed(ctx, view, err)
		if err != nil {
			return result, err
		}
		at.ref = cmp.Or(at.ref, got.Sandbox.Ref)
		if err := m.claim(ctx, ext, at, got.Sandbox, opts); err != nil {
			return result, err
		}
	case errors.Is(err, sdk.ErrNotFound):
		// What is left of it may still carry its label.
		if opts.OnlyExpired && at.record.Open && at.record.Status != sdk.StatusDestroying && m.clock.Now().Before(at.expiresAt) {
			return result, sdk.Errorf(sdk.ErrConflict, "the deadline of sandbox %s is at %s and has not passed", id, at.expiresAt.UTC().Format(time.RFC3339))
		}
		if at.record.Known() {
			if _, err := m.append(ctx, id, ledger.Event{Type: ledger.Destroying, Reason: opts.Reason}); err != nil {
				return result, err
			}
		}
	default:
		return m.unasked(ctx, at, result, opts, err)
	}
	removed, err := m.removeAll(ctx, ext, at)
	result.Existed, result.Removed = removed.Existed, removed.Removed
	if err != nil {
		_, logErr := m.append(ctx, id, ledger.Event{Type: ledger.DestroyFailed, Reason: reasonOf(err), Message: err.Error()})
		return result, errors.Join(failure("destroy sandbox", id, at.backend, err), logErr)
	}
	if at.record.Known() || got.Sandbox.ID != "" {
		_, err = m.append(ctx, id, ledger.Event{Type: ledger.Destroyed, Reason: cmp.Or(opts.Reason, "user")})
	}
	return result, err
}

// reappeared opens the log of a sandbox again that was seen gone and that its
// backend lists all the same; one that it does not list stays closed. A
// backend that can't be asked changes nothing about what was seen.
func (m *Manager) reappeared(ctx context.Context, at place) (ledger.Record, error) {
	list, err := m.lister(at.backend).fresh(ctx)
	if err != nil {
		return at.record, nil //nolint:nilerr // its absence was observed before
	}
	if _, listed := list.byID[at.id]; !listed {
		return at.record, nil
	}
	return m.reopen(ctx, at.id, at.backend)
}

// reopen writes down that a thing is there although it was seen gone.
func (m *Manager) reopen(ctx context.Context, id, backend string) (ledger.Record, error) {
	orphan, err := m.append(ctx, id, ledger.Event{
		Type: ledger.OrphanDetected, Backend: backend, Reason: ReasonReappeared, Message: "the backend lists it although it was seen gone",
	})
	return orphan.record, err
}

// unasked ends a destroy whose backend could not be asked.
func (m *Manager) unasked(ctx context.Context, at place, result DestroyResult, opts DestroyOptions, cause error) (DestroyResult, error) {
	if !errors.Is(cause, sdk.ErrUnreachable) {
		return result, failure("destroy sandbox", at.id, at.backend, cause)
	}
	if m.beyondDoubt(ctx, at) {
		result.Unverifiable = cause.Error()
		if !at.record.Known() {
			return result, nil
		}
		_, err := m.append(ctx, at.id, ledger.Event{Type: ledger.Destroyed, Reason: reasonUnverifiable, Message: cause.Error()})
		return result, err
	}
	if cmp.Or(opts.OnUnreachable, m.settings.OnUnreachable) != UnreachableForget {
		return result, failure("destroy sandbox", at.id, at.backend, cause)
	}
	result.Forgotten = cause.Error()
	return result, m.forget(ctx, at.id, at, opts.Reason, cause)
}

// forget writes down that a thing was given up whose backend can't be asked.
// Its log stays open, also where it begins with this: a sweep goes on with the
// destroy when the backend is there again.
func (m *Manager) forget(ctx context.Context, id string, at place, reason string, cause error) error {
	forgotten := ledger.Event{Type: ledger.Forgotten, Backend: at.backend, Ref: at.ref, Reason: reason, Message: cause.Error()}
	if !at.record.Known() && !at.expiresAt.IsZero() {
		forgotten.Lease = &sdk.Lease{ExpiresAt: at.expiresAt, MaxExpiresAt: at.expiresAt, Generation: 1}
	}
	_, err := m.append(ctx, id, forgotten)
	return err
}

// claim takes the lease, so that nobody extends what is being destroyed, and
// writes that the destroy has begun.
func (m *Manager) claim(ctx context.Context, ext sdk.Extension, at place, found sdk.Sandbox, opts DestroyOptions) error {
	claiming := ledger.Event{Type: ledger.Claiming, Backend: at.backend, Ref: at.ref, Reason: opts.Reason, Intent: intentOf(at, found)}
	asked, err := m.append(ctx, at.id, claiming)
	if err != nil {
		return err
	}
	lease := found.Lease
	for range claimTries {
		granted, err := ext.Claim(ctx, sdk.ClaimOptions{
			Target: at.target(m.settings.Fleet), Generation: lease.Generation, Holder: cmp.Or(m.settings.Attribution.Actor, "sandboxer"),
			OnlyExpired: opts.OnlyExpired, Event: asked.event,
		})
		var conflict *sdk.Error
		switch {
		case err == nil:
			_, err = m.append(ctx, at.id, ledger.Event{Type: ledger.Destroying, Reason: opts.Reason, Lease: &granted.Lease})
			return err
		case errors.Is(err, sdk.ErrNotFound), errors.Is(err, sdk.ErrUnsupported):
			_, err = m.append(ctx, at.id, ledger.Event{Type: ledger.Destroying, Reason: opts.Reason})
			return err
		case errors.Is(err, sdk.ErrConflict) && errors.As(err, &conflict) && conflict.Lease != nil && conflict.Lease.Generation != lease.Generation:
			// Somebody extended in between. A reaper's claim is refused by
			// the backend when the new deadline has not passed.
			lease = *conflict.Lease
		default:
			return failure("claim sandbox", at.id, at.backend, err)
		}
	}
	return failure("claim sandbox", at.id, at.backend, sdk.Conflict(lease, "its lease changed %d times meanwhile", claimTries))
}

// remove destroys at the backend and observes absence.
func (m *Manager) remove(ctx context.Context, ext sdk.Extension, at place) error {
	_, err := m.removeAll(ctx, ext, at)
	return err
}

func (m *Manager) removeAll(ctx context.Context, ext sdk.Extension, at place) (sdk.DestroyResult, error) {
	m.lister(at.backend).invalidate()
	result, err := ext.Destroy(ctx, sdk.DestroyOptions{Target: at.target(m.settings.Fleet)})
	m.lister(at.backend).invalidate()
	if err != nil && !errors.Is(err, sdk.ErrNotFound) {
		if len(result.Leftovers) > 0 {
			err = fmt.Errorf("%w; left: %s", err, strings.Join(result.Leftovers, ", "))
		}
		return result, err
	}
	if len(result.Leftovers) > 0 {
		return result, fmt.Errorf("left: %s", strings.Join(result.Leftovers, ", "))
	}
	return result, m.awaitGone(ctx, ext, at)
}

// awaitGone returns when the sandbox is neither found by its ref nor listed.
func (m *Manager) awaitGone(ctx context.Context, ext sdk.Extension, at place) error {
	return m.awaitAbsence(ctx, absence{
		find: func() (string, error) {
			got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
			return fmt.Sprintf(", with the status %s", got.Sandbox.Status), err
		},
		list: func() (listed bool, incomplete string, err error) {
			list, err := m.lister(at.backend).fresh(ctx)
			if err != nil {
				return false, "", err
			}
			_, listed = list.byID[at.id]
			return listed || list.unreadable[at.id], list.incomplete, nil
		},
	})
}

// absence is how a thing is looked for whose absence must be observed.
type absence struct {
	// find asks for the thing itself; what it adds is told when it is there.
	find func() (detail string, err error)
	// list looks for it in a listing that began after the call.
	list func() (listed bool, incomplete string, err error)
}

// awaitAbsence returns when a thing is neither found nor listed. One "not
// found" alone proves nothing: a backend may answer it for a thing that its
// listing still shows.
func (m *Manager) awaitAbsence(ctx context.Context, a absence) error {
	var still error
	for try := range goneTries {
		if try > 0 {
			if err := m.clock.Sleep(ctx, pollEvery); err != nil {
				return errors.Join(still, err)
			}
		}
		detail, err := a.find()
		if err == nil {
			still = errors.New("the backend still has it" + detail)
			continue
		}
		if !errors.Is(err, sdk.ErrNotFound) {
			return fmt.Errorf("its absence could not be observed: %w", err)
		}
		listed, incomplete, err := a.list()
		if err != nil {
			return fmt.Errorf("its absence could not be observed: %w", err)
		}
		if listed {
			still = errors.New("the backend's listing still shows it")
			continue
		}
		if incomplete != "" {
			return fmt.Errorf("its absence could not be observed: the listing is incomplete: %s", incomplete)
		}
		return nil
	}
	return still
}
