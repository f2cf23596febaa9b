// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

var start = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// standing is a cloud whose time moves only when told to.
func standing(t *testing.T, options e2btest.Options) (*cloud, *clock.Fake) {
	t.Helper()
	fake := clock.NewFake(start)
	options.Clock = fake
	return newCloud(t, options), fake
}

// The vendor caps a timeout in silence; what is granted is read back.
func TestASilentClampIsReported(t *testing.T) {
	c, _ := standing(t, e2btest.Options{MaxRun: 90 * time.Minute})
	_, target := c.mustCreate(t, 1)
	granted, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: start.Add(3 * time.Hour)})
	if want := start.Add(90 * time.Minute); err != nil || !granted.Lease.ExpiresAt.Equal(want) {
		t.Errorf("%+v, %v", granted, err)
	}
	if seen := mustGet(t, c, target).Lease; seen != granted.Lease {
		t.Errorf("%+v is seen, %+v was granted", seen, granted.Lease)
	}
}

// A life beyond the plan is refused before anything is made, by us where the
// plan is configured and by the vendor where it is not.
func TestALifeBeyondThePlanIsRefused(t *testing.T) {
	c, _ := standing(t, e2btest.Options{MaxRun: 30 * time.Minute})
	_, err := c.Create(t.Context(), c.creation(1))
	if !errors.Is(err, sdk.ErrInvalid) || len(c.Sandboxes()) != 0 {
		t.Errorf("%v, %d", err, len(c.Sandboxes()))
	}
}

// The trap of the vendor's: what was ever paused or snapshotted is listed as
// paused once its time is over, with its old content, and costs until it is
// deleted.
func TestWhatTheVendorKeepsAfterTheEndIsExpiredAndDestroyed(t *testing.T) {
	for name, store := range map[string]func(t *testing.T, c *cloud, target sdk.Target){
		"snapshot": func(t *testing.T, c *cloud, target sdk.Target) {
			if _, err := c.Snapshot(t.Context(), c.snapshotOptions(target, 1)); err != nil {
				t.Fatal(err)
			}
		},
		"pause and resume": func(t *testing.T, c *cloud, target sdk.Target) {
			if _, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, fake := standing(t, e2btest.Options{})
			_, target := c.mustCreate(t, 1)
			store(t, c, target)
			fake.Advance(2 * time.Hour)
			if got := mustGet(t, c, target); got.Status != sdk.StatusExpired || got.EndReason != sdk.EndDeadline {
				t.Errorf("it is %s: %s", got.Status, got.Reason)
			}
			if _, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target}); !errors.Is(err, sdk.ErrExpired) {
				t.Errorf("a resume: %v", err)
			}
			if truth := c.Sandboxes(); len(truth) != 1 || truth[0].State != "paused" {
				t.Fatalf("the vendor has %+v", truth)
			}
			gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
			if err != nil || !gone.Existed || len(c.Sandboxes()) != 0 {
				t.Errorf("%+v, %v, %d left", gone, err, len(c.Sandboxes()))
			}
		})
	}
}

// A paused sandbox has no deadline at the vendor's: ours goes on, can be moved,
// and is what it is resumed with.
func TestAPausedSandboxKeepsItsDeadline(t *testing.T) {
	c, fake := standing(t, e2btest.Options{})
	s, target := c.mustCreate(t, 1)
	fake.Advance(10 * time.Minute)
	paused, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target})
	if err != nil || paused.Sandbox.Lease != s.Lease || len(paused.Sandbox.Guards) != 0 {
		t.Fatalf("%+v, %v", paused.Sandbox, err)
	}
	until := s.Lease.ExpiresAt.Add(time.Hour)
	if _, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until}); err != nil {
		t.Fatal(err)
	}
	if truth := c.Sandboxes()[0]; truth.State != "paused" {
		t.Fatalf("an extend woke it: %s", truth.State)
	}
	fake.Advance(time.Hour)
	resumed, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target})
	if err != nil || !resumed.Sandbox.Lease.ExpiresAt.Equal(until) || resumed.Sandbox.Status != sdk.StatusReady {
		t.Fatalf("%+v, %v", resumed.Sandbox, err)
	}
	if end := c.Sandboxes()[0].EndAt; end.Sub(until).Abs() > time.Second {
		t.Errorf("the vendor ends it at %s, not %s", end, until)
	}
}

// Where v2 has no routes, v1's are taken.
func TestAServiceWithoutV2(t *testing.T) {
	c := newCloud(t, e2btest.Options{OnlyV1: true})
	s, target := c.mustCreate(t, 1)
	if _, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	if got := mustGet(t, c, target); got.Lease != s.Lease || got.Status != sdk.StatusReady {
		t.Errorf("%s %+v", got.Status, got.Lease)
	}
	opts := c.creation(2)
	opts.Profile.Template = "not-there"
	if _, err := c.Create(t.Context(), opts); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a template that is not there: %v", err)
	}
}

