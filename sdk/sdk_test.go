// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Whatever the order of extends, expires and claims, and whatever they ask:
// the generation never goes back, a claim is final, extend never shortens,
// expire never lengthens, nothing passes the maximum, and a refusal changes
// nothing and says what is there.
func TestLeaseRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lease := Lease{ExpiresAt: t0.Add(time.Hour), MaxExpiresAt: t0.Add(10 * time.Hour), Generation: 1}
		now := t0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "pass")) * time.Second)
			until := now.Add(time.Duration(rapid.IntRange(-7200, 36000).Draw(t, "until")) * time.Second)
			generation := lease.Generation + int64(rapid.IntRange(-1, 0).Draw(t, "stale"))
			before := lease
			var err error
			act := rapid.SampledFrom([]string{"extend", "expire", "claim"}).Draw(t, "act")
			switch act {
			case "extend":
				lease, err = ExtendLease(lease, now, generation, until, EventRef{})
				if err == nil && (before.Claimed || before.Expired(now)) {
					t.Fatal("extended past the end")
				}
				if lease.ExpiresAt.Before(before.ExpiresAt) {
					t.Fatal("an extend shortened")
				}
			case "expire":
				lease, err = ExpireLease(lease, now, generation, until, EventRef{})
				if lease.ExpiresAt.After(before.ExpiresAt) {
					t.Fatal("an expire lengthened")
				}
			case "claim":
				only := rapid.Bool().Draw(t, "only expired")
				lease, err = ClaimLease(lease, now, generation, "reaper", only, EventRef{})
				if err == nil && !lease.Claimed {
					t.Fatal("a claim that succeeded did not claim")
				}
				if err == nil && only && !before.Claimed && !before.Expired(now) {
					t.Fatal("a live lease was claimed as expired")
				}
			}
			if err != nil && lease != before {
				t.Fatalf("a refused %s changed the lease", act)
			}
			var typed *Error
			if err != nil && (!errors.As(err, &typed) || typed.Lease == nil || *typed.Lease != before) {
				t.Fatalf("a refusal does not carry the present lease: %v", err)
			}
			if err == nil && generation != before.Generation && lease != before {
				t.Fatal("a stale generation changed the lease")
			}
			if lease.Generation < before.Generation || (lease != before && lease.Generation != before.Generation+1) {
				t.Fatal("the generation does not count changes")
			}
			if lease.ExpiresAt.After(lease.MaxExpiresAt) || (before.Claimed && !lease.Claimed) {
				t.Fatal("past the maximum, or a claim was undone")
			}
		}
	})
}

func TestIdentityRoundTrip(t *testing.T) {
	id := Identity{
		ID: "sbx-x", Fleet: "ci", Incarnation: 3, Owner: "payments", Task: "e2e", Run: "https://ci.example/1", Actor: "mo",
		Profile: "p", ProfileRevision: "sha256:aa", CreatedAt: t0, Labels: map[string]string{"a": "b\"c", "d": ""},
	}
	for name, labels := range map[string]map[string]string{"plain": id.ToLabels(), "packed": {LabelPacked: id.Pack()}} {
		got, ok, err := IdentityFromLabels(labels)
		if !ok || err != nil || !maps.Equal(got.Labels, id.Labels) || got.ID != id.ID || got.Incarnation != 3 || !got.CreatedAt.Equal(t0) || got.ProfileRevision != id.ProfileRevision {
			t.Errorf("%s: %+v %v %v", name, got, ok, err)
		}
	}
	if _, ok, err := IdentityFromLabels(map[string]string{"com.example": "x"}); ok || err != nil {
		t.Error("a foreign object passed for ours")
	}
	broken := id.ToLabels()
	broken[LabelIncarnation] = "three"
	if _, ok, err := IdentityFromLabels(broken); ok || err == nil {
		t.Error("unreadable labels were guessed at")
	}
}

func FuzzParseAllow(f *testing.F) {
	for _, seed := range []string{"api.example:443", "*.example", "10.0.0.0/8:1", "[2001:db8::/32]:443", "a:", "1.2.3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		allow, err := ParseAllow(entry)
		if err != nil {
			return
		}
		if allow.IsAddress() == (allow.Name != "") || allow.Port < 0 || allow.Port > 65535 || !strings.Contains(strings.ToLower(entry), allow.Name) {
			t.Errorf("%q is read as %+v", entry, allow)
		}
		if allow.IsAddress() && !allow.CoversAddr(allow.Prefix.Addr()) || !allow.IsAddress() && !allow.CoversName(strings.Replace(allow.Name, "*", "a", 1)) {
			t.Errorf("%q does not cover itself: %+v", entry, allow)
		}
	})
}

