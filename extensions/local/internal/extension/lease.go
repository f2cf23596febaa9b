// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// The lease verbs. Each is the sdk's rule applied under the record's lock and
// durable before it is answered; then the supervisor is told to look.

import (
	"context"
	"errors"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Extend implements [sdk.Extension].
func (e *Extension) Extend(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, func(r *record.Record, dir string) (sdk.Lease, error) {
		lease, err := sdk.ExtendLease(r.Lease, e.now(), opts.Generation, opts.ExpiresAt, opts.Event)
		if err != nil {
			return lease, err
		}
		// A lease of something that is gone can't be extended into life.
		if status, reason := e.status(*r, dir); status == sdk.StatusLost || status == sdk.StatusExpired || status == sdk.StatusFailed {
			return r.Lease, sdk.Expired(r.Lease, "%s is %s: %s", named(r.ID), status, reason)
		}
		return lease, nil
	})
	return sdk.ExtendResult{Lease: lease}, err
}

// Expire implements [sdk.Extension].
func (e *Extension) Expire(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, func(r *record.Record, _ string) (sdk.Lease, error) {
		return sdk.ExpireLease(r.Lease, e.now(), opts.Generation, opts.ExpiresAt, opts.Event)
	})
	return sdk.ExpireResult{Lease: lease}, err
}

// Claim implements [sdk.Extension].
func (e *Extension) Claim(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, func(r *record.Record, dir string) (sdk.Lease, error) {
		if opts.OnlyExpired && r.Lease.Expired(e.now()) && e.pausing(*r, dir) {
			return r.Lease, sdk.Conflict(r.Lease, "%s is being paused", named(r.ID))
		}
		return sdk.ClaimLease(r.Lease, e.now(), opts.Generation, opts.Holder, opts.OnlyExpired, opts.Event)
	})
	return sdk.ClaimResult{Lease: lease}, err
}

func (e *Extension) changeLease(ctx context.Context, target sdk.Target, rule func(*record.Record, string) (sdk.Lease, error)) (sdk.Lease, error) {
	r, dir, err := e.read(target)
	if err != nil {
		return sdk.Lease{}, err
	}
	if err := ctx.Err(); err != nil {
		return sdk.Lease{}, err
	}
	before := r.Lease.Generation
	r, err = record.Update(dir, target.ID, func(r *record.Record) error {
		lease, err := rule(r, dir)
		if err != nil {
			return err
		}
		r.Lease = lease
		return nil
	})
	if errors.Is(err, record.ErrGone) {
		return sdk.Lease{}, sdk.Errorf(sdk.ErrNotFound, "%s was destroyed meanwhile", named(target.ID))
	}
	if err != nil {
		return r.Lease, err
	}
	if r.Lease.Generation != before {
		supervisor.Poke(dir)
	}
	return r.Lease, nil
}
