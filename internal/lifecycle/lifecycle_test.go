// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestLife(t *testing.T) {
	h := newHouse(t)
	var early Sandbox
	made := h.create(t, CreateOptions{TTL: 30 * time.Minute, Labels: map[string]string{"suite": "checkout"}, Created: func(s Sandbox) { early = s }})
	if early.ID != made.ID || early.Ref == "" || early.Status != sdk.StatusCreating {
		t.Errorf("the identity that is handed out before any wait: %+v", early)
	}
	if made.Status != sdk.StatusReady || made.Owner != "payments" || made.Labels["suite"] != "checkout" || !made.Known {
		t.Errorf("created: %+v", made)
	}
	if want := start.Add(30 * time.Minute); made.ExpiresAt.Sub(want).Abs() > time.Second {
		t.Errorf("expires at %s, want %s", made.ExpiresAt, want)
	}
	extended, err := h.Extend(t.Context(), made.ID, ExtendOptions{By: time.Hour})
	if err != nil || !extended.ExpiresAt.Equal(made.ExpiresAt.Add(time.Hour)) || extended.Generation != made.Generation+1 {
		t.Errorf("extended to %s at generation %d: %v", extended.ExpiresAt, extended.Generation, err)
	}
	var out strings.Builder
	result, err := h.Exec(t.Context(), made.ID, ExecOptions{Command: []string{"echo", "hello"}, Stdout: &out})
	if err != nil || result.ExitCode != 0 || out.String() != "hello\n" {
		t.Errorf("exec: %+v %q %v", result, out.String(), err)
	}
	destroyed, err := h.Destroy(t.Context(), made.ID, DestroyOptions{Reason: "user"})
	if err != nil || !destroyed.Existed {
		t.Errorf("destroy: %+v %v", destroyed, err)
	}
	if boxes := h.server.Boxes(); len(boxes) != 0 {
		t.Errorf("left at the backend: %v", boxes)
	}
	want := []ledger.Type{ledger.Intended, ledger.Created, ledger.Ready, ledger.Extending, ledger.Extended, ledger.Claiming, ledger.Destroying, ledger.Destroyed}
	if got := h.types(t, made.ID); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	after, err := h.Get(t.Context(), made.ID, GetOptions{})
	if err != nil || after.Status != sdk.StatusDestroyed {
		t.Errorf("the tombstone: %+v %v", after, err)
	}
	again, err := h.Destroy(t.Context(), made.ID, DestroyOptions{})
	if err != nil || again.Existed {
		t.Errorf("a second destroy: %+v %v", again, err)
	}
}

// The intent is on disk before the backend is asked, whatever the backend
// then does; and nothing is left that the ledger does not know of.
func TestCreateUnderFaults(t *testing.T) {
	cases := map[string]struct {
		faults  []saasstub.Fault
		created bool
	}{
		"the answer is lost":        {[]saasstub.Fault{{Call: saasstub.CallCreateBox, Lie: saasstub.LoseAnswer, On: 1}}, true},
		"the request arrives twice": {[]saasstub.Fault{{Call: saasstub.CallCreateBox, Lie: saasstub.Twice, On: 1}}, true},
		"the request is lost":       {[]saasstub.Fault{{Call: saasstub.CallCreateBox, Lie: saasstub.LoseRequest, On: 1}}, false},
		"the answer is lost, then it is hidden": {[]saasstub.Fault{
			{Call: saasstub.CallCreateBox, Lie: saasstub.LoseAnswer, On: 1},
			{Call: saasstub.CallListBoxes, Lie: saasstub.Broken}, {Call: saasstub.CallGetBox, Lie: saasstub.Broken},
		}, false},
		"it dies right away": {[]saasstub.Fault{{Call: saasstub.CallCreateBox, Lie: saasstub.DieEarly, On: 1}}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.server.Inject(c.faults...)
			made, err := h.Create(t.Context(), CreateOptions{Profile: profile()})
			h.server.Heal()
			if c.created != (err == nil) {
				t.Fatalf("created %v, error %v", made, err)
			}
			if boxes := len(h.server.Boxes()); boxes > 1 || (c.created && boxes != 1) {
				t.Fatalf("%d boxes from one intent", boxes)
			}
			// What is there has an open log, with the intent in it.
			if open := h.open(t); len(open) < len(h.server.Boxes()) {
				t.Fatalf("%d open logs for %d boxes", len(open), len(h.server.Boxes()))
			}
			if !c.created && made.ID != "" {
				t.Fatalf("a failed create that left nothing returned %s", made.ID)
			}
		})
	}
}

