// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// stubborn is a backend that can't destroy one object.
type stubborn struct {
	*saasstub.Extension
	id *string
}

func (s stubborn) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	if opts.Target.ID == *s.id {
		return sdk.DestroyResult{Existed: true, Leftovers: []string{"box " + opts.Target.Ref}}, sdk.Errorf(sdk.ErrUnreachable, "its host is on fire")
	}
	return s.Extension.Destroy(ctx, opts)
}

func TestOneBrokenObjectDoesNotStopTheRest(t *testing.T) {
	c := clock.NewFake(start)
	c.Auto = true
	var broken string
	clouds := map[string]*saasstub.Server{"cloud": saasstub.NewServer(saasstub.ServerOptions{Clock: c})}
	y := newYardOn(t, c, clouds, "ci", func(_ string, e *saasstub.Extension) sdk.Extension { return stubborn{e, &broken} })
	want := map[string]string{}
	for range 20 {
		want[y.create(t, time.Minute)] = OutcomeRemoved
	}
	broken = y.alive()[7]
	want[broken] = OutcomeFailed
	c.Advance(time.Minute)
	report := y.sweep(t)
	if diff := cmp.Diff(want, outcomes(report)); diff != "" || report.Failed != 1 || report.Removed != 19 || report.Clean() {
		t.Errorf("%s%+v", diff, report)
	}
	// The claim stands, and the next sweep goes on where this one failed.
	at := broken
	broken = ""
	if report := y.sweep(t); !cmp.Equal(outcomes(report), map[string]string{at: OutcomeRemoved}) || len(y.alive()) != 0 {
		t.Errorf("%+v, %v", report, y.alive())
	}
}

func TestAnUnreachableBackendIsNamedAndTheOthersAreSwept(t *testing.T) {
	c := clock.NewFake(start)
	c.Auto = true
	clouds := map[string]*saasstub.Server{}
	for _, name := range []string{"cloud", "down"} {
		clouds[name] = saasstub.NewServer(saasstub.ServerOptions{Clock: c})
	}
	y := newYardOn(t, c, clouds, "ci", nil)
	lost, err := y.manager.Create(t.Context(), lifecycle.CreateOptions{Profile: sdk.Profile{Name: "e2e"}, TTL: time.Minute, Backend: "down"})
	if err != nil {
		t.Fatal(err)
	}
	id := y.create(t, time.Minute)
	c.Advance(time.Minute)
	clouds["down"].Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken}, saasstub.Fault{Call: saasstub.CallListImages, Lie: saasstub.Broken})
	report := y.sweep(t)
	if diff := cmp.Diff(map[string]string{id: OutcomeRemoved}, outcomes(report)); diff != "" {
		t.Error(diff)
	}
	if report.Unreachable["down"] == "" || report.Clean() {
		t.Errorf("%+v", report)
	}
	if record, err := y.ledger.Get(t.Context(), lost.ID); err != nil || !record.Open {
		t.Errorf("unreachable is not gone: %+v, %v", record, err)
	}
	clouds["down"].Heal()
	if report := y.sweep(t); !cmp.Equal(outcomes(report), map[string]string{lost.ID: OutcomeRemoved}) || !report.Clean() {
		t.Errorf("healed: %+v", report)
	}
}

func TestAClaimWhoseHolderDiedIsContinued(t *testing.T) {
	y := newYard(t)
	id := y.create(t, time.Hour)
	e := saasstub.New(saasstub.Options{Server: y.clouds["cloud"]})
	target := sdk.Target{ID: id, Fleet: "ci"}
	if _, err := e.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 1, Holder: "a reaper that died"}); err != nil {
		t.Fatal(err)
	}
	if _, err := y.manager.Extend(t.Context(), id, lifecycle.ExtendOptions{TTL: 2 * time.Hour}); !errors.Is(err, sdk.ErrExpired) {
		t.Errorf("extend after a claim: %v", err)
	}
	report := y.sweep(t)
	if len(report.Items) != 1 || report.Items[0].Reason != ReasonUnfinished || report.Removed != 1 || len(y.alive()) != 0 {
		t.Errorf("%+v", report)
	}
}

