// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// The lease: kept in a tag of the box, changed by conditional updates, with
// the vendor's own deadline moved along in the same update.

import (
	"context"
	"errors"
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

// Claim takes a lease for destruction.
func (e *Extension) Claim(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(present sdk.Lease, now time.Time) (sdk.Lease, error) {
		return sdk.ClaimLease(present, now, opts.Generation, opts.Holder, opts.OnlyExpired, opts.Event)
	})
	return sdk.ClaimResult{Lease: lease}, err
}

// changeLease applies a rule to the present lease and stores what it gives,
// if the box is still the one that the rule saw. Decided by the vendor's
// clock, as it came with the box.
func (e *Extension) changeLease(ctx context.Context, target sdk.Target, event sdk.EventRef, rule func(present sdk.Lease, now time.Time) (sdk.Lease, error)) (sdk.Lease, error) {
	for range tries {
		b, err := e.find(ctx, target)
		if err != nil {
			return sdk.Lease{}, err
		}
		present, err := leaseOf(b)
		if err != nil {
			return sdk.Lease{}, err
		}
		if event != (sdk.EventRef{}) && present.Event == event {
			return present, nil // an earlier try, whose answer was lost
		}
		changed, err := rule(present, b.ServerTime)
		if err != nil || changed == present {
			return present, err
		}
		req := UpdateRequest{IfVersion: b.Version, Tags: map[string]string{tagLease: encode(changed)}}
		if !changed.ExpiresAt.Equal(present.ExpiresAt) {
			req.Until = changed.ExpiresAt
		}
		after, err := e.update(ctx, b.ID, req)
		switch {
		case err == nil:
			_, granted, err := e.settleLease(ctx, after, changed)
			return granted, err
		case !hasCode(err, CodeVersion) && !hasCode(err, CodeWrongState) && !answerLost(err):
			return present, err
		}
		// Somebody else was faster, the box has stopped, or the answer was
		// lost: the rule decides again on what is there now.
	}
	return sdk.Lease{}, sdk.Errorf(sdk.ErrUnreachable, "the lease of %s could not be changed in %d tries", target.ID, tries)
}

func (e *Extension) update(ctx context.Context, id string, req UpdateRequest) (after Box, err error) {
	err = e.try(ctx, func(api API) (err error) {
		after, err = api.UpdateBox(ctx, id, req)
		return err
	})
	return after, err
}

// settleLease writes the deadline that the vendor really granted into the
// lease, when that is earlier than asked. Should this fail, [leaseOf] still
// tells the truth.
func (e *Extension) settleLease(ctx context.Context, b Box, asked sdk.Lease) (Box, sdk.Lease, error) {
	granted := asked
	if !b.StopAt.Before(asked.ExpiresAt) {
		return b, granted, nil
	}
	granted.ExpiresAt = b.StopAt
	after, err := e.update(ctx, b.ID, UpdateRequest{IfVersion: b.Version, Tags: map[string]string{tagLease: encode(granted)}})
	if err != nil && !errors.Is(err, sdk.ErrConflict) && !errors.Is(err, sdk.ErrUnreachable) {
		return b, granted, err
	}
	if err != nil {
		after = b
	}
	return after, granted, nil
}