func TestCreateRollsBackOnCancel(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	made, err := h.Create(ctx, CreateOptions{Profile: profile(), Created: func(Sandbox) { cancel() }})
	if err == nil || made.ID != "" {
		t.Fatalf("got %v, %v", made, err)
	}
	if boxes := h.server.Boxes(); len(boxes) != 0 {
		t.Errorf("left at the backend: %v", boxes)
	}
	if open := h.open(t); len(open) != 0 {
		t.Errorf("left open: %v", open)
	}
}

func TestFailedSetup(t *testing.T) {
	for onFailed, left := range map[string]int{"": 0, OnFailedDestroy: 0, OnFailedKeep: 1} {
		t.Run("on_failed="+onFailed, func(t *testing.T) {
			h := newHouse(t)
			p := profile()
			p.Setup = [][]string{{"echo", "step one"}, {"exit", "3"}}
			made, err := h.Create(t.Context(), CreateOptions{Profile: p, OnFailed: onFailed})
			if err == nil || !strings.Contains(err.Error(), "setup[1]") || !strings.Contains(err.Error(), "exit code 3") {
				t.Errorf("the error %v does not name the step and its exit code", err)
			}
			if boxes := len(h.server.Boxes()); boxes != left || (left == 1) != (made.ID != "") {
				t.Errorf("%d boxes left, returned %q", boxes, made.ID)
			}
			if left == 1 {
				view, err := h.Get(t.Context(), made.ID, GetOptions{})
				if err != nil || view.Status != sdk.StatusFailed {
					t.Errorf("the kept sandbox: %+v %v", view, err)
				}
			}
		})
	}
}

// Destroy succeeds only when the thing is gone.
func TestDestroyUnderLies(t *testing.T) {
	cases := map[string][]saasstub.Fault{
		"says deleted and keeps it":   {{Call: saasstub.CallDeleteBox, Lie: saasstub.Pretend}},
		"answers 404 for a live one":  {{Call: saasstub.CallGetBox, Lie: saasstub.NotFound}, {Call: saasstub.CallDeleteBox, Lie: saasstub.NotFound}},
		"loses the request":           {{Call: saasstub.CallDeleteBox, Lie: saasstub.LoseRequest}},
		"is in transition for ever":   {{Call: saasstub.CallDeleteBox, Lie: saasstub.InTransition}},
		"limits the rate for ever":    {{Call: saasstub.CallDeleteBox, Lie: saasstub.RateLimited}},
		"can't be asked":              {{Call: saasstub.CallGetBox, Lie: saasstub.Broken}, {Call: saasstub.CallListBoxes, Lie: saasstub.Broken}},
		"keeps it and drops the page": {{Call: saasstub.CallDeleteBox, Lie: saasstub.Pretend}, {Call: saasstub.CallListBoxes, Lie: saasstub.DropPage}},
	}
	for name, faults := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			made := h.create(t, CreateOptions{})
			h.server.Inject(faults...)
			_, err := h.Destroy(t.Context(), made.ID, DestroyOptions{})
			h.server.Heal()
			if err == nil && len(h.server.Boxes()) != 0 {
				t.Fatal("success for a sandbox that is still there")
			}
			if err == nil {
				t.Fatal("the lie did not reach the destroy: the test proves nothing")
			}
			if len(h.open(t)) != 1 {
				t.Fatal("the log was closed over a sandbox that is still there")
			}
			if _, err := h.Destroy(t.Context(), made.ID, DestroyOptions{}); err != nil || len(h.server.Boxes()) != 0 {
				t.Fatalf("the next destroy: %v, %d boxes", err, len(h.server.Boxes()))
			}
		})
	}
}

