// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

var start = time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)

type cloud struct {
	*Server
	*Extension
	clock *clock.Fake
}

func newCloud(t testing.TB) cloud {
	t.Helper()
	fake := clock.NewFake(start)
	server := NewServer(ServerOptions{Clock: fake})
	return cloud{server, newExtension(t, server), fake}
}

// noWait is a clock for the pauses of an extension, which are none.
type noWait struct{}

func (noWait) Now() time.Time                                   { return time.Time{} }
func (noWait) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func newExtension(t testing.TB, server *Server) *Extension {
	t.Helper()
	e := New(Options{Server: server})
	e.wait = noWait{}
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: "ci"}); err != nil {
		t.Fatal(err)
	}
	return e
}

func sandboxID(n int) string { return fmt.Sprintf("sbx-%020d", n) }

func creation(n int) sdk.CreateOptions {
	id := sandboxID(n)
	return sdk.CreateOptions{
		ID: id, Identity: sdk.Identity{ID: id, Fleet: "ci", Incarnation: 1, CreatedAt: start, Owner: "payments"},
		Profile:   sdk.Profile{Name: "e2e", Command: []string{"echo", "up"}, Env: map[string]string{"A": "1"}, Files: map[string]sdk.File{"/etc/motd": {Content: "hello\n"}}},
		ExpiresAt: start.Add(time.Hour), MaxExpiresAt: start.Add(8 * time.Hour), OnExpiry: sdk.OnExpiryDestroy,
		Event: sdk.EventRef{LedgerID: "ldg-test", Sequence: int64(n), Hash: "sha256:" + id},
	}
}

func (c cloud) mustCreate(t testing.TB, n int) sdk.Target {
	t.Helper()
	return c.mustCreateUntil(t, n, creation(n).ExpiresAt)
}

func (c cloud) mustCreateUntil(t testing.TB, n int, until time.Time) sdk.Target {
	t.Helper()
	options := creation(n)
	options.ExpiresAt = until
	made, err := c.Create(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return sdk.Target{ID: made.Sandbox.ID, Ref: made.Sandbox.Ref, Fleet: "ci"}
}

func (c cloud) status(t testing.TB, target sdk.Target) sdk.Status {
	t.Helper()
	got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	return got.Sandbox.Status
}

// sh runs a script and returns its exit code and output.
func (c cloud) sh(t testing.TB, target sdk.Target, script string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	result, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	return result.ExitCode, out.String()
}

func TestALife(t *testing.T) {
	c := newCloud(t)
	options := creation(1)
	options.Secrets = map[string]sdk.Secret{"TOKEN": "hush"}
	made, err := c.Create(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	want := sdk.Sandbox{
		ID: options.ID, Ref: made.Sandbox.Ref, Status: sdk.StatusReady, Identity: options.Identity, Incarnation: 1,
		Lease:     sdk.Lease{ExpiresAt: options.ExpiresAt, MaxExpiresAt: options.MaxExpiresAt, Generation: 1, Event: options.Event},
		CreatedAt: start, Guards: []sdk.Guard{sdk.GuardBackend}, OnExpiry: sdk.OnExpiryDestroy, Profile: options.Profile,
		ExpirySnapshotTTL: sdk.DefaultExpirySnapshotTTL, PausedTTL: sdk.DefaultPausedTTL,
	}
	if diff := cmp.Diff(want, made.Sandbox); diff != "" {
		t.Error(diff)
	}
	target := sdk.Target{ID: options.ID, Fleet: "ci"} // without a ref: by label
	got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
	if diff := cmp.Diff(want, got.Sandbox); err != nil || diff != "" {
		t.Error(err, diff)
	}
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: "ci"})
	if diff := cmp.Diff([]sdk.Sandbox{want}, list.Sandboxes); err != nil || diff != "" || list.Incomplete != "" {
		t.Error(err, diff, list.Incomplete)
	}
	if code, out := c.sh(t, target, `echo $A; cat /etc/motd $TOKEN_FILE`); code != 0 || out != "1\nhello\nhush" {
		t.Errorf("%d, %q", code, out)
	}
	if _, err := c.Create(t.Context(), sdk.CreateOptions{ID: options.ID, Identity: options.Identity, ExpiresAt: options.ExpiresAt}); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("a second create: %v", err)
	}
	for _, existed := range []bool{true, false} {
		gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
		if err != nil || gone.Existed != existed || len(gone.Leftovers) != 0 {
			t.Errorf("%+v, %v", gone, err)
		}
	}
	if _, err := c.Get(t.Context(), sdk.GetOptions{Target: target}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("after destroy: %v", err)
	}
}