// A thing that was seen gone and is listed again is not believed gone.
func TestWhatReappearsIsFoundAndReaped(t *testing.T) {
	y := newYard(t)
	id := y.create(t, time.Hour)
	lie := ledger.Event{Type: ledger.Destroyed, Reason: "user"}
	if _, _, err := y.ledger.Append(t.Context(), id, func(ledger.Record) (ledger.Event, error) { return lie, nil }); err != nil {
		t.Fatal(err)
	}
	leaks, err := y.Leaks(t.Context(), "")
	if err != nil || len(leaks.Items) != 1 || leaks.Items[0].ID != id || leaks.Items[0].Reason != ReasonReappeared || leaks.Clean() {
		t.Errorf("%+v, %v", leaks, err)
	}
	if report := y.sweep(t); len(report.Items) != 0 {
		t.Errorf("its deadline has not passed: %+v", report)
	}
	y.clock.Advance(time.Hour)
	selection := y.plan(t, Options{})
	if len(selection.Items) != 1 || selection.Items[0].Reason != ReasonReappeared {
		t.Fatalf("%+v", selection)
	}
	report, err := y.Run(t.Context(), selection)
	if err != nil || report.Removed != 1 || len(y.alive()) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	events, err := y.ledger.Events(t.Context(), id)
	if err != nil || !slices.ContainsFunc(events, func(e ledger.Event) bool { return e.Type == ledger.OrphanDetected }) {
		t.Errorf("%+v, %v", events, err)
	}
	if record := ledger.Fold(events); record.Open {
		t.Errorf("%+v", record)
	}
}

func TestTheBoundTakesTheLongestOverdueFirst(t *testing.T) {
	y := newYard(t)
	var want []string
	for minutes := 5; minutes > 0; minutes-- {
		want = append([]string{y.create(t, time.Duration(minutes)*time.Minute)}, want...)
	}
	y.clock.Advance(time.Hour)
	selection := y.plan(t, Options{Max: 2})
	if diff := cmp.Diff(want[:2], ids(selection.Items)); diff != "" || selection.Postponed != 3 {
		t.Errorf("%s, %d postponed", diff, selection.Postponed)
	}
}

