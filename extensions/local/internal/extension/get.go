// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"strconv"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Get implements [sdk.Extension].
func (e *Extension) Get(_ context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	r, dir, err := e.read(opts.Target)
	if err != nil {
		return sdk.GetResult{}, err
	}
	return sdk.GetResult{Sandbox: e.sandbox(r, dir)}, nil
}

// List implements [sdk.Extension]. It reads the directory and each record
// once and starts no process. On the way it removes what the dead left half
// done.
func (e *Extension) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	fleet, err := e.fleetOf(opts.Fleet)
	if err != nil {
		return sdk.ListResult{}, err
	}
	if e.store.root == "" {
		return sdk.ListResult{}, sdk.Errorf(sdk.ErrInvalid, "the backend is not configured")
	}
	var result sdk.ListResult
	entries, err := os.ReadDir(e.store.path("sandboxes"))
	if errors.Is(err, os.ErrNotExist) {
		return result, nil // never used: nothing is there
	}
	if err != nil {
		return result, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "the state directory can't be read", Err: err}
	}
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return sdk.ListResult{}, err
		}
		if !sdk.IsSandboxID(entry.Name()) {
			e.store.sweep("sandboxes", entry.Name(), record.SupervisorLock)
			continue
		}
		dir := e.store.sandbox(entry.Name())
		r, err := record.Read(dir, entry.Name())
		if errors.Is(err, record.ErrGone) && !record.SupervisorAlive(dir) {
			continue // destroyed while we read
		}
		if err != nil {
			result.Unreadable = append(result.Unreadable, entry.Name())
			continue
		}
		e.settle(ctx, r, dir)
		if r.Identity.Fleet == fleet {
			result.Sandboxes = append(result.Sandboxes, e.sandbox(r, dir))
		}
	}
	return result, nil
}

// sandbox is what the sdk sees of a record.
func (e *Extension) sandbox(r record.Record, dir string) sdk.Sandbox {
	status, reason := e.status(r, dir)
	s := sdk.Sandbox{
		ID: r.ID, Ref: e.store.ref(r.ID), Status: status, Reason: reason, Identity: r.Identity.Clone(), Incarnation: 1,
		Lease: r.Lease, CreatedAt: r.CreatedAt, OnExpiry: r.OnExpiry, Profile: r.Profile,
		IdleTimeout: r.IdleTimeout, ExpirySnapshotTTL: r.ExpirySnapshotTTL, PausedTTL: r.PausedTTL,
		IdleExpiresAt: idleExpiresAt(r, dir, status), EndReason: endReason(r, status),
		ExpirySnapshotError: r.ExpirySnapshotError,
		Endpoints:           endpoints(r),
	}
	// Until its supervisor is done, an extend still does away with the snapshot,
	// and nobody can have it.
	if r.ExpirySnapshotID != "" && !record.SupervisorAlive(dir) {
		s.ExpirySnapshotID = r.ExpirySnapshotID
	}
	if status == sdk.StatusLost && exceeded(r) != "" {
		s.EndReason = sdk.EndLimit
	}
	if status == sdk.StatusCreating || status == sdk.StatusReady || status == sdk.StatusPaused {
		s.Guards = []sdk.Guard{sdk.GuardSupervisor}
	}
	return s
}

func endpoints(r record.Record) map[string]string {
	if len(r.Ports) == 0 {
		return nil
	}
	host := "127.0.0.1"
	if r.Profile.Publish == "host" {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	m := map[string]string{}
	for _, p := range r.Ports {
		m[p.Name] = net.JoinHostPort(host, strconv.Itoa(p.Host))
	}
	return maps.Clone(m)
}

// status derives the status from facts: what the record says, whether the
// supervisor lives, and the clock.
func (e *Extension) status(r record.Record, dir string) (sdk.Status, string) {
	status, reason := e.derive(r, dir)
	if status == sdk.StatusLost {
		if limit := exceeded(r); limit != "" {
			reason = limit
		}
	}
	return status, reason
}

func (e *Extension) derive(r record.Record, dir string) (sdk.Status, string) {
	switch r.Status {
	case sdk.StatusExpired, sdk.StatusDestroying, sdk.StatusFailed, sdk.StatusLost:
		return r.Status, r.Reason
	}
	expired := r.Lease.Expired(e.now())
	if r.Lease.Claimed && !expired {
		return sdk.StatusDestroying, "claimed by " + r.Lease.ClaimHolder
	}
	if expired && e.pausing(r, dir) {
		return r.Status, "the deadline passed, and it is being paused"
	}
	if expired {
		return sdk.StatusExpired, r.Overdue()
	}
	if record.SupervisorAlive(dir) {
		return r.Status, r.Reason
	}
	// It may have written its last word between our read and the look at the
	// lock.
	if again, err := record.Read(dir, r.ID); err == nil && again.Status != r.Status {
		return again.Status, again.Reason
	}
	if r.Status == sdk.StatusCreating {
		return sdk.StatusLost, "its creation was interrupted"
	}
	if p, err := supervisor.Name(dir); err == nil && p.Boot != record.BootID() {
		return sdk.StatusLost, "the machine was restarted"
	}
	return sdk.StatusLost, "its supervisor is gone"
}

func clipAt(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
