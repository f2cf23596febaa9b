// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// decoder reads messages of the other side and remembers the first thing in
// them that can't be: a time outside the calendar, a negative count, a map
// without measure, text that is not UTF-8.
type decoder struct{ err error }

func (d *decoder) fail(field, format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) time(field string, t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	if err := t.CheckValid(); err != nil {
		d.fail(field, "not a time of the years 1 to 9999")
		return time.Time{}
	}
	return t.AsTime()
}

func (d *decoder) duration(field string, v *durationpb.Duration) time.Duration {
	if v == nil {
		return 0
	}
	if err := v.CheckValid(); err != nil || v.AsDuration() < 0 {
		d.fail(field, "not a duration")
		return 0
	}
	return v.AsDuration()
}

// count reads a number that can't be negative.
func (d *decoder) count(field string, n int64) int64 {
	if n < 0 {
		d.fail(field, "%d is negative", n)
	}
	return n
}

// entries bounds a list or map.
func (d *decoder) entries(field string, n int) {
	if n > maxEntries {
		d.fail(field, "%d entries, at most %d are allowed", n, maxEntries)
	}
}

func (d *decoder) required(field, value string) string {
	if value == "" {
		d.fail(field, "is empty")
	}
	return value
}

// json reads a document of package sdk.
func (d *decoder) json(field string, document []byte, into any) {
	switch {
	case len(document) == 0:
	case !utf8.Valid(document):
		// encoding/json would put U+FFFD in its place, and a label that was
		// changed on its way is a label that no longer matches.
		d.fail(field, "not valid UTF-8")
	default:
		if err := json.Unmarshal(document, into); err != nil {
			d.fail(field, "%v", err)
		}
	}
}

func (d *decoder) identity(document []byte) sdk.Identity {
	const field = "identity"
	var identity sdk.Identity
	if len(document) > maxIdentity {
		d.fail(field, "%d bytes, at most %d are allowed", len(document), maxIdentity)
		return identity
	}
	d.json(field, document, &identity)
	d.entries(field+".labels", len(identity.Labels))
	d.count(field+".incarnation", identity.Incarnation)
	return identity
}

func (d *decoder) profile(document []byte) sdk.Profile {
	var profile sdk.Profile
	d.json("profile", document, &profile)
	return profile
}

func decodeTarget(t *pb.Target) sdk.Target {
	return sdk.Target{ID: t.GetId(), Ref: t.GetRef(), Fleet: t.GetFleet()}
}

func (d *decoder) event(e *pb.EventRef) sdk.EventRef {
	return sdk.EventRef{LedgerID: e.GetLedgerId(), Sequence: d.count("event.sequence", e.GetSequence()), Hash: e.GetHash()}
}

func (d *decoder) lease(l *pb.Lease) sdk.Lease {
	return sdk.Lease{
		ExpiresAt:    d.time("lease.expires_at", l.GetExpiresAt()),
		MaxExpiresAt: d.time("lease.max_expires_at", l.GetMaxExpiresAt()),
		Generation:   d.count("lease.generation", l.GetGeneration()),
		Claimed:      l.GetClaimed(), ClaimHolder: l.GetClaimHolder(), Event: d.event(l.GetEvent()),
	}
}

// grantedLease is a lease that a call has just written: it has a deadline.
func (d *decoder) grantedLease(l *pb.Lease) sdk.Lease {
	if l.GetExpiresAt() == nil {
		d.fail("lease.expires_at", "is not set")
	}
	return d.lease(l)
}

func decodeProgress(p *pb.Progress) sdk.Progress {
	return sdk.Progress{
		Phase: cut(p.GetPhase()), Message: cut(p.GetMessage()), Done: max(p.GetDone(), 0), Total: max(p.GetTotal(), 0),
	}
}

