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
	return m.Remove(ctx, id, opts).Confirm(ctx)
}

// Removal is a sandbox that its backend was asked to remove. It is destroyed
// when [Removal.Confirm] has seen that it is gone, and until then the ledger
// says that somebody is about to destroy it.
type Removal struct {
	manager *Manager
	ext     sdk.Extension // nil when the end is known already: result and err
	at      place
	since   int64 // listings that began later show the removal
	close   bool  // the ledger is to hear of the end
	reason  string

	result DestroyResult
	err    error
}

// Remove is the first half of [Manager.Destroy]: it takes the lease and has
// the backend remove the sandbox. Whoever removes many confirms all of them
// afterwards, so that one listing shows it for all.
func (m *Manager) Remove(ctx context.Context, id string, opts DestroyOptions) *Removal {
	r := &Removal{manager: m, result: DestroyResult{ID: id}, reason: opts.Reason}
	ended, err := r.begin(ctx, opts)
	if ended || err != nil {
		r.ext, r.err = nil, err
	}
	return r
}

// Confirm is the second half of [Manager.Destroy]: it returns when the absence
// of the sandbox was observed.
func (r *Removal) Confirm(ctx context.Context) (DestroyResult, error) {
	if r.ext == nil {
		return r.result, r.err
	}
	m := r.manager
	if err := m.awaitGone(ctx, r.ext, r.at, r.since); err != nil {
		return r.result, r.failed(ctx, err)
	}
	if !r.close {
		return r.result, nil
	}
	_, err := m.append(ctx, r.at.id, ledger.Event{Type: ledger.Destroyed, Reason: cmp.Or(r.reason, "user")})
	return r.result, err
}

// failed writes down that a destroy did not come to its end.
func (r *Removal) failed(ctx context.Context, err error) error {
	_, logErr := r.manager.append(ctx, r.at.id, ledger.Event{Type: ledger.DestroyFailed, Reason: reasonOf(err), Message: err.Error()})
	return errors.Join(failure("destroy sandbox", r.at.id, r.at.backend, err), logErr)
}

// begin removes the sandbox and returns whether its end is known by then.
func (r *Removal) begin(ctx context.Context, opts DestroyOptions) (ended bool, err error) {
	m, id := r.manager, r.result.ID
	at, err := m.locate(ctx, id, opts.Backend, opts.Ref, opts.ExpiresAt)
	if errors.Is(err, sdk.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	r.result.Backend = at.backend
	if at.record.Known() && !at.record.Open && at.record.Reason != reasonUnverifiable {
		at.record, err = m.reappeared(ctx, at)
		if err != nil || !at.record.Open {
			return true, err
		}
	}
	r.ext, err = m.open(ctx, at.backend)
	if err != nil {
		r.result, err = m.unasked(ctx, at, r.result, opts, err)
		return true, err
	}
	found, err := m.seen(ctx, r.ext, at, opts.Listed)
	switch {
	case err == nil:
		view, err := m.view(at, found)
		m.witnessed(ctx, view, err)
		if err != nil {
			return true, err
		}
		at.ref = cmp.Or(at.ref, found.Ref)
		if err := m.claim(ctx, r.ext, at, found, opts); err != nil {
			return true, err
		}
	case errors.Is(err, sdk.ErrNotFound):
		// What is left of it may still carry its label.
		if opts.OnlyExpired && at.record.Open && at.record.Status != sdk.StatusDestroying && m.clock.Now().Before(at.expiresAt) {
			return true, sdk.Errorf(sdk.ErrConflict, "the deadline of sandbox %s is at %s and has not passed", id, at.expiresAt.UTC().Format(time.RFC3339))
		}
		if at.record.Known() {
			if _, err := m.append(ctx, id, ledger.Event{Type: ledger.Destroying, Reason: opts.Reason}); err != nil {
				return true, err
			}
		}
	default:
		r.result, err = m.unasked(ctx, at, r.result, opts, err)
		return true, err
	}
	r.at, r.close = at, at.record.Known() || found.ID != ""
	removed, since, err := m.removeAll(ctx, r.ext, at)
	r.since, r.result.Existed, r.result.Removed = since, removed.Existed, removed.Removed
	if err != nil {
		return true, r.failed(ctx, err)
	}
	return false, nil
}

// seen returns what the backend tells of a sandbox: what a listing told a
// moment ago where that is enough, since a claim is refused when the lease has
// changed meanwhile.
func (m *Manager) seen(ctx context.Context, ext sdk.Extension, at place, listed *Sandbox) (sdk.Sandbox, error) {
	if listed != nil && listed.found.ID == at.id && listed.Backend == at.backend {
		described, err := m.describe(ctx, at.backend)
		if err == nil && described.Capabilities.Of(sdk.FeatureClaim).Class == sdk.ClassEnforced {
			return listed.found, nil
		}
	}
	got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
	return got.Sandbox, err
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
	_, since, err := m.removeAll(ctx, ext, at)
	if err != nil {
		return err
	}
	return m.awaitGone(ctx, ext, at, since)
}

// removeAll destroys at the backend. A listing that began later than the epoch
// that it returns shows what is left.
func (m *Manager) removeAll(ctx context.Context, ext sdk.Extension, at place) (result sdk.DestroyResult, since int64, err error) {
	lister := m.lister(at.backend)
	lister.invalidate()
	result, err = ext.Destroy(ctx, sdk.DestroyOptions{Target: at.target(m.settings.Fleet)})
	since = lister.invalidate()
	if err != nil && !errors.Is(err, sdk.ErrNotFound) {
		if len(result.Leftovers) > 0 {
			err = fmt.Errorf("%w; left: %s", err, strings.Join(result.Leftovers, ", "))
		}
		return result, since, err
	}
	if len(result.Leftovers) > 0 {
		return result, since, fmt.Errorf("left: %s", strings.Join(result.Leftovers, ", "))
	}
	return result, since, nil
}

// awaitGone returns when the sandbox is neither found by its ref nor listed,
// in a listing that began after an epoch.
func (m *Manager) awaitGone(ctx context.Context, ext sdk.Extension, at place, since int64) error {
	lister := m.lister(at.backend)
	return m.awaitAbsence(ctx, absence{
		find: func() (string, error) {
			got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
			return fmt.Sprintf(", with the status %s", got.Sandbox.Status), err
		},
		list: func() (listed bool, incomplete string, err error) {
			list, err := lister.wait(ctx, since)
			if err != nil {
				return false, "", err
			}
			since = lister.invalidate() // of the next look
			_, listed = list.byID[at.id]
			return listed || list.unreadable[at.id], list.incomplete, nil
		},
	})
}

// absence is how a thing is looked for whose absence must be observed.
type absence struct {
	// find asks for the thing itself; what it adds is told when it is there.
	find func() (detail string, err error)
	// list looks for it in a listing that began after it was removed.
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
