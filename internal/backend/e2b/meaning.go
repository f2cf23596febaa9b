// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// What a sandbox of the vendor's means: metadata, record and state to a
// sandbox of ours and back.

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The keys of the metadata. Values that are searched for are plain words, so
// that no level of escapes in between can change them.
const (
	metaID     = "dev.sandboxer.id"
	metaFleet  = "dev.sandboxer.fleet" // see fleetKey
	metaNonce  = "dev.sandboxer.nonce"
	metaObject = "dev.sandboxer.object" // the rest, as base64url of JSON
)

// object is what is fixed at the create.
type object struct {
	Identity  sdk.Identity  `json:"identity"`
	Profile   sdk.Profile   `json:"profile"`
	ExpiresAt time.Time     `json:"expires_at"`
	Max       time.Time     `json:"max_expires_at"`
	OnExpiry  sdk.OnExpiry  `json:"on_expiry"`
	PausedTTL time.Duration `json:"paused_ttl"`
	Secrets   bool          `json:"secrets,omitempty"` // it was given some
	Event     sdk.EventRef  `json:"event"`
}

// fleetKey stands for a fleet in metadata and names: any text is a fleet's
// name, and not any text is a filter's value.
func fleetKey(fleet string) string {
	sum := sha256.Sum256([]byte(fleet))
	return hex.EncodeToString(sum[:16])
}

func (o object) metadata(nonce string) map[string]string {
	return map[string]string{
		metaID: o.Identity.ID, metaFleet: fleetKey(o.Identity.Fleet), metaNonce: nonce,
		metaObject: base64.RawURLEncoding.EncodeToString(encode(o)),
	}
}

// objectOf reads the metadata. ok is false for what is not of the fleet;
// metadata that is there but can't be read is an error, never a guess.
func objectOf(v vendorSandbox, fleet string) (o object, ok bool, err error) {
	if v.Metadata[metaID] == "" || v.Metadata[metaFleet] != fleetKey(fleet) {
		return o, false, nil
	}
	decoded, err := base64.RawURLEncoding.DecodeString(v.Metadata[metaObject])
	if err == nil {
		err = json.Unmarshal(decoded, &o)
	}
	if err != nil {
		return o, false, fmt.Errorf("metadata %s of E2B sandbox %s can't be read: %w", metaObject, v.SandboxID, err)
	}
	return o, o.Identity.ID == v.Metadata[metaID] && o.Identity.Fleet == fleet, nil
}

// leaseOf returns the lease of a sandbox.
//
// What the record says holds, but for what the vendor does with a running
// sandbox: it ends it no later than its own deadline, and when that is another
// one than the record saw, somebody without the record has moved it. Without a
// record the deadline is the vendor's own; of a paused sandbox, which has none
// there, it is the latest that the lease can reach: earlier could be wrong.
func leaseOf(v vendorSandbox, o object, kept *record) sdk.Lease {
	lease := sdk.Lease{ExpiresAt: o.ExpiresAt, MaxExpiresAt: o.Max, Generation: 1, Event: o.Event}
	if kept != nil {
		lease = kept.Lease
	}
	running := v.State == stateRunning
	switch {
	case running && kept == nil:
		lease.ExpiresAt = v.EndAt
	case running && kept.Phase == phaseReady && !kept.EndsAt.Equal(v.EndAt):
		lease.ExpiresAt, lease.Event = v.EndAt, sdk.EventRef{}
		lease.Generation++
	case running && v.EndAt.Before(lease.ExpiresAt) && kept.Phase == phaseReady:
		lease.ExpiresAt = v.EndAt
	case !running && o.OnExpiry == sdk.OnExpiryPause && pausedAtEnd(v, kept):
		at := lease
		at.ExpiresAt = v.EndAt
		if own, err := sdk.PauseLease(at, v.EndAt, o.PausedTTL, lease.Event); err == nil && !lease.Claimed {
			lease = own
		}
	case !running && kept == nil:
		lease.ExpiresAt = o.Max
	}
	if lease.ExpiresAt.After(lease.MaxExpiresAt) {
		lease.ExpiresAt = lease.MaxExpiresAt
	}
	return lease
}

// pausedAtEnd tells whether the vendor has paused a sandbox because its time
// was over: no earlier than its lease ends, which is what the vendor was told.
func pausedAtEnd(v vendorSandbox, kept *record) bool {
	return kept == nil || !v.EndAt.Before(kept.Lease.ExpiresAt)
}

// sandboxOf returns what a sandbox of the vendor's is. ok is false for one
// that is not the fleet's.
func (e *Extension) sandboxOf(v vendorSandbox, fleet string, kept *record) (s sdk.Sandbox, ok bool, err error) {
	o, ok, err := objectOf(v, fleet)
	if err != nil || !ok {
		return s, false, err
	}
	s = sdk.Sandbox{
		ID: o.Identity.ID, Ref: v.SandboxID, Identity: o.Identity, Incarnation: 1, CreatedAt: o.Identity.CreatedAt,
		Lease: leaseOf(v, o, kept), OnExpiry: o.OnExpiry, PausedTTL: o.PausedTTL, Profile: o.Profile,
	}
	s.Identity.Incarnation = 1
	if v.State == stateRunning {
		s.Guards = []sdk.Guard{sdk.GuardBackend}
	}
	s.Status, s.Reason = e.statusOf(v, s.Lease, kept)
	if s.Status == sdk.StatusExpired {
		s.EndReason = sdk.EndDeadline
	}
	return s, true, nil
}

func (e *Extension) statusOf(v vendorSandbox, lease sdk.Lease, kept *record) (sdk.Status, string) {
	switch {
	case lease.Claimed:
		return sdk.StatusDestroying, "claimed by " + lease.ClaimHolder
	case lease.Expired(e.now()):
		return sdk.StatusExpired, "the deadline passed at " + lease.ExpiresAt.UTC().Format(time.RFC3339)
	case kept != nil && kept.Phase == phaseCreating:
		return sdk.StatusCreating, ""
	case v.State == statePaused:
		return sdk.StatusPaused, ""
	}
	return sdk.StatusReady, ""
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
