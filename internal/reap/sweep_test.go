// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestASweepTakesWhatIsDueAndNothingElse(t *testing.T) {
	y := newYard(t)
	short, long := y.create(t, 10*time.Minute), y.create(t, time.Hour)
	if got := y.plan(t, Options{}); len(got.Items) != 0 {
		t.Errorf("before any deadline: %+v", got)
	}
	y.clock.Advance(10 * time.Minute)
	selection := y.plan(t, Options{})
	if diff := cmp.Diff([]string{short}, ids(selection.Items)); diff != "" {
		t.Fatal(diff)
	}
	if len(y.alive()) != 2 {
		t.Error("the plan has changed something")
	}
	report, err := y.Run(t.Context(), selection)
	if err != nil || report.Removed != 1 || !report.Clean() {
		t.Errorf("%+v, %v", report, err)
	}
	if diff := cmp.Diff([]string{long}, y.alive()); diff != "" {
		t.Error(diff)
	}
	record, err := y.ledger.Get(t.Context(), short)
	if err != nil || record.Open || record.Reason != string(sdk.EndDeadline) {
		t.Errorf("%+v, %v", record, err)
	}
	if again := y.sweep(t); len(again.Items) != 0 || !again.Clean() {
		t.Errorf("again: %+v", again)
	}
}

func TestExecutionOnlyShrinksTheSelection(t *testing.T) {
	y := newYard(t)
	extended, removed, kept := y.create(t, 10*time.Minute), y.create(t, 10*time.Minute), y.create(t, 11*time.Minute)
	gone := y.create(t, 10*time.Minute)
	// A selection of another machine, whose clock is ahead, lists what is not due here.
	selection := Selection{Fleet: "ci", Items: []Item{
		{Kind: KindSandbox, ID: extended, Backend: "cloud"}, {Kind: KindSandbox, ID: removed, Backend: "cloud"}, {Kind: KindSandbox, ID: gone, Backend: "cloud"},
	}}
	if _, err := y.manager.Extend(t.Context(), extended, lifecycle.ExtendOptions{TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := y.manager.Destroy(t.Context(), gone, lifecycle.DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	y.clock.Advance(12 * time.Minute) // kept is due too by now, and was not selected
	report, err := y.Run(t.Context(), selection)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{extended: OutcomeSkipped, removed: OutcomeRemoved, gone: OutcomeGone}
	if diff := cmp.Diff(want, outcomes(report)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{extended, kept}, y.alive()); diff != "" {
		t.Error(diff)
	}
}

func TestAnotherFleetIsNeitherSeenNorTouched(t *testing.T) {
	y := newYard(t)
	theirs := newYardOn(t, y.clock, y.clouds, "cd", nil)
	foreign := theirs.create(t, time.Minute)
	ours := y.create(t, time.Minute)
	y.clock.Advance(time.Hour)
	if report := y.sweep(t); !cmp.Equal(ids(report.Items), []string{ours}) {
		t.Errorf("%+v", report)
	}
	// Not even when a selection names it.
	report, err := y.Run(t.Context(), Selection{Items: []Item{{Kind: KindSandbox, ID: foreign, Backend: "cloud"}}})
	if err != nil || report.Removed != 0 || !cmp.Equal(y.alive(), []string{foreign}) {
		t.Errorf("%+v, %v, %v", report, err, y.alive())
	}
}

func TestASandboxThatOnlyItsBackendKnowsIsReaped(t *testing.T) {
	y := newYard(t)
	id := y.create(t, time.Minute)
	elsewhere := newYardOn(t, y.clock, y.clouds, "ci", nil) // the same fleet, another machine
	y.clock.Advance(time.Minute)
	if report := elsewhere.sweep(t); report.Removed != 1 || !report.Clean() {
		t.Errorf("%+v", report)
	}
	// And here it is known afterwards that it has ended, without a removal.
	report := y.sweep(t)
	if diff := cmp.Diff(map[string]string{id: OutcomeGone}, outcomes(report)); diff != "" || !report.Clean() {
		t.Error(diff)
	}
	if record, err := y.ledger.Get(t.Context(), id); err != nil || record.Open {
		t.Errorf("%+v, %v", record, err)
	}
}

// An intent whose create died in between is left alone until its deadline:
// its process may still be at work.
func TestAnIntentIsReapedAtItsDeadlineAndNeverEarlier(t *testing.T) {
	for name, made := range map[string]bool{"nothing was made": false, "it was made and no answer came": true} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			id := sandbox.NewID(start)
			identity := sdk.Identity{ID: id, Fleet: "ci", Incarnation: 1, CreatedAt: start}
			lease := sdk.Lease{ExpiresAt: start.Add(time.Hour), MaxExpiresAt: start.Add(time.Hour), Generation: 1}
			intent := ledger.Event{Type: ledger.Intended, Backend: "cloud", Lease: &lease, Intent: &ledger.Intent{Fleet: "ci", Identity: identity}}
			if _, _, err := y.ledger.Append(t.Context(), id, func(ledger.Record) (ledger.Event, error) { return intent, nil }); err != nil {
				t.Fatal(err)
			}
			want := OutcomeGone
			if made {
				want = OutcomeRemoved
				e := saasstub.New(saasstub.Options{Server: y.clouds["cloud"]})
				if _, err := e.Create(t.Context(), sdk.CreateOptions{ID: id, Identity: identity, ExpiresAt: lease.ExpiresAt}); err != nil {
					t.Fatal(err)
				}
			}
			y.clock.Advance(time.Hour - time.Nanosecond)
			if report := y.sweep(t); len(report.Items) != 0 {
				t.Errorf("too early: %+v", report)
			}
			y.clock.Advance(time.Nanosecond)
			report := y.sweep(t)
			if diff := cmp.Diff(map[string]string{id: want}, outcomes(report)); diff != "" || !report.Clean() || len(y.alive()) != 0 {
				t.Error(diff, y.alive())
			}
			if record, err := y.ledger.Get(t.Context(), id); err != nil || record.Open {
				t.Errorf("%+v, %v", record, err)
			}
		})
	}
}