func TestSnapshotsEndWithTheirRetention(t *testing.T) {
	y := newYard(t)
	source := y.create(t, 20*time.Hour)
	var made []string
	for _, ttl := range []time.Duration{time.Hour, time.Hour, 10 * time.Hour} {
		s, err := y.manager.Snapshot(t.Context(), source, lifecycle.SnapshotOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, s.ID)
	}
	y.clock.Advance(2 * time.Hour)
	selection := y.plan(t, Options{})
	if diff := cmp.Diff(slices.Sorted(slices.Values(made[:2])), ids(selection.Items)); diff != "" {
		t.Fatal(diff)
	}
	if _, err := y.manager.ExtendSnapshot(t.Context(), made[1], lifecycle.ExtendSnapshotOptions{To: y.clock.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	report, err := y.Run(t.Context(), selection)
	if diff := cmp.Diff(map[string]string{made[0]: OutcomeRemoved, made[1]: OutcomeSkipped}, outcomes(report)); diff != "" || err != nil {
		t.Error(diff, err)
	}
	left, err := y.manager.Snapshots(t.Context(), lifecycle.ListSnapshotsOptions{})
	if err != nil || len(left.Snapshots) != 2 {
		t.Errorf("%+v, %v", left, err)
	}
}

func TestLeaksAreFoundInBothDirections(t *testing.T) {
	y := newYard(t)
	ours, lost, overdue := y.create(t, time.Hour), y.create(t, time.Hour), y.create(t, time.Minute)
	elsewhere := newYardOn(t, y.clock, y.clouds, "ci", nil)
	unknown := elsewhere.create(t, time.Hour)
	snapshot := func(of yard, source string, ttl time.Duration) string {
		made, err := of.manager.Snapshot(t.Context(), source, lifecycle.SnapshotOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	kept := []string{snapshot(y, ours, time.Hour), snapshot(y, ours, time.Hour), snapshot(y, ours, time.Minute)}
	stranger := snapshot(elsewhere, unknown, time.Hour)
	e := saasstub.New(saasstub.Options{Server: y.clouds["cloud"]})
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: lost, Fleet: "ci"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: kept[0], Fleet: "ci"}); err != nil {
		t.Fatal(err)
	}
	deleted := ledger.Event{Type: ledger.SnapshotDeleted}
	if _, _, err := y.ledger.Append(t.Context(), kept[1], func(ledger.Record) (ledger.Event, error) { return deleted, nil }); err != nil {
		t.Fatal(err)
	}
	y.clock.Advance(time.Minute)
	leaks, err := y.Leaks(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, item := range leaks.Items {
		got[item.ID] = item.Kind + " " + item.Reason
	}
	want := map[string]string{
		unknown: "sandbox unknown", lost: "sandbox lost", overdue: "sandbox overdue",
		kept[0]: "snapshot lost", kept[1]: "snapshot reappeared", kept[2]: "snapshot overdue", stranger: "snapshot unknown",
	}
	if diff := cmp.Diff(want, got); diff != "" || leaks.Clean() {
		t.Error(diff)
	}
	if !slices.Contains(y.alive(), overdue) || !slices.Contains(y.alive(), ours) {
		t.Error("looking has changed something")
	}
}

// At the very deadline somebody extends and a sweep runs: exactly one wins.
func TestExtendAndSweepRace(t *testing.T) {
	won := map[string]int{}
	for round := range 40 {
		y := newYard(t)
		id := y.create(t, 10*time.Minute)
		y.clock.Advance(10*time.Minute - time.Nanosecond)
		selection := Selection{Fleet: "ci", Items: []Item{{Kind: KindSandbox, ID: id, Backend: "cloud"}}}
		var wg sync.WaitGroup
		var extended error
		wg.Go(func() {
			_, extended = y.manager.Extend(t.Context(), id, lifecycle.ExtendOptions{TTL: time.Hour})
		})
		// Later from round to round, so that each of them wins now and then.
		time.Sleep(time.Duration(round) * 500 * time.Microsecond)
		y.clock.Advance(time.Nanosecond)
		report, err := y.Run(t.Context(), selection)
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		outcome := report.Results[0].Outcome
		alive := len(y.alive()) == 1
		switch {
		case extended == nil && outcome == OutcomeSkipped && alive:
			won["extend"]++
		case extended != nil && outcome == OutcomeRemoved && !alive:
			won["reap"]++
		case extended != nil && outcome == OutcomeSkipped && alive:
			// The sweep came before the deadline, the extend after it.
			won["neither"]++
		default:
			t.Fatalf("round %d: extend says %v, the sweep %s, alive %v", round, extended, outcome, alive)
		}
	}
	t.Logf("%v", won)
}

func TestAContextThatEndsLeavesTheRestNotBegun(t *testing.T) {
	y := newYard(t)
	id := y.create(t, time.Minute)
	y.clock.Advance(time.Minute)
	selection := y.plan(t, Options{})
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := y.Run(cancelled, selection)
	if !errors.Is(err, context.Canceled) || report.Failed != 1 || !cmp.Equal(y.alive(), []string{id}) {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestTombstonesArePrunedAfterTheirRetention(t *testing.T) {
	y := newYard(t)
	id := y.create(t, time.Minute)
	y.clock.Advance(time.Minute)
	y.sweep(t)
	y.clock.Advance(ledger.DefaultRetention + time.Second)
	if report := y.sweep(t); report.Pruned != 1 {
		t.Errorf("%+v", report)
	}
	if record, err := y.ledger.Get(t.Context(), id); err != nil || record.Known() {
		t.Errorf("%+v, %v", record, err)
	}
}

func TestEverySweepsUntilTheContextEnds(t *testing.T) {
	y := newYard(t)
	for n := range 3 {
		y.create(t, time.Duration(n+1)*time.Minute)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	err := y.Every(ctx, 90*time.Second, Options{}, func(r Report, err error) {
		told = append(told, fmt.Sprint(r.Removed, err))
		if len(told) == 4 {
			cancel()
		}
	})
	if diff := cmp.Diff([]string{"0 <nil>", "1 <nil>", "2 <nil>", "0 <nil>"}, told); diff != "" || !errors.Is(err, context.Canceled) {
		t.Error(diff, err)
	}
	if err := y.Every(t.Context(), 0, Options{}, nil); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("no interval: %v", err)
	}
}