func TestDestroyAcceptsLostAnswer(t *testing.T) {
	h := newHouse(t)
	made := h.create(t, CreateOptions{})
	h.server.Inject(saasstub.Fault{Call: saasstub.CallDeleteBox, Lie: saasstub.LoseAnswer, On: 1})
	if _, err := h.Destroy(t.Context(), made.ID, DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(h.server.Boxes()) != 0 || len(h.open(t)) != 0 {
		t.Error("something is left")
	}
}

func TestExtend(t *testing.T) {
	h := newHouse(t)
	made := h.create(t, CreateOptions{TTL: time.Hour})
	deadline := func() time.Time {
		view, err := h.Get(t.Context(), made.ID, GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return view.ExpiresAt
	}
	t.Run("never shortens", func(t *testing.T) {
		before := deadline()
		if _, err := h.Extend(t.Context(), made.ID, ExtendOptions{TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Extend(t.Context(), made.ID, ExtendOptions{To: before.Add(-time.Minute)}); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("to an earlier time: %v", err)
		}
		if !deadline().Equal(before) {
			t.Errorf("the deadline moved from %s to %s", before, deadline())
		}
	})
	t.Run("refuses more than the maximum", func(t *testing.T) {
		before := deadline()
		_, err := h.Extend(t.Context(), made.ID, ExtendOptions{TTL: 100 * time.Hour})
		var typed *sdk.Error
		if !errors.As(err, &typed) || typed.Path != "ttl" || !deadline().Equal(before) {
			t.Errorf("error %v, deadline %s", err, deadline())
		}
		view, err := h.Extend(t.Context(), made.ID, ExtendOptions{TTL: 100 * time.Hour, AllowLess: true})
		if err != nil || !view.ExpiresAt.Equal(view.MaxExpiresAt) {
			t.Errorf("allowed less: %+v %v", view, err)
		}
	})
	t.Run("says when less was granted", func(t *testing.T) {
		h := newHouse(t)
		made := h.create(t, CreateOptions{TTL: time.Hour})
		h.server.Inject(saasstub.Fault{Call: saasstub.CallUpdateBox, Lie: saasstub.Clamp, For: 30 * time.Minute})
		if _, err := h.Extend(t.Context(), made.ID, ExtendOptions{By: time.Hour}); err == nil {
			t.Error("a clamped deadline passed for the one asked for")
		}
	})
	t.Run("is refused past the deadline", func(t *testing.T) {
		h.clock.Advance(200 * time.Hour)
		if _, err := h.Extend(t.Context(), made.ID, ExtendOptions{By: time.Hour}); !errors.Is(err, sdk.ErrExpired) {
			t.Errorf("got %v", err)
		}
	})
	if _, err := h.Extend(t.Context(), made.ID, ExtendOptions{By: time.Hour, TTL: time.Hour}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("two of ttl, by, to: %v", err)
	}
}

func TestExpire(t *testing.T) {
	h := newHouse(t)
	made := h.create(t, CreateOptions{TTL: time.Hour})
	view, err := h.Expire(t.Context(), made.ID, ExpireOptions{At: start.Add(10 * time.Minute)})
	if err != nil || !view.ExpiresAt.Equal(start.Add(10*time.Minute)) {
		t.Fatalf("%+v %v", view, err)
	}
	if view, err = h.Expire(t.Context(), made.ID, ExpireOptions{At: start.Add(20 * time.Minute)}); err != nil || !view.ExpiresAt.Equal(start.Add(10*time.Minute)) {
		t.Fatalf("expire lengthened: %+v %v", view, err)
	}
	if _, err = h.Expire(t.Context(), made.ID, ExpireOptions{}); err != nil {
		t.Fatal(err)
	}
	h.clock.Advance(time.Millisecond)
	if view, err = h.Get(t.Context(), made.ID, GetOptions{}); err != nil || view.Status != sdk.StatusExpired {
		t.Fatalf("%+v %v", view, err)
	}
}

func TestStatusOfWhatHasEnded(t *testing.T) {
	t.Run("gone before its deadline is lost", func(t *testing.T) {
		h := newHouse(t)
		made := h.create(t, CreateOptions{TTL: time.Hour})
		if err := h.server.Kill(made.Ref); err != nil {
			t.Fatal(err)
		}
		if view, err := h.Get(t.Context(), made.ID, GetOptions{}); err != nil || view.Status != sdk.StatusLost {
			t.Errorf("%+v %v", view, err)
		}
	})
	t.Run("gone after its deadline is expired, also for a ledger that does not know it", func(t *testing.T) {
		h := newHouse(t)
		made := h.create(t, CreateOptions{TTL: time.Hour})
		other := newHouseOn(t, h.clock, h.server, "ci", saasstub.Options{})
		h.clock.Advance(2 * time.Hour)
		if _, err := h.Destroy(t.Context(), made.ID, DestroyOptions{Reason: string(sdk.EndDeadline)}); err != nil {
			t.Fatal(err)
		}
		if view, err := h.Get(t.Context(), made.ID, GetOptions{}); err != nil || view.Status != sdk.StatusExpired {
			t.Errorf("its own ledger: %+v %v", view, err)
		}
		// What refuses it calls it the same.
		const same = "its status is expired"
		if _, err := h.Extend(t.Context(), made.ID, ExtendOptions{By: time.Hour}); !errors.Is(err, sdk.ErrExpired) || !strings.Contains(err.Error(), same) {
			t.Errorf("extend: %v", err)
		}
		if _, err := h.Exec(t.Context(), made.ID, ExecOptions{Command: []string{"true"}}); !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), same) {
			t.Errorf("exec: %v", err)
		}
		view, err := other.Get(t.Context(), made.ID, GetOptions{Backend: "cloud", ExpiresAt: made.ExpiresAt})
		if err != nil || view.Status != sdk.StatusExpired {
			t.Errorf("another ledger: %+v %v", view, err)
		}
		if _, err := other.Get(t.Context(), made.ID, GetOptions{Backend: "cloud"}); !errors.Is(err, sdk.ErrNotFound) {
			t.Errorf("nobody knows it: %v", err)
		}
	})
	t.Run("unreachable is an error before the deadline and counts as expired long after it", func(t *testing.T) {
		h := newHouse(t)
		made := h.create(t, CreateOptions{TTL: time.Hour})
		h.server.Inject(saasstub.Fault{Call: saasstub.CallGetBox, Lie: saasstub.Broken}, saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken})
		if _, err := h.Get(t.Context(), made.ID, GetOptions{}); !errors.Is(err, sdk.ErrUnreachable) {
			t.Errorf("before: %v", err)
		}
		if _, err := h.Destroy(t.Context(), made.ID, DestroyOptions{}); !errors.Is(err, sdk.ErrUnreachable) {
			t.Errorf("destroy before: %v", err)
		}
		h.clock.Advance(2 * time.Hour)
		view, err := h.Get(t.Context(), made.ID, GetOptions{})
		if err != nil || view.Status != sdk.StatusExpired || view.Unreachable == "" {
			t.Errorf("after: %+v %v", view, err)
		}
		result, err := h.Destroy(t.Context(), made.ID, DestroyOptions{})
		if err != nil || result.Unverifiable == "" {
			t.Errorf("destroy after: %+v %v", result, err)
		}
		if again, err := h.Destroy(t.Context(), made.ID, DestroyOptions{}); err != nil || again.Unverifiable == "" {
			t.Errorf("a second destroy claims more than the first: %+v %v", again, err)
		}
		h.server.Heal()
		if seen, err := h.Destroy(t.Context(), made.ID, DestroyOptions{}); err != nil || seen.Unverifiable != "" || len(h.server.Boxes()) != 0 {
			t.Errorf("a destroy that can ask again: %+v %v", seen, err)
		}
	})
}