func TestAnotherFleetIsNotTouched(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	target.Fleet = "cd"
	if _, err := c.Get(t.Context(), sdk.GetOptions{Target: target}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
	if gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil || gone.Existed {
		t.Errorf("Destroy: %+v, %v", gone, err)
	}
	if _, err := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 1}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("Claim: %v", err)
	}
	if list, err := c.List(t.Context(), sdk.ListOptions{Fleet: "cd"}); err != nil || len(list.Sandboxes) != 0 {
		t.Errorf("List: %+v, %v", list, err)
	}
	if len(c.Boxes()) != 1 {
		t.Errorf("%+v", c.Boxes())
	}
}

func TestTheDeadline(t *testing.T) {
	for choice, want := range map[sdk.OnExpiry]sdk.Status{sdk.OnExpiryDestroy: sdk.StatusExpired, sdk.OnExpirySnapshot: sdk.StatusExpired} {
		t.Run(string(choice), func(t *testing.T) {
			c := newCloud(t)
			options := creation(1)
			options.OnExpiry = choice
			if _, err := c.Create(t.Context(), options); err != nil {
				t.Fatal(err)
			}
			target := sdk.Target{ID: options.ID, Fleet: "ci"}
			c.clock.Advance(time.Hour - 1)
			if got := c.status(t, target); got != sdk.StatusReady {
				t.Errorf("just before: %s", got)
			}
			if code, _ := c.sh(t, target, "echo kept > /kept"); code != 0 {
				t.Errorf("exec just before: %d", code)
			}
			c.clock.Advance(1)
			if got := c.status(t, target); got != want {
				t.Errorf("at the deadline: %s", got)
			}
			if _, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"true"}}); !errors.Is(err, sdk.ErrExpired) {
				t.Errorf("exec: %v", err)
			}
			if _, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: start.Add(2 * time.Hour)}); !errors.Is(err, sdk.ErrExpired) {
				t.Errorf("extend: %v", err)
			}
			got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
			if err != nil || (got.Sandbox.ExpirySnapshotID != "") != (choice == sdk.OnExpirySnapshot) {
				t.Fatalf("%+v, %v", got, err)
			}
			if choice != sdk.OnExpirySnapshot {
				return
			}
			again := creation(2)
			again.ExpiresAt = start.Add(2 * time.Hour)
			if _, err := c.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: got.Sandbox.ExpirySnapshotID, Create: again}); err != nil {
				t.Fatal(err)
			}
			if _, out := c.sh(t, sdk.Target{ID: again.ID, Fleet: "ci"}, "cat /kept"); out != "kept\n" {
				t.Errorf("restored: %q", out)
			}
		})
	}
}

