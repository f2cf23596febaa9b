// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

var start = time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)

// yard is one fleet with a reaper over clouds that lie on demand.
type yard struct {
	*Reaper
	manager *lifecycle.Manager
	ledger  *ledger.Ledger
	clock   *clock.Fake
	clouds  map[string]*saasstub.Server
}

// backends is a fixed set of extensions; one that is nil is unreachable.
type backends map[string]sdk.Extension

func (b backends) Open(_ context.Context, name string) (sdk.Extension, error) {
	if b[name] == nil {
		return nil, sdk.Errorf(sdk.ErrUnreachable, "%s is down", name)
	}
	return b[name], nil
}

func (b backends) Names() []string { return slices.Sorted(maps.Keys(b)) }
func (b backends) Default() string { return b.Names()[0] }

func newYard(t *testing.T) yard {
	t.Helper()
	c := clock.NewFake(start)
	c.Auto = true
	return newYardOn(t, c, map[string]*saasstub.Server{"cloud": saasstub.NewServer(saasstub.ServerOptions{Clock: c})}, "ci", nil)
}

// newYardOn is a fleet on clouds; wrap may put something before an extension.
func newYardOn(t *testing.T, c *clock.Fake, clouds map[string]*saasstub.Server, fleet string, wrap func(name string, e *saasstub.Extension) sdk.Extension) yard {
	t.Helper()
	all := backends{}
	for name, server := range clouds {
		e := saasstub.New(saasstub.Options{Server: server})
		if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: name, Fleet: fleet}); err != nil {
			t.Fatal(err)
		}
		all[name] = e
		if wrap != nil {
			all[name] = wrap(name, e)
		}
	}
	l := ledger.New(t.TempDir(), c)
	m := lifecycle.New(l, all, c, lifecycle.Settings{Fleet: fleet, Attribution: sandbox.Attribution{Actor: "tester"}})
	return yard{Reaper: New(m, l), manager: m, ledger: l, clock: c, clouds: clouds}
}

func (y yard) create(t *testing.T, ttl time.Duration) string {
	t.Helper()
	made, err := y.manager.Create(t.Context(), lifecycle.CreateOptions{Profile: sdk.Profile{Name: "e2e"}, TTL: ttl, Backend: "cloud"})
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func (y yard) plan(t *testing.T, opts Options) Selection {
	t.Helper()
	selection, err := y.Plan(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return selection
}

func (y yard) sweep(t *testing.T) Report {
	t.Helper()
	report, err := y.Sweep(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// alive returns the ids of the boxes in a cloud.
func (y yard) alive(cloud string) []string {
	var ids []string
	for _, b := range y.clouds[cloud].Boxes() {
		ids = append(ids, b.Name)
	}
	return ids
}

func ids(items []Item) []string {
	var found []string
	for _, item := range items {
		found = append(found, item.ID)
	}
	return found
}

func outcomes(r Report) map[string]string {
	found := map[string]string{}
	for _, result := range r.Results {
		found[result.ID] = result.Outcome
	}
	return found
}

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
	if len(y.alive("cloud")) != 2 {
		t.Error("the plan has changed something")
	}
	report, err := y.Run(t.Context(), selection)
	if err != nil || report.Removed != 1 || !report.Clean() {
		t.Errorf("%+v, %v", report, err)
	}
	if diff := cmp.Diff([]string{long}, y.alive("cloud")); diff != "" {
		t.Error(diff)
	}
	record, err := y.ledger.Get(t.Context(), short)
	if err != nil || record.Open || record.Reason != lifecycle.ReasonTTL {
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
	if diff := cmp.Diff([]string{extended, kept}, y.alive("cloud")); diff != "" {
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
	if err != nil || report.Removed != 0 || !cmp.Equal(y.alive("cloud"), []string{foreign}) {
		t.Errorf("%+v, %v, %v", report, err, y.alive("cloud"))
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
			if diff := cmp.Diff(map[string]string{id: want}, outcomes(report)); diff != "" || !report.Clean() || len(y.alive("cloud")) != 0 {
				t.Error(diff, y.alive("cloud"))
			}
			if record, err := y.ledger.Get(t.Context(), id); err != nil || record.Open {
				t.Errorf("%+v, %v", record, err)
			}
		})
	}
}

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
	broken = y.alive("cloud")[7]
	want[broken] = OutcomeFailed
	c.Advance(time.Minute)
	report := y.sweep(t)
	if diff := cmp.Diff(want, outcomes(report)); diff != "" || report.Failed != 1 || report.Removed != 19 || report.Clean() {
		t.Errorf("%s%+v", diff, report)
	}
	// The claim stands, and the next sweep goes on where this one failed.
	at := broken
	broken = ""
	if report := y.sweep(t); !cmp.Equal(outcomes(report), map[string]string{at: OutcomeRemoved}) || len(y.alive("cloud")) != 0 {
		t.Errorf("%+v, %v", report, y.alive("cloud"))
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
	if len(report.Items) != 1 || report.Items[0].Reason != ReasonUnfinished || report.Removed != 1 || len(y.alive("cloud")) != 0 {
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
	if err != nil || len(leaks.Reappeared) != 1 || leaks.Reappeared[0].ID != id || !leaks.Found() {
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
	if err != nil || report.Removed != 1 || len(y.alive("cloud")) != 0 {
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
	e := saasstub.New(saasstub.Options{Server: y.clouds["cloud"]})
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: lost, Fleet: "ci"}}); err != nil {
		t.Fatal(err)
	}
	y.clock.Advance(time.Minute)
	leaks, err := y.Leaks(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for kind, found := range map[string][]lifecycle.Sandbox{"unknown": leaks.Unknown, "lost": leaks.Lost, "overdue": leaks.Overdue, "reappeared": leaks.Reappeared} {
		for _, s := range found {
			got[s.ID] = kind
		}
	}
	if diff := cmp.Diff(map[string]string{unknown: "unknown", lost: "lost", overdue: "overdue"}, got); diff != "" || !leaks.Found() {
		t.Error(diff)
	}
	if !slices.Contains(y.alive("cloud"), overdue) || !slices.Contains(y.alive("cloud"), ours) {
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
		if round%2 == 0 {
			y.clock.Advance(time.Nanosecond)
		} else {
			wg.Go(func() { y.clock.Advance(time.Nanosecond) })
		}
		report, err := y.Run(t.Context(), selection)
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		outcome := report.Results[0].Outcome
		alive := len(y.alive("cloud")) == 1
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
	if !errors.Is(err, context.Canceled) || report.Failed != 1 || !cmp.Equal(y.alive("cloud"), []string{id}) {
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