func TestForeignFleet(t *testing.T) {
	h := newHouse(t)
	other := newHouseOn(t, h.clock, h.server, "other", saasstub.Options{})
	theirs := other.create(t, CreateOptions{})
	if _, err := h.Destroy(t.Context(), theirs.ID, DestroyOptions{Backend: "cloud", Ref: theirs.Ref}); err == nil && len(h.server.Boxes()) != 1 {
		t.Error("an object of another fleet was destroyed")
	}
	if view, err := h.Get(t.Context(), theirs.ID, GetOptions{Backend: "cloud", Ref: theirs.Ref}); err == nil {
		t.Errorf("an object of another fleet was shown: %+v", view)
	}
	if _, err := h.Extend(t.Context(), theirs.ID, ExtendOptions{Backend: "cloud", By: time.Hour}); err == nil {
		t.Error("an object of another fleet was extended")
	}
	list, err := h.List(t.Context(), ListOptions{})
	if err != nil || len(list.Sandboxes) != 0 {
		t.Errorf("listed %v %v", list, err)
	}
	if len(h.server.Boxes()) != 1 {
		t.Error("it is gone")
	}
}

func TestListJoinsLedgerAndBackend(t *testing.T) {
	h := newHouse(t)
	known := h.create(t, CreateOptions{})
	other := newHouseOn(t, h.clock, h.server, "ci", saasstub.Options{})
	elsewhere := other.create(t, CreateOptions{})
	list, err := h.List(t.Context(), ListOptions{})
	if err != nil || len(list.Sandboxes) != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	for _, s := range list.Sandboxes {
		if s.Known != (s.ID == known.ID) {
			t.Errorf("%s: known %v", s.ID, s.Known)
		}
	}
	h.server.Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken})
	list, err = h.List(t.Context(), ListOptions{})
	if err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].Unreachable == "" || list.Unreachable["cloud"] == "" {
		t.Fatalf("unreachable: %+v %v", list, err)
	}
	_ = elsewhere
}

