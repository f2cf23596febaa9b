// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// The lease: a tag, which the service changes for whoever asks. So that of many
// who share a state directory exactly one wins, it is changed under a lock and
// read back.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Extend moves a deadline later, up to the end that the vendor was told at the
// create.
func (e *Extension) Extend(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(f found, now time.Time) (sdk.Lease, error) {
		until := opts.ExpiresAt
		if latest := now.Add(longest - 2*grace); until.After(latest) && e.settings.BeyondMax == beyondReplace {
			until = latest // another one has no longer life, and takes its time
		}
		changed, err := sdk.ExtendLease(f.lease, now, opts.Generation, until, opts.Event)
		if err == nil && changed == f.lease && opts.ExpiresAt.After(f.lease.MaxExpiresAt) {
			return changed, &sdk.Error{
				Kind: sdk.ErrUnsupported, Lease: &f.lease, Path: "ttl",
				Message: fmt.Sprintf("sandbox %s ends at %s, its maximum: Modal fixes a lifetime of at most 24 h at the create, and nothing changes it later",
					f.sandbox.ID, f.lease.MaxExpiresAt.UTC().Format(time.RFC3339)),
				Advice: "take a snapshot and restore it, create the next one with a later ttl.max, or have the backend replace it: beyond_max = \"replace\"",
			}
		}
		return changed, err
	})
	return sdk.ExtendResult{Lease: lease}, err
}

// Expire moves a deadline earlier.
func (e *Extension) Expire(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(f found, now time.Time) (sdk.Lease, error) {
		return sdk.ExpireLease(f.lease, now, opts.Generation, opts.ExpiresAt, opts.Event)
	})
	return sdk.ExpireResult{Lease: lease}, err
}

// Claim takes a lease for destruction.
func (e *Extension) Claim(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(f found, now time.Time) (sdk.Lease, error) {
		return sdk.ClaimLease(f.lease, now, opts.Generation, opts.Holder, opts.OnlyExpired, opts.Event)
	})
	return sdk.ClaimResult{Lease: lease}, err
}

// leaseTries bounds how often a lease is looked at that can't be changed.
const leaseTries = 5

// changeLease applies a rule to the present lease and stores what it gives.
func (e *Extension) changeLease(ctx context.Context, target sdk.Target, event sdk.EventRef, rule func(f found, now time.Time) (sdk.Lease, error)) (lease sdk.Lease, err error) {
	err = e.records.locked(ctx, target.ID, func() error {
		for range leaseTries {
			f, err := e.find(ctx, target)
			if err != nil {
				return err
			}
			lease = f.lease
			if event != (sdk.EventRef{}) && f.lease.Event == event {
				return nil // an earlier try, whose answer was lost
			}
			changed, err := rule(f, e.now())
			if err != nil || changed == f.lease {
				return err
			}
			if changed.ExpiresAt.After(f.object.EndsAt.Add(-grace)) {
				if err := e.replace(ctx, f, changed); err != nil {
					return err
				}
				lease = changed
				return nil
			}
			tags := maps.Clone(f.vendor.tags)
			drop(tags, tagLease)
			pack(tags, tagLease, changed)
			err = e.client.setTags(ctx, f.vendor.ref, tags)
			if err == nil {
				err = e.readBack(ctx, f, changed)
			}
			switch {
			case err == nil:
				lease = changed
				return nil
			case !isLost(err) && !errors.Is(err, errOvertaken) && !errors.Is(err, sdk.ErrNotFound) && !errors.Is(err, sdk.ErrConflict):
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			}
			// The answer was lost, somebody without the lock was faster, or the
			// sandbox has ended: the rule decides again on what is there now.
		}
		return sdk.Errorf(sdk.ErrUnreachable, "the lease of %s could not be changed in %d tries", target.ID, leaseTries)
	})
	return lease, err
}

// errOvertaken means that a lease that was stored is not the one that is there.
var errOvertaken = errors.New("the lease was changed by somebody else at the same moment")

func (e *Extension) readBack(ctx context.Context, f found, stored sdk.Lease) error {
	tags, err := e.client.getTags(ctx, f.vendor.ref)
	if err != nil {
		return err
	}
	var seen sdk.Lease
	if err := unpack(tags, tagLease, &seen); err != nil {
		return fmt.Errorf("modal sandbox %s: %w", f.vendor.ref, err)
	}
	if seen.Generation != stored.Generation || seen.Event != stored.Event || seen.Claimed != stored.Claimed || !seen.ExpiresAt.Equal(stored.ExpiresAt) {
		return errOvertaken
	}
	return nil
}

// markReady marks a sandbox as ready. Whoever calls it has the lock.
func (e *Extension) markReady(ctx context.Context, target sdk.Target) (found, error) {
	for range leaseTries {
		f, err := e.find(ctx, target)
		if err != nil || f.vendor.tags[tagPhase] == phaseReady {
			return f, err
		}
		tags := maps.Clone(f.vendor.tags)
		tags[tagPhase] = phaseReady
		err = e.client.setTags(ctx, f.vendor.ref, tags)
		if err != nil && !isLost(err) && !errors.Is(err, sdk.ErrNotFound) && !errors.Is(err, sdk.ErrConflict) {
			return f, err
		}
	}
	return found{}, sdk.Errorf(sdk.ErrUnreachable, "the tags of %s could not be changed in %d tries", target.ID, leaseTries)
}