// Another machine has no record: it sees what the vendor has, and its changes
// are seen.
func TestTwoMachines(t *testing.T) {
	c, fake := standing(t, e2btest.Options{})
	_, target := c.mustCreate(t, 1)
	other := c.machine(t, t.TempDir(), e2b.Options{})
	if seen := mustGet(t, other, target); seen.Lease.ExpiresAt.Sub(start.Add(time.Hour)).Abs() > time.Second || seen.Status != sdk.StatusReady {
		t.Errorf("%+v", seen)
	}
	until := start.Add(2 * time.Hour)
	if _, err := other.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until}); err != nil {
		t.Fatal(err)
	}
	seen := mustGet(t, c, target)
	if seen.Lease.Generation != 2 || seen.Lease.ExpiresAt.Before(until) {
		t.Errorf("the first machine sees %+v", seen.Lease)
	}
	var said *sdk.Error
	_, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until.Add(time.Hour)})
	if !errors.Is(err, sdk.ErrConflict) || !errors.As(err, &said) || said.Lease.Generation != 2 {
		t.Errorf("an extend of the old generation: %v", err)
	}
	if _, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	// Its deadline is nowhere that the other one can see: what is certain is
	// that it is no later than the maximum, and earlier could be wrong.
	if seen := mustGet(t, other, target); seen.Status != sdk.StatusPaused || seen.Lease.ExpiresAt.Before(until) {
		t.Errorf("%s %+v", seen.Status, seen.Lease)
	}
	fake.Advance(5 * time.Hour)
	if _, err := other.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil || len(c.Sandboxes()) != 0 {
		t.Errorf("%v, %d left", err, len(c.Sandboxes()))
	}
	if _, err := c.Get(t.Context(), sdk.GetOptions{Target: target}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// The retention of a snapshot is in its name, and in a tag when it was moved:
// every machine sees when it is over.
func TestTheRetentionOfASnapshotIsSeenEverywhere(t *testing.T) {
	c, fake := standing(t, e2btest.Options{})
	_, target := c.mustCreate(t, 1)
	if _, err := c.Snapshot(t.Context(), c.snapshotOptions(target, 1)); err != nil {
		t.Fatal(err)
	}
	other := c.machine(t, t.TempDir(), e2b.Options{})
	retention := func() time.Time {
		list, err := other.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: fleet})
		if err != nil || len(list.Snapshots) != 1 || list.Snapshots[0].SandboxID != target.ID {
			t.Fatalf("%+v, %v", list, err)
		}
		return list.Snapshots[0].ExpiresAt
	}
	if got := retention(); !got.Equal(start.Add(time.Hour)) {
		t.Errorf("%s", got)
	}
	if _, err := c.ExtendSnapshot(t.Context(), sdk.ExtendSnapshotOptions{SnapshotID: snapshotID(1), Fleet: fleet, ExpiresAt: start.Add(5 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	fake.Advance(2 * time.Hour)
	if got := retention(); !got.Equal(start.Add(5 * time.Hour)) {
		t.Errorf("it was moved, and elsewhere it is over at %s", got)
	}
}

// A snapshot that something was made from is not deleted, and says why.
func TestASnapshotInUseStays(t *testing.T) {
	c := newCloud(t, e2btest.Options{})
	_, target := c.mustCreate(t, 1)
	if _, err := c.Snapshot(t.Context(), c.snapshotOptions(target, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: snapshotID(1), Create: c.creation(2)}); err != nil {
		t.Fatal(err)
	}
	remove := sdk.DeleteSnapshotOptions{SnapshotID: snapshotID(1), Fleet: fleet}
	if _, err := c.DeleteSnapshot(t.Context(), remove); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("%v", err)
	}
	if _, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: sandboxID(2), Fleet: fleet}}); err != nil {
		t.Fatal(err)
	}
	if gone, err := c.DeleteSnapshot(t.Context(), remove); err != nil || !gone.Existed || len(c.Snapshots()) != 0 {
		t.Errorf("%+v, %v, %q", gone, err, c.Snapshots())
	}
}

// A sandbox of which a snapshot is being made is in no listing. It is neither
// gone nor missing for whoever made it.
func TestASandboxInTheMiddleOfASnapshotIsThere(t *testing.T) {
	c := newCloud(t, e2btest.Options{SnapshotTakes: 500 * time.Millisecond})
	_, target := c.mustCreate(t, 1)
	done := make(chan error, 1)
	go func() {
		_, err := c.Snapshot(t.Context(), c.snapshotOptions(target, 1))
		done <- err
	}()
	for c.Sandboxes()[0].State != "snapshotting" {
		if err := c.clock.Sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || len(list.Sandboxes) != 1 || list.Incomplete != "" {
		t.Errorf("%d listed, %q, %v", len(list.Sandboxes), list.Incomplete, err)
	}
	if _, err := c.Get(t.Context(), sdk.GetOptions{Target: sdk.Target{ID: target.ID, Fleet: fleet}}); err != nil {
		t.Errorf("by its id: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
