// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// Pausing. The vendor then keeps no deadline: the record does, and it is
// written before.

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// alive refuses what is over.
func (f found) alive() error {
	switch f.sandbox.Status {
	case sdk.StatusExpired:
		return sdk.Expired(f.sandbox.Lease, "sandbox %s: %s", f.sandbox.ID, f.sandbox.Reason)
	case sdk.StatusDestroying:
		return sdk.Expired(f.sandbox.Lease, "sandbox %s is %s", f.sandbox.ID, f.sandbox.Reason)
	}
	return nil
}

// Pause implements [sdk.Pauser].
func (e *Extension) Pause(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	var result sdk.PauseResult
	err := e.records.locked(ctx, opts.Target.ID, func() error {
		f, err := e.find(ctx, opts.Target)
		if err != nil {
			return err
		}
		if err := f.alive(); err != nil {
			return err
		}
		if f.vendor.State == stateRunning {
			if err := e.keep(f, f.vendor); err != nil {
				return err
			}
			// Whatever the answer is, the look decides: a second pause is a
			// conflict, and a failed one can mean that the sandbox is lost.
			pauseErr := e.client.pauseSandbox(ctx, f.vendor.SandboxID)
			if f, err = e.find(ctx, opts.Target); err != nil {
				return errors.Join(pauseErr, err)
			}
			if f.vendor.State != statePaused {
				return errors.Join(fmt.Errorf("sandbox %s was not paused", opts.Target.ID), pauseErr)
			}
		}
		result.Sandbox = f.sandbox
		return nil
	})
	return result, err
}

// keep writes down the lease as it is, for a sandbox that the vendor shows.
func (e *Extension) keep(f found, v vendorSandbox) error {
	return e.records.put(f.sandbox.ID, record{
		Version: recordVersion, ID: f.sandbox.ID, Fleet: f.sandbox.Identity.Fleet, Ref: v.SandboxID, Phase: phaseReady, Lease: f.sandbox.Lease, EndsAt: v.EndAt,
	})
}

// Resume implements [sdk.Pauser].
func (e *Extension) Resume(ctx context.Context, opts sdk.ResumeOptions) (sdk.ResumeResult, error) {
	var result sdk.ResumeResult
	err := e.records.locked(ctx, opts.Target.ID, func() error {
		f, err := e.find(ctx, opts.Target)
		if err != nil {
			return err
		}
		if err := f.alive(); err != nil {
			return err
		}
		if f.vendor.State == statePaused {
			if f, err = e.wake(ctx, f, opts.Target); err != nil {
				return err
			}
		}
		result.Sandbox = f.sandbox
		return nil
	})
	return result, err
}

// wake resumes a paused sandbox for what is left of its lease, never by the
// vendor's default.
func (e *Extension) wake(ctx context.Context, f found, target sdk.Target) (found, error) {
	ref, seconds := f.vendor.SandboxID, secondsUntil(f.sandbox.Lease.ExpiresAt, e.now())
	err := e.client.connect(ctx, ref, seconds, false)
	v, look := e.client.getSandbox(ctx, ref)
	if absent(err) && look == nil && v.State == statePaused {
		// It is there, so it was the route that is not.
		err = e.client.connect(ctx, ref, seconds, true)
		v, look = e.client.getSandbox(ctx, ref)
	}
	if look != nil {
		return f, errors.Join(err, look)
	}
	if v.State != stateRunning {
		if status(err) == http.StatusBadRequest {
			return f, err
		}
		return f, errors.Join(sdk.Errorf(sdk.ErrUnreachable, "E2B did not resume sandbox %s", target.ID), err)
	}
	if err := e.keep(f, v); err != nil {
		return f, err
	}
	if err := e.awaitEnvd(ctx, v); err != nil {
		return f, err
	}
	return e.find(ctx, target)
}
