// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// leaseTries bounds how often a change of a lease is repeated when somebody
// else changed it in between.
const leaseTries = 8

// Extend moves a deadline later and returns the sandbox with what was
// granted. It never shortens: a ttl that ends before the present deadline
// changes nothing. More than the maximum is refused on ttl, unless AllowLess
// accepts what is left.
func (m *Manager) Extend(ctx context.Context, id string, opts ExtendOptions) (Sandbox, error) {
	set := 0
	for _, given := range []bool{opts.TTL > 0, opts.By > 0, !opts.To.IsZero()} {
		if given {
			set++
		}
	}
	if set != 1 {
		return Sandbox{}, sdk.Invalid("ttl", "exactly one of ttl, by and to is wanted")
	}
	return m.change(ctx, id, opts.Backend, leaseChange{
		before: ledger.Extending, after: ledger.Extended, denied: ledger.ExtendDenied, reason: opts.Reason,
		want: func(now time.Time, lease sdk.Lease) (time.Time, error) {
			until := opts.To
			switch {
			case lease.Expired(now):
				return until, sdk.Expired(lease, "the deadline passed at %s", lease.ExpiresAt.UTC().Format(time.RFC3339))
			case opts.TTL > 0:
				until = now.Add(opts.TTL)
			case opts.By > 0:
				until = lease.ExpiresAt.Add(opts.By)
			case until.Before(lease.ExpiresAt):
				return until, &sdk.Error{Kind: sdk.ErrInvalid, Path: "to", Message: fmt.Sprintf("%s is before the present deadline %s", until.UTC().Format(time.RFC3339), lease.ExpiresAt.UTC().Format(time.RFC3339)),
					Advice: "extend never shortens; expire does"}
			}
			if until.After(lease.MaxExpiresAt) && !opts.AllowLess {
				return until, &sdk.Error{Kind: sdk.ErrInvalid, Path: "ttl", Lease: &lease,
					Message: fmt.Sprintf("the deadline %s is past the maximum %s of this sandbox", until.UTC().Format(time.RFC3339), lease.MaxExpiresAt.UTC().Format(time.RFC3339)),
					Advice:  "ask for less, or make a new sandbox from a snapshot"}
			}
			return until, nil
		},
		needed: func(until time.Time, lease sdk.Lease) bool { return until.After(lease.ExpiresAt) },
		call: func(ctx context.Context, ext sdk.Extension, target sdk.Target, generation int64, until time.Time, event sdk.EventRef) (sdk.Lease, error) {
			result, err := ext.Extend(ctx, sdk.ExtendOptions{Target: target, Generation: generation, ExpiresAt: until, Event: event})
			return result.Lease, err
		},
		enough: func(until time.Time, granted sdk.Lease) error {
			if granted.ExpiresAt.Before(until) && !opts.AllowLess {
				return &sdk.Error{Kind: sdk.ErrQuota, Path: "ttl", Lease: &granted,
					Message: fmt.Sprintf("the backend granted %s, less than the %s asked for", granted.ExpiresAt.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))}
			}
			return nil
		},
	})
}

// Expire moves a deadline earlier, down to now. A deadline that is earlier
// already stays.
func (m *Manager) Expire(ctx context.Context, id string, opts ExpireOptions) (Sandbox, error) {
	return m.change(ctx, id, opts.Backend, leaseChange{
		before: ledger.Shortening, after: ledger.Shortened, denied: ledger.ExtendDenied, reason: opts.Reason,
		want: func(now time.Time, _ sdk.Lease) (time.Time, error) {
			if opts.At.Before(now) {
				return now, nil
			}
			return opts.At, nil
		},
		needed: func(until time.Time, lease sdk.Lease) bool { return until.Before(lease.ExpiresAt) && !lease.Claimed },
		call: func(ctx context.Context, ext sdk.Extension, target sdk.Target, generation int64, until time.Time, event sdk.EventRef) (sdk.Lease, error) {
			result, err := ext.Expire(ctx, sdk.ExpireOptions{Target: target, Generation: generation, ExpiresAt: until, Event: event})
			return result.Lease, err
		},
		enough: func(time.Time, sdk.Lease) error { return nil },
	})
}

