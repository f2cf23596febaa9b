// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"cmp"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// End is how a sandbox ends when nobody ends it, besides its deadline.
type End struct {
	OnExpiry          sdk.OnExpiry
	IdleTimeout       time.Duration // zero is no idle clock
	ExpirySnapshotTTL time.Duration
	PausedTTL         time.Duration
}

// ResolveEnd returns the end of a sandbox: what was asked for, then the
// profile's, then the built-in default.
func ResolveEnd(asked End, p sdk.Profile) End {
	// A validated profile's durations parse.
	idle, _ := parseOptional(p.IdleTimeout)
	keep, _ := parseOptional(p.ExpirySnapshotTTL)
	paused, _ := parseOptional(p.PausedTTL)
	return End{
		OnExpiry:          cmp.Or(asked.OnExpiry, p.OnExpiry, sdk.OnExpiryDestroy),
		IdleTimeout:       cmp.Or(asked.IdleTimeout, idle),
		ExpirySnapshotTTL: cmp.Or(asked.ExpirySnapshotTTL, keep, sdk.DefaultExpirySnapshotTTL),
		PausedTTL:         cmp.Or(asked.PausedTTL, paused, sdk.DefaultPausedTTL),
	}
}

// Validate returns the faults of an end that was asked for.
func (e End) Validate() []Problem {
	var found problems
	switch e.OnExpiry {
	case "", sdk.OnExpiryDestroy, sdk.OnExpirySnapshot, sdk.OnExpiryPause:
	default:
		found.add("on_expiry", "%q is not one of destroy, snapshot, pause", clip(string(e.OnExpiry)))
	}
	for _, d := range []struct {
		path  string
		value time.Duration
	}{{"idle_timeout", e.IdleTimeout}, {"expiry_snapshot_ttl", e.ExpirySnapshotTTL}, {"paused_ttl", e.PausedTTL}} {
		if d.value < 0 {
			found.add(d.path, "%s is not longer than zero", d.value)
		}
	}
	return found
}

// Over returns a profile as it is for a sandbox with an end of its own: what
// it needs of a backend follows from that.
func (e End) Over(p sdk.Profile) sdk.Profile {
	p.OnExpiry = cmp.Or(e.OnExpiry, p.OnExpiry)
	if e.IdleTimeout > 0 {
		p.IdleTimeout = e.IdleTimeout.String()
	}
	return p
}
