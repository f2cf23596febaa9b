// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// The lease: the vendor's own deadline of a running sandbox, and the record of
// what the vendor can't hold.

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Extend moves a deadline later.
func (e *Extension) Extend(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(present sdk.Lease, now time.Time) (sdk.Lease, error) {
		return sdk.ExtendLease(present, now, opts.Generation, opts.ExpiresAt, opts.Event)
	})
	return sdk.ExtendResult{Lease: lease}, err
}

// Expire moves a deadline earlier.
func (e *Extension) Expire(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(present sdk.Lease, now time.Time) (sdk.Lease, error) {
		return sdk.ExpireLease(present, now, opts.Generation, opts.ExpiresAt, opts.Event)
	})
	return sdk.ExpireResult{Lease: lease}, err
}

// Claim takes a lease for destruction. The vendor is told nothing: it would
// have to kill the sandbox.
func (e *Extension) Claim(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(present sdk.Lease, now time.Time) (sdk.Lease, error) {
		return sdk.ClaimLease(present, now, opts.Generation, opts.Holder, opts.OnlyExpired, opts.Event)
	})
	return sdk.ClaimResult{Lease: lease}, err
}

// changeLease applies a rule to the present lease, has the vendor do its part
// and writes down what came of it, all under the lock of the record.
func (e *Extension) changeLease(ctx context.Context, target sdk.Target, event sdk.EventRef, rule func(present sdk.Lease, now time.Time) (sdk.Lease, error)) (lease sdk.Lease, err error) {
	err = e.records.locked(ctx, target.ID, func() error {
		f, err := e.find(ctx, target)
		if err != nil {
			return err
		}
		present := f.sandbox.Lease
		lease = present
		if event != (sdk.EventRef{}) && present.Event == event {
			return nil // an earlier try, whose answer was lost
		}
		changed, err := rule(present, e.now())
		if err != nil || changed == present {
			return err
		}
		kept := record{Version: recordVersion, ID: target.ID, Fleet: target.Fleet, Ref: f.vendor.SandboxID, Phase: phaseReady, EndsAt: f.vendor.EndAt}
		if f.record != nil {
			kept.Phase = f.record.Phase
		}
		if f.vendor.State == stateRunning && !changed.ExpiresAt.Equal(present.ExpiresAt) {
			if kept.EndsAt, err = e.moveEnd(ctx, f, changed.ExpiresAt, changed.ExpiresAt.After(present.ExpiresAt)); err != nil {
				return err
			}
			if kept.EndsAt.Before(changed.ExpiresAt) {
				changed.ExpiresAt = kept.EndsAt // what was granted is less, in silence
			}
		}
		kept.Lease, lease = changed, changed
		return e.records.put(target.ID, kept)
	})
	return lease, err
}

// The bounds of moving the end of a sandbox that is in a transition, or whose
// answers get lost.
const (
	moveTries = 5
	movePause = 200 * time.Millisecond
)

// moveEnd has the vendor end a running sandbox at another time, and returns
// the end that it then shows. Its call overwrites and may shorten, so it is not
// made again before a look.
func (e *Extension) moveEnd(ctx context.Context, f found, until time.Time, later bool) (time.Time, error) {
	ref := f.vendor.SandboxID
	done := func(v vendorSandbox) bool {
		if later {
			return !v.EndAt.Before(until)
		}
		return !v.EndAt.After(until.Add(time.Second))
	}
	if done(f.vendor) {
		return f.vendor.EndAt, nil
	}
	var last error
	for attempt := range moveTries {
		if attempt > 0 {
			if err := e.opts.Clock.Sleep(ctx, movePause<<attempt); err != nil {
				return time.Time{}, errors.Join(last, err)
			}
		}
		last = e.client.setTimeout(ctx, ref, secondsUntil(until, e.now()))
		if last != nil && !absent(last) && status(last) != http.StatusConflict && !unknown(last) {
			return time.Time{}, last
		}
		v, err := e.client.getSandbox(ctx, ref)
		switch {
		case absent(err) && !later:
			return until, nil // it has ended, which was wanted
		case err != nil:
			return time.Time{}, errors.Join(last, err)
		case v.State == statePaused && later:
			return time.Time{}, sdk.Expired(f.sandbox.Lease, "sandbox %s was paused meanwhile", f.sandbox.ID)
		case last == nil, done(v), v.State == statePaused:
			return v.EndAt, nil
		}
	}
	return time.Time{}, last
}