func (d *decoder) sandbox(s *pb.Sandbox) sdk.Sandbox {
	d.entries("endpoints", len(s.GetEndpoints()))
	d.entries("guards", len(s.GetGuards()))
	out := sdk.Sandbox{
		ID: d.required("id", s.GetId()), Ref: s.GetRef(), Status: sdk.Status(s.GetStatus()), Reason: cut(s.GetReason()),
		Identity:    d.identity(s.GetIdentityJson()),
		Incarnation: d.count("incarnation", s.GetIncarnation()), Lease: d.lease(s.GetLease()),
		CreatedAt: d.time("created_at", s.GetCreatedAt()), Endpoints: s.GetEndpoints(),
		OnExpiry: sdk.OnExpiry(s.GetOnExpiry()), ExpirySnapshotID: s.GetExpirySnapshotId(), Profile: d.profile(s.GetProfileJson()),
		IdleTimeout:       d.duration("idle_timeout", s.GetIdleTimeout()),
		ExpirySnapshotTTL: d.duration("expiry_snapshot_ttl", s.GetExpirySnapshotTtl()),
		PausedTTL:         d.duration("paused_ttl", s.GetPausedTtl()),
		IdleExpiresAt:     d.time("idle_expires_at", s.GetIdleExpiresAt()), ExpirySnapshotError: cut(s.GetExpirySnapshotError()),
	}
	// A reason that this side does not know tells it nothing.
	if reason := sdk.EndReason(s.GetEndReason()); reason.Valid() {
		out.EndReason = reason
	}
	for _, guard := range s.GetGuards() {
		out.Guards = append(out.Guards, sdk.Guard(guard))
	}
	switch out.Status {
	case sdk.StatusCreating, sdk.StatusReady, sdk.StatusPaused, sdk.StatusExpired, sdk.StatusDestroying,
		sdk.StatusDestroyed, sdk.StatusFailed, sdk.StatusLost:
	default:
		d.fail("status", "%.40q is no status", s.GetStatus())
	}
	return out
}

func (d *decoder) snapshot(s *pb.SnapshotRecord) sdk.Snapshot {
	d.entries("lost", len(s.GetLost()))
	return sdk.Snapshot{
		ID: d.required("id", s.GetId()), Ref: s.GetRef(), SandboxID: s.GetSandboxId(), Kind: sdk.SnapshotKind(s.GetKind()),
		Identity: d.identity(s.GetIdentityJson()), CreatedAt: d.time("created_at", s.GetCreatedAt()),
		ExpiresAt: d.time("expires_at", s.GetExpiresAt()), Size: d.count("size", s.GetSize()), Digest: s.GetDigest(),
		ContainsSecrets: s.GetContainsSecrets(), Profile: d.profile(s.GetProfileJson()), Lost: s.GetLost(),
	}
}

// capabilities reads a capability document. A class that this side does not
// know counts as unsupported: an unknown word never flatters.
func (d *decoder) capabilities(m map[string]*pb.Guarantee) sdk.Capabilities {
	d.entries("capabilities", len(m))
	out := make(sdk.Capabilities, len(m))
	for feature, g := range m {
		guarantee := sdk.Guarantee{Class: sdk.Class(g.GetClass()), Reason: cut(g.GetReason()), DependsOnMachine: g.GetDependsOnMachine()}
		if !guarantee.Class.Valid() {
			guarantee = sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: fmt.Sprintf("the extension says %.40q, which is no class", g.GetClass())}
		}
		out[sdk.Feature(feature)] = guarantee
	}
	return out
}

func (d *decoder) create(o *pb.CreateOptions) sdk.CreateOptions {
	out := sdk.CreateOptions{
		ID: o.GetId(), Identity: d.identity(o.GetIdentityJson()), Profile: d.profile(o.GetProfileJson()),
		ExpiresAt: d.time("expires_at", o.GetExpiresAt()), MaxExpiresAt: d.time("max_expires_at", o.GetMaxExpiresAt()),
		OnExpiry: sdk.OnExpiry(o.GetOnExpiry()), Env: o.GetEnv(), Event: d.event(o.GetEvent()),
		IdleTimeout:       d.duration("idle_timeout", o.GetIdleTimeout()),
		ExpirySnapshotTTL: d.duration("expiry_snapshot_ttl", o.GetExpirySnapshotTtl()),
		PausedTTL:         d.duration("paused_ttl", o.GetPausedTtl()),
	}
	if o.GetSecrets() != nil {
		out.Secrets = make(map[string]sdk.Secret, len(o.GetSecrets()))
		for name, value := range o.GetSecrets() {
			out.Secrets[name] = sdk.Secret(value)
		}
	}
	return out
}
