// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// What a box means: tags to sandbox and back.

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The tags beside the labels of ownership.
const (
	tagLease     = sdk.LabelPrefix + "lease"
	tagOnExpiry  = sdk.LabelPrefix + "on-expiry"
	tagProfile   = sdk.LabelPrefix + "profile-document"
	tagPausedTTL = sdk.LabelPrefix + "paused-ttl"
)

// encode writes a value of ours as a tag. Leases and profiles always encode.
func encode(value any) string {
	encoded, _ := json.Marshal(value)
	return string(encoded)
}

// leaseOf returns the lease of a box. The vendor's own deadline and its bound
// count when they are earlier: what the tag says is no use to a box that has
// stopped.
func leaseOf(b Box) (sdk.Lease, error) {
	var lease sdk.Lease
	if err := json.Unmarshal([]byte(b.Tags[tagLease]), &lease); err != nil {
		return lease, fmt.Errorf("tag %s of box %s: %w", tagLease, b.ID, err)
	}
	if b.StopAt.Before(lease.ExpiresAt) {
		lease.ExpiresAt = b.StopAt
	}
	if !b.StopBy.IsZero() && b.StopBy.Before(lease.MaxExpiresAt) {
		lease.MaxExpiresAt = b.StopBy
	}
	if b.PausedAt.IsZero() {
		return lease, nil
	}
	// The vendor has paused it and knows nothing of a lease: what follows for
	// that is the same for everybody who looks.
	paused, err := time.ParseDuration(b.Tags[tagPausedTTL])
	if err != nil {
		return lease, fmt.Errorf("tag %s of box %s: %w", tagPausedTTL, b.ID, err)
	}
	if own, err := sdk.PauseLease(lease, b.PausedAt, paused, lease.Event); err == nil {
		lease = own
	}
	return lease, nil
}

// sandboxOf returns what a box is. ok is false for a box that is not ours
// to touch; tags that are there but can't be read are an error.
func sandboxOf(b Box, fleet string) (s sdk.Sandbox, ok bool, err error) {
	identity, ok, err := sdk.IdentityFromLabels(b.Tags)
	if err != nil || !ok || identity.Fleet != fleet {
		return s, false, err
	}
	s = sdk.Sandbox{
		ID: identity.ID, Ref: b.ID, Identity: identity, Incarnation: b.Runs, CreatedAt: identity.CreatedAt,
		Guards: []sdk.Guard{sdk.GuardBackend}, OnExpiry: sdk.OnExpiry(b.Tags[tagOnExpiry]),
	}
	s.Identity.Incarnation = b.Runs
	if s.Lease, err = leaseOf(b); err != nil {
		return s, false, err
	}
	if err := json.Unmarshal([]byte(b.Tags[tagProfile]), &s.Profile); err != nil {
		return s, false, fmt.Errorf("tag %s of box %s: %w", tagProfile, b.ID, err)
	}
	s.IdleTimeout, s.ExpirySnapshotTTL = b.IdleStop, b.KeepImage
	if s.PausedTTL, err = time.ParseDuration(b.Tags[tagPausedTTL]); err != nil {
		return s, false, fmt.Errorf("tag %s of box %s: %w", tagPausedTTL, b.ID, err)
	}
	if b.StoppedInto != "" {
		s.ExpirySnapshotID = sdk.ExpirySnapshotID(identity.ID)
	}
	s.Status, s.Reason = statusOf(b, s.Lease)
	switch {
	case b.StateReason == StopIdle:
		s.EndReason = sdk.EndIdle
	case b.StateReason == StopTimeout, s.Status == sdk.StatusExpired:
		s.EndReason = sdk.EndDeadline
	case b.State == Stopped:
		s.EndReason = sdk.EndGone
	}
	if b.IdleStop > 0 && s.Status == sdk.StatusReady {
		s.IdleExpiresAt, _ = sdk.IdleDeadline(s.Lease, b.UsedAt, b.IdleStop)
	}
	return s, true, nil
}

func statusOf(b Box, lease sdk.Lease) (sdk.Status, string) {
	switch {
	case lease.Claimed:
		return sdk.StatusDestroying, "claimed by " + lease.ClaimHolder
	case b.State == Stopped && b.StateReason == StopIdle:
		return sdk.StatusExpired, fmt.Sprintf("it was not used for %s", b.IdleStop)
	case b.State == Stopped && b.StateReason != StopTimeout:
		return sdk.StatusLost, "the vendor reports: " + b.StateReason
	case lease.Expired(b.ServerTime):
		return sdk.StatusExpired, "the deadline passed at " + lease.ExpiresAt.UTC().Format(time.RFC3339)
	case b.State == Starting:
		return sdk.StatusCreating, ""
	case b.State == Paused:
		return sdk.StatusPaused, ""
	}
	return sdk.StatusReady, ""
}

// onStop is the vendor's word for what happens at the end. Where the document
// calls that emulated, sandboxer does it, and the vendor only stops the box.
func (e *Extension) onStop(choice sdk.OnExpiry) string {
	emulated := func(f sdk.Feature) bool { return e.described.Capabilities.Of(f).Class == sdk.ClassEmulated }
	switch {
	case choice == sdk.OnExpiryPause && !emulated(sdk.FeatureExpiryPause):
		return "pause"
	case choice == sdk.OnExpirySnapshot && !emulated(sdk.FeatureExpirySnapshot):
		return "snapshot"
	}
	return "stop"
}