func TestRefreshCostsOneListing(t *testing.T) {
	h := newHouse(t)
	var ids []string
	for range 40 {
		ids = append(ids, h.create(t, CreateOptions{}).ID)
	}
	before := h.server.Calls()
	done := make(chan error)
	for _, id := range ids {
		go func() {
			_, err := h.Get(context.Background(), id, GetOptions{Batched: true})
			done <- err
		}()
	}
	for range ids {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	after := h.server.Calls()
	if lists, gets := after[saasstub.CallListBoxes]-before[saasstub.CallListBoxes], after[saasstub.CallGetBox]-before[saasstub.CallGetBox]; lists > 1 || gets > 0 {
		t.Errorf("a refresh of %d cost %d pages and %d gets", len(ids), lists, gets)
	}
	if _, err := h.Destroy(t.Context(), ids[0], DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	if view, err := h.Get(t.Context(), ids[0], GetOptions{Batched: true}); err != nil || view.Status != sdk.StatusDestroyed {
		t.Errorf("a read after a write of this process: %+v %v", view, err)
	}
}

func TestCheckRefusesWhatABackendLacks(t *testing.T) {
	h := newHouse(t)
	p := profile()
	p.Requires = map[sdk.Feature]sdk.Class{sdk.FeatureKernelIsolation: sdk.ClassEnforced}
	_, err := h.Create(t.Context(), CreateOptions{Profile: p})
	var typed *sdk.Error
	if !errors.Is(err, sdk.ErrUnsupported) || !errors.As(err, &typed) || typed.Path != "requires.kernel_isolation" {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"kernel_isolation", string(sdk.ClassUnsupported), string(sdk.ClassEnforced)} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
	if open := h.open(t); len(open) != 0 {
		t.Errorf("a refused create left an intent: %v", open)
	}
	if _, err := h.Create(t.Context(), CreateOptions{Profile: profile(), TTL: 1000 * time.Hour}); !errors.As(err, &typed) || typed.Path != "ttl" {
		t.Errorf("over the maximum: %v", err)
	}
}

func TestSnapshotAndForks(t *testing.T) {
	h := newHouse(t)
	made := h.create(t, CreateOptions{})
	if _, err := h.CopyIn(t.Context(), made.ID, CopyOptions{Path: "/data"}, tarOf(t, "state", "one")); err != nil {
		t.Fatal(err)
	}
	snapshot, err := h.Snapshot(t.Context(), made.ID, SnapshotOptions{Kind: sdk.SnapshotFilesystem, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		fork := h.create(t, CreateOptions{Snapshot: snapshot.ID})
		var out strings.Builder
		if _, err := h.Exec(t.Context(), fork.ID, ExecOptions{Command: []string{"cat", "/data/state"}, Stdout: &out}); err != nil || out.String() != "one" {
			t.Errorf("the fork has %q, %v", out.String(), err)
		}
		if fork.Snapshot != snapshot.ID || fork.Profile != made.Profile || fork.ProfileRevision != made.ProfileRevision {
			t.Errorf("fork: %+v", fork)
		}
	}
	deleted, err := h.DeleteSnapshot(t.Context(), snapshot.ID, DeleteSnapshotOptions{})
	if err != nil || !deleted.Existed {
		t.Errorf("delete: %+v %v", deleted, err)
	}
	if deleted, err = h.DeleteSnapshot(t.Context(), snapshot.ID, DeleteSnapshotOptions{}); err != nil || deleted.Existed {
		t.Errorf("second delete: %+v %v", deleted, err)
	}
	if _, err := h.Create(t.Context(), CreateOptions{Snapshot: snapshot.ID}); err == nil {
		t.Error("a deleted snapshot was restored")
	}
}

func TestLostSnapshotAnswerIsFound(t *testing.T) {
	h := newHouse(t)
	made := h.create(t, CreateOptions{})
	h.server.Inject(saasstub.Fault{Call: saasstub.CallCreateImage, Lie: saasstub.LoseAnswer, On: 1})
	snapshot, err := h.Snapshot(t.Context(), made.ID, SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := h.Snapshots(t.Context(), ListSnapshotsOptions{})
	if err != nil || len(list.Snapshots) != 1 || list.Snapshots[0].ID != snapshot.ID {
		t.Errorf("%+v %v", list, err)
	}
}

func TestNoSecretReachesTheLedger(t *testing.T) {
	h := newHouse(t)
	const canary = "canary-3f7a9c"
	made := h.create(t, CreateOptions{Secrets: map[string]sdk.Secret{"TOKEN": canary}})
	events, err := h.Events(t.Context(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.Contains(string(mustJSON(t, e)), canary) {
			t.Errorf("the %s event holds the secret", e.Type)
		}
	}
	if _, err := h.Create(t.Context(), CreateOptions{Profile: profile(), Secrets: map[string]sdk.Secret{"BAD-NAME": canary}}); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("a refused secret: %v", err)
	}
}