// A box that the vendor paused at its end has a deadline of its own, until
// which it can be extended and resumed; the reaper ends it at that.
func TestAPausedBoxHasADeadlineOfItsOwn(t *testing.T) {
	for _, clock := range []sdk.EndReason{sdk.EndDeadline, sdk.EndIdle} {
		t.Run(string(clock), func(t *testing.T) {
			c := newCloud(t)
			options := creation(1)
			options.OnExpiry, options.PausedTTL, options.MaxExpiresAt = sdk.OnExpiryPause, 2*time.Hour, start.Add(10*time.Hour)
			ends := options.ExpiresAt
			if clock == sdk.EndIdle {
				options.IdleTimeout = 10 * time.Minute
				ends = start.Add(options.IdleTimeout)
			}
			if _, err := c.Create(t.Context(), options); err != nil {
				t.Fatal(err)
			}
			target := sdk.Target{ID: options.ID, Fleet: "ci"}
			c.clock.Advance(ends.Sub(start))
			got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
			s := got.Sandbox
			if err != nil || s.Status != sdk.StatusPaused || s.EndReason != clock || s.Lease.Generation != 2 || !s.Lease.ExpiresAt.Equal(ends.Add(2*time.Hour)) {
				t.Fatalf("%+v, %v", s, err)
			}
			resumed, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target})
			if err != nil || resumed.Sandbox.Status != sdk.StatusReady || !resumed.Sandbox.Lease.ExpiresAt.Equal(s.Lease.ExpiresAt) {
				t.Fatalf("%+v, %v", resumed, err)
			}
			if _, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil {
				t.Fatal(err)
			}
			_, err = c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 2, OnlyExpired: true})
			if !errors.Is(err, sdk.ErrConflict) {
				t.Errorf("claimed before its own deadline: %v", err)
			}
			c.clock.Advance(2 * time.Hour)
			if got := c.status(t, target); got != sdk.StatusExpired {
				t.Errorf("at its own deadline: %s", got)
			}
			if _, err := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 2, OnlyExpired: true}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTheLeaseIsComparedAndSwapped(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	until := start.Add(2 * time.Hour)
	ref := sdk.EventRef{LedgerID: "ldg-test", Sequence: 9}
	extended, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until, Event: ref})
	if err != nil || extended.Lease.Generation != 2 || !extended.Lease.ExpiresAt.Equal(until) || extended.Lease.Event != ref {
		t.Fatalf("%+v, %v", extended, err)
	}
	var present *sdk.Error
	if _, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until.Add(1)}); !errors.Is(err, sdk.ErrConflict) || !errors.As(err, &present) || present.Lease.Generation != 2 {
		t.Errorf("an old generation: %v", err)
	}
	if granted, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 2, ExpiresAt: start.Add(99 * time.Hour)}); err != nil || !granted.Lease.ExpiresAt.Equal(start.Add(8*time.Hour)) {
		t.Errorf("past the maximum: %+v, %v", granted, err)
	}
	if _, err := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 3, OnlyExpired: true}); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("a claim before the deadline: %v", err)
	}
	shortened, err := c.Expire(t.Context(), sdk.ExpireOptions{Target: target, Generation: 3, ExpiresAt: start.Add(time.Minute)})
	if err != nil || !shortened.Lease.ExpiresAt.Equal(start.Add(time.Minute)) {
		t.Errorf("expire: %+v, %v", shortened, err)
	}
	c.clock.Advance(time.Minute)
	for range 2 { // a claim is continued
		if claimed, err := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 4, Holder: "reaper", OnlyExpired: true}); err != nil || !claimed.Lease.Claimed {
			t.Errorf("claim: %+v, %v", claimed, err)
		}
	}
}

// An extend and a claim at the very deadline: one wins, and what was
// accepted is alive.
func TestExtendersAndAReaperRace(t *testing.T) {
	for round := range 50 {
		c := newCloud(t)
		target := c.mustCreate(t, 1)
		c.clock.Advance(time.Hour - 1)
		const extenders = 8
		answers := make(chan error, extenders)
		for range extenders {
			go func() {
				lease, err := c.Extend(context.Background(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: start.Add(2 * time.Hour)})
				if err == nil && lease.Lease.ExpiresAt.Before(start.Add(2*time.Hour)) {
					err = errors.New("accepted without effect")
				}
				answers <- err
			}()
		}
		c.clock.Advance(1)
		_, claim := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 1, OnlyExpired: true})
		accepted := 0
		for range extenders {
			switch err := <-answers; {
			case err == nil:
				accepted++
			case !errors.Is(err, sdk.ErrConflict) && !errors.Is(err, sdk.ErrExpired):
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if (claim == nil) == (accepted > 0) || accepted > 1 {
			t.Fatalf("round %d: %d extends and the claim %v", round, accepted, claim)
		}
		if accepted == 1 && c.status(t, target) != sdk.StatusReady {
			t.Fatalf("round %d: accepted and dead", round)
		}
	}
}

