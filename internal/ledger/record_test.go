// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// chain numbers events as a log would.
func chain(id string, events ...Event) []Event {
	for i := range events {
		events[i].ID, events[i].Sequence = id, int64(i+1)
		events[i].Time = start.Add(time.Duration(i) * time.Second)
	}
	return events
}

func lease(generation int64, minutes int) *sdk.Lease {
	return &sdk.Lease{ExpiresAt: start.Add(time.Duration(minutes) * time.Minute), Generation: generation}
}

func TestFoldGivesStatusAndOpenness(t *testing.T) {
	const box, snap = "sbx-00000000000000000000", "snp-00000000000000000000"
	for name, c := range map[string]struct {
		id     string
		types  []Type
		status sdk.Status
		open   bool
	}{
		"only intended":                      {box, []Type{Intended}, sdk.StatusCreating, true},
		"has a ref":                          {box, []Type{Intended, Created}, sdk.StatusCreating, true},
		"nothing was made":                   {box, []Type{Intended, CreateFailed}, sdk.StatusFailed, false},
		"ready":                              {box, []Type{Intended, Created, Ready}, sdk.StatusReady, true},
		"never ready":                        {box, []Type{Intended, Created, Failed}, sdk.StatusFailed, true},
		"from a snapshot":                    {box, []Type{Intended, Restored, Ready}, sdk.StatusReady, true},
		"extended":                           {box, []Type{Intended, Created, Ready, Extended}, sdk.StatusReady, true},
		"a refused extend":                   {box, []Type{Intended, Created, Ready, ExtendDenied}, sdk.StatusReady, true},
		"shortened":                          {box, []Type{Intended, Created, Ready, Shortened}, sdk.StatusReady, true},
		"claiming":                           {box, []Type{Intended, Created, Ready, Claiming}, sdk.StatusReady, true},
		"paused":                             {box, []Type{Intended, Created, Ready, Paused}, sdk.StatusPaused, true},
		"extended while paused":              {box, []Type{Intended, Created, Ready, Paused, Extended}, sdk.StatusPaused, true},
		"resumed":                            {box, []Type{Intended, Created, Ready, Paused, Resumed}, sdk.StatusReady, true},
		"snapshots only tell":                {box, []Type{Intended, Created, Ready, Snapshotting, Snapshotted, SnapshotFailed, SnapshotDeleted}, sdk.StatusReady, true},
		"expired":                            {box, []Type{Intended, Created, Ready, Expired}, sdk.StatusExpired, true},
		"a destroy under way":                {box, []Type{Intended, Created, Ready, Claiming, Destroying}, sdk.StatusDestroying, true},
		"a destroy that failed":              {box, []Type{Intended, Created, Ready, Destroying, DestroyFailed}, sdk.StatusDestroying, true},
		"destroyed":                          {box, []Type{Intended, Created, Ready, Destroying, Destroyed}, sdk.StatusDestroyed, false},
		"lost is not proven gone":            {box, []Type{Intended, Created, Ready, Lost}, sdk.StatusLost, true},
		"a late event changes no end":        {box, []Type{Intended, Destroyed, Expired, Ready, Paused}, sdk.StatusDestroyed, false},
		"seen again after its end":           {box, []Type{Intended, Destroyed, OrphanDetected}, sdk.StatusDestroying, true},
		"made elsewhere, extended here":      {box, []Type{Extended}, sdk.StatusCreating, true},
		"an unknown type changes nothing":    {box, []Type{Intended, Created, Ready, "teleported"}, sdk.StatusReady, true},
		"a snapshot under way":               {snap, []Type{Intended}, sdk.StatusCreating, true},
		"a snapshot":                         {snap, []Type{Intended, Snapshotted}, sdk.StatusReady, true},
		"a snapshot kept longer":             {snap, []Type{Intended, Snapshotted, Extended}, sdk.StatusReady, true},
		"a snapshot that failed":             {snap, []Type{Intended, SnapshotFailed}, sdk.StatusFailed, false},
		"a snapshot's delete under way":      {snap, []Type{Intended, Snapshotted, Destroying}, sdk.StatusDestroying, true},
		"a snapshot deleted":                 {snap, []Type{Intended, Snapshotted, Destroying, SnapshotDeleted}, sdk.StatusDestroyed, false},
		"no event is no record (and closed)": {box, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			var events []Event
			for _, typ := range c.types {
				events = append(events, Event{Type: typ})
			}
			r := Fold(chain(c.id, events...))
			if r.Status != c.status || r.Open != c.open {
				t.Errorf("status %q, open %v; want %q, %v", r.Status, r.Open, c.status, c.open)
			}
			if r.Known() && r.Open != r.ClosedAt.IsZero() {
				t.Errorf("open %v, but closed at %s", r.Open, r.ClosedAt)
			}
		})
	}
}

func TestALogWithoutAnIntentKnowsItsFleet(t *testing.T) {
	if r := Fold(chain("sbx-00000000000000000000", Event{Type: DestroyFailed, Fleet: "ci"})); r.Fleet != "ci" || r.Intended {
		t.Errorf("%+v", r)
	}
}

func TestFoldTakesTheFacts(t *testing.T) {
	const box = "sbx-00000000000000000000"
	intent := &Intent{
		Fleet: "ci", Identity: sdk.Identity{ID: box, Fleet: "ci", Owner: "payments"},
		Profile: sdk.Profile{Name: "e2e"}, OnExpiry: sdk.OnExpirySnapshot, RestoredFrom: "snp-00000000000000000000",
	}
	got := Fold(chain(box,
		Event{Type: Intended, Backend: "build1", Intent: intent, Lease: lease(0, 30)},
		Event{Type: Created, Ref: "c0ffee", Incarnation: 1, Lease: lease(1, 30)},
		Event{Type: Ready, Reason: "ready"},
		Event{Type: Extended, Lease: lease(3, 90)},
		Event{Type: ExtendDenied, Lease: lease(2, 60), Reason: "conflict"},
		Event{Type: Expired, Reason: "deadline", Message: "the deadline passed", Incarnation: 2},
		Event{Type: Destroying, Reason: "reap"},
		Event{Type: DestroyFailed, Reason: "unreachable"},
		Event{Type: Destroyed, Reason: "reap"},
	))
	want := Record{
		ID: box, Kind: KindSandbox, Fleet: "ci", Backend: "build1", Ref: "c0ffee", Incarnation: 2,
		Status: sdk.StatusDestroyed, Reason: "reap", Identity: intent.Identity, Lease: *lease(3, 90),
		Profile: intent.Profile, OnExpiry: intent.OnExpiry, RestoredFrom: intent.RestoredFrom,
		EndReason: "deadline", EndMessage: "the deadline passed",
		Intended: true, BeganAt: start, ClosedAt: start.Add(8 * time.Second),
		Sequence: 9, LastType: Destroyed, LastTime: start.Add(8 * time.Second),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