func FuzzIdentityFromLabels(f *testing.F) {
	f.Add(Identity{ID: "sbx-x", Fleet: "ci"}.Pack(), "1", "2026-03-01T12:00:00Z", "{}")
	f.Fuzz(func(t *testing.T, packed, incarnation, created, user string) {
		for _, labels := range []map[string]string{
			{LabelPacked: packed},
			{LabelID: packed, LabelFleet: "ci", LabelIncarnation: incarnation, LabelCreatedAt: created, LabelUser: user},
		} {
			if id, ok, err := IdentityFromLabels(labels); ok && (err != nil || id.ID == "" || id.Fleet == "") {
				t.Errorf("%v: %+v %v", labels, id, err)
			}
		}
	})
}

func TestErrorsKeepTheirKind(t *testing.T) {
	cause := errors.New("disk on fire")
	err := fmt.Errorf("create: %w", &Error{Kind: ErrUnsupported, Path: "limits.memory", Message: "no cgroup", Advice: "run as root", Err: cause})
	for _, kind := range Kinds() {
		if errors.Is(err, kind) != (kind == ErrUnsupported) {
			t.Errorf("kind %v", kind)
		}
	}
	if !errors.Is(err, cause) || err.Error() != "create: limits.memory: no cgroup: disk on fire (run as root)" {
		t.Error(err)
	}
}

func TestClassesAreOrdered(t *testing.T) {
	order := []Class{ClassUnsupported, ClassUnverifiable, ClassEmulated, ClassBestEffort, ClassEnforced}
	for i, found := range order {
		for j, need := range order {
			if found.Satisfies(need) != (i >= j) {
				t.Errorf("%s for %s", found, need)
			}
		}
	}
	if Class("").Satisfies(ClassUnverifiable) || (Capabilities{}).Of(FeatureExec).Class != ClassUnsupported {
		t.Error("what is left out counts for something")
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	s := Secret("canary")
	encoded, err := json.Marshal(map[string]any{"s": s, "m": map[string]Secret{"a": s}})
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s), fmt.Sprintf("%+v", CreateOptions{Secrets: map[string]Secret{"a": s}}), string(encoded)} {
		if err != nil || len(text) == 0 || strings.Contains(text, "canary") {
			t.Errorf("%q %v", text, err)
		}
	}
}

// Whatever is done to a sandbox, its idle clock never makes its end later
// than it would be without one, and a pause at the end neither passes the
// maximum nor takes anything away.
func TestTheIdleClockOnlyShortens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(label string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * time.Second
		}
		lease := Lease{ExpiresAt: t0.Add(seconds("ttl", 7200)), Generation: 1}
		lease.MaxExpiresAt = lease.ExpiresAt.Add(seconds("more", 7200))
		active, idle, paused := t0.Add(seconds("active", 9000)), seconds("idle", 9000), seconds("paused", 9000)
		ends, why := IdleDeadline(lease, active, idle)
		if ends.After(lease.ExpiresAt) || (idle == 0 && !ends.Equal(lease.ExpiresAt)) {
			t.Fatalf("it ends at %s, its deadline is %s", ends, lease.ExpiresAt)
		}
		if (why == EndIdle) != ends.Before(lease.ExpiresAt) {
			t.Fatalf("it ends at %s because of %s", ends, why)
		}
		later, err := PauseLease(lease, ends, paused, EventRef{})
		switch {
		case err != nil && (later != lease || lease.ExpiresAt.After(ends)):
			t.Fatalf("refused with life left, or changed by a refusal: %v", err)
		case later.ExpiresAt.After(lease.MaxExpiresAt), later.ExpiresAt.Before(lease.ExpiresAt):
			t.Fatalf("paused until %s, of %s to %s", later.ExpiresAt, lease.ExpiresAt, lease.MaxExpiresAt)
		case err == nil && !later.ExpiresAt.After(ends):
			t.Fatal("paused without a life to be paused in")
		}
		// Without the idle clock it would have been paused at its deadline.
		if without, err := PauseLease(lease, lease.ExpiresAt, paused, EventRef{}); err == nil && later.ExpiresAt.After(without.ExpiresAt) {
			t.Fatalf("with an idle clock it is kept until %s, without until %s", later.ExpiresAt, without.ExpiresAt)
		}
	})
}

func TestAClaimedLeaseIsNotPaused(t *testing.T) {
	claimed := Lease{ExpiresAt: t0, MaxExpiresAt: t0.Add(time.Hour), Generation: 2, Claimed: true}
	if lease, err := PauseLease(claimed, t0, time.Hour, EventRef{}); !errors.Is(err, ErrExpired) || lease != claimed {
		t.Errorf("%+v, %v", lease, err)
	}
}

func TestEndsAt(t *testing.T) {
	s := Sandbox{Lease: Lease{ExpiresAt: t0.Add(time.Hour)}}
	if at, why := s.EndsAt(); !at.Equal(s.Lease.ExpiresAt) || why != EndDeadline {
		t.Errorf("%s by %s", at, why)
	}
	s.IdleExpiresAt = t0.Add(time.Minute)
	if at, why := s.EndsAt(); !at.Equal(s.IdleExpiresAt) || why != EndIdle {
		t.Errorf("%s by %s", at, why)
	}
}