func TestASnapshotIsRestoredAsOftenAsWanted(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	c.sh(t, target, "echo seeded > /data/x")
	const id = "snp-00000000000000000001"
	options := sdk.SnapshotOptions{
		Target: target, SnapshotID: id, Kind: sdk.SnapshotFilesystem, ExpiresAt: start.Add(24 * time.Hour),
		Identity: sdk.Identity{ID: id, Fleet: "ci", Incarnation: 1, CreatedAt: start},
	}
	made, err := c.Snapshot(t.Context(), options)
	if err != nil || made.Snapshot.ID != id || made.Snapshot.SandboxID != target.ID || made.Snapshot.Digest == "" || made.Snapshot.Profile.Name != "e2e" {
		t.Fatalf("%+v, %v", made, err)
	}
	c.sh(t, target, "echo later > /data/x")
	for n := 2; n < 5; n++ {
		restored, err := c.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: id, Create: creation(n)})
		if err != nil {
			t.Fatal(err)
		}
		fork := sdk.Target{ID: restored.Sandbox.ID, Ref: restored.Sandbox.Ref, Fleet: "ci"}
		if _, out := c.sh(t, fork, "cat /data/x; echo own > /data/x"); out != "seeded\n" {
			t.Errorf("fork %d has %q", n, out)
		}
	}
	longer, err := c.ExtendSnapshot(t.Context(), sdk.ExtendSnapshotOptions{SnapshotID: id, Fleet: "ci", ExpiresAt: start.Add(48 * time.Hour)})
	if err != nil || !longer.Snapshot.ExpiresAt.Equal(start.Add(48*time.Hour)) {
		t.Errorf("%+v, %v", longer, err)
	}
	if same, err := c.ExtendSnapshot(t.Context(), sdk.ExtendSnapshotOptions{SnapshotID: id, Fleet: "ci", ExpiresAt: start}); err != nil || !same.Snapshot.ExpiresAt.Equal(start.Add(48*time.Hour)) {
		t.Errorf("shortened: %+v, %v", same, err)
	}
	if list, err := c.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: "ci"}); err != nil || len(list.Snapshots) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, existed := range []bool{true, false} {
		if gone, err := c.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: "ci"}); err != nil || gone.Existed != existed {
			t.Errorf("%+v, %v", gone, err)
		}
	}
	if _, err := c.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: id, Fleet: "ci"}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("after delete: %v", err)
	}
}

func TestAFileIsACloudThatProcessesShare(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cloud.json")
	var both [2]*Extension
	for i := range both {
		both[i] = New(Options{})
		if _, err := both[i].Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: "ci", Config: []byte(`{"file":"` + file + `"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	options := creation(1)
	options.ExpiresAt = time.Now().Add(time.Hour)
	options.Secrets = map[string]sdk.Secret{"TOKEN": "hush"}
	if _, err := both[0].Create(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: options.ID, Fleet: "ci"}
	if got, err := both[1].Get(t.Context(), sdk.GetOptions{Target: target}); err != nil || got.Sandbox.Status != sdk.StatusReady {
		t.Errorf("%+v, %v", got, err)
	}
	if gone, err := both[1].Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil || !gone.Existed {
		t.Errorf("%+v, %v", gone, err)
	}
	if _, err := both[0].Get(t.Context(), sdk.GetOptions{Target: target}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("%v", err)
	}
	for config, path := range map[string]string{`{"fil":"x"}`: "fil", `{"file":1}`: "file", `[]`: "config", `{}`: "file"} {
		var said *sdk.Error
		_, err := New(Options{}).Configure(t.Context(), sdk.ConfigureOptions{Config: []byte(config)})
		if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &said) || said.Path != path {
			t.Errorf("%s: %v", config, err)
		}
	}
}