// leaseChange is what extend and expire differ in.
type leaseChange struct {
	before, after, denied ledger.Type
	reason                string
	// want returns the deadline to ask for, given the present lease.
	want func(now time.Time, lease sdk.Lease) (time.Time, error)
	// needed reports whether asking would change anything.
	needed func(until time.Time, lease sdk.Lease) bool
	call   func(ctx context.Context, ext sdk.Extension, target sdk.Target, generation int64, until time.Time, event sdk.EventRef) (sdk.Lease, error)
	// enough judges what was granted.
	enough func(until time.Time, granted sdk.Lease) error
}

// change moves a deadline by compare-and-swap on the lease's generation. The
// event that asks is in the ledger before the backend is asked, and the
// lease record at the backend refers to it.
func (m *Manager) change(ctx context.Context, id, backend string, c leaseChange) (Sandbox, error) {
	at, err := m.locate(ctx, id, backend, "", time.Time{})
	if err != nil {
		return Sandbox{}, err
	}
	if at.record.Known() && !at.record.Open {
		view := viewRecord(at.record)
		return view, sdk.Expired(at.record.Lease, "sandbox %s has ended: its status is %s", id, view.Status)
	}
	ext, err := m.open(ctx, at.backend)
	if err != nil {
		return Sandbox{}, err
	}
	for range leaseTries {
		got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
		if err != nil {
			return Sandbox{}, failure("read sandbox", id, at.backend, err)
		}
		view, err := m.view(at, got.Sandbox)
		if err != nil {
			return view, err
		}
		until, err := c.want(m.clock.Now(), got.Sandbox.Lease)
		if err != nil {
			return view, failure("change the deadline of sandbox", id, at.backend, err)
		}
		if !c.needed(until, got.Sandbox.Lease) && view.Alive() {
			return view, nil
		}
		asking := ledger.Event{Type: c.before, Backend: at.backend, Ref: got.Sandbox.Ref, Reason: c.reason, Until: until.UTC(), Intent: intentOf(at, got.Sandbox)}
		var asked written
		write := func() (err error) {
			asked, err = m.append(ctx, id, asking)
			return err
		}
		if c.needed(until, got.Sandbox.Lease) && until.After(got.Sandbox.Lease.ExpiresAt) {
			want := demand{id: id, owner: view.Owner, backend: at.backend, profile: view.document, from: view.CreatedAt, until: until}
			err = m.withinBounds(ctx, want, write)
		} else {
			err = write()
		}
		if err != nil {
			return view, failure("change the deadline of sandbox", id, at.backend, err)
		}
		granted, err := c.call(ctx, ext, at.target(m.settings.Fleet), got.Sandbox.Lease.Generation, until, asked.event)
		m.lister(at.backend).invalidate()
		if err == nil {
			if _, err := m.append(ctx, id, ledger.Event{Type: c.after, Lease: &granted, Until: asking.Until}); err != nil {
				return view, err
			}
			view.ExpiresAt, view.MaxExpiresAt, view.Generation = granted.ExpiresAt, granted.MaxExpiresAt, granted.Generation
			return view, c.enough(until, granted)
		}
		if _, logErr := m.append(ctx, id, ledger.Event{Type: c.denied, Until: asking.Until, Reason: reasonOf(err), Message: err.Error()}); logErr != nil {
			return view, errors.Join(err, logErr)
		}
		if !errors.Is(err, sdk.ErrConflict) {
			return view, failure("change the deadline of sandbox", id, at.backend, err)
		}
	}
	return Sandbox{}, failure("change the deadline of sandbox", id, at.backend, sdk.Errorf(sdk.ErrConflict, "its lease changed %d times meanwhile", leaseTries))
}

// intentOf gives a sandbox that was made elsewhere a log here that can stand
// by itself.
func intentOf(at place, found sdk.Sandbox) *ledger.Intent {
	if at.record.Known() && at.record.Identity.ID != "" {
		return nil
	}
	return &ledger.Intent{Fleet: found.Identity.Fleet, Identity: found.Identity, Profile: found.Profile, OnExpiry: cmp.Or(found.OnExpiry, sdk.OnExpiryDestroy), IdleTimeout: durationText(found.IdleTimeout)}
}
