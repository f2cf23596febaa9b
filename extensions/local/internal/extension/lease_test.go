// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// until waits for a status. The minute is a failsafe; nothing is measured.
func until(t *testing.T, e *extension.Extension, id string, want sdk.Status) sdk.Sandbox {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		got, err := e.Get(t.Context(), sdk.GetOptions{Target: target(id)})
		if err != nil {
			t.Fatal(err)
		}
		if got.Sandbox.Status == want {
			return got.Sandbox
		}
		if time.Now().After(deadline) {
			t.Fatalf("status %s (%s), want %s", got.Sandbox.Status, got.Sandbox.Reason, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// gone waits until nothing of a sandbox runs any more.
func gone(t *testing.T, state, id string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for len(hostProcesses(t, id)) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("still running: %v", hostProcesses(t, id))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hostProcesses lists the processes of the host that name a sandbox.
func hostProcesses(t *testing.T, id string) (found []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), id) {
			found = append(found, path)
		}
	}
	return found
}

func TestTheSupervisorEndsASandboxAtItsDeadline(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := options(sdk.Profile{Name: "shell"})
	s := create(t, e, opts)
	if len(hostProcesses(t, s.ID)) == 0 {
		t.Fatal("no process names the sandbox, so this test proves nothing")
	}
	lease, err := e.Expire(t.Context(), sdk.ExpireOptions{Target: target(s.ID), Generation: s.Lease.Generation, ExpiresAt: time.Now().Add(300 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	gone(t, state, s.ID)
	if now := time.Now(); now.Before(lease.Lease.ExpiresAt) {
		t.Errorf("ended at %v, before the deadline %v", now, lease.Lease.ExpiresAt)
	}
	dead := until(t, e, s.ID, sdk.StatusExpired)
	if !dead.Lease.Claimed {
		t.Error("the supervisor ended it without a claim")
	}
	if _, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), Command: []string{"true"}}); !errors.Is(err, sdk.ErrExpired) {
		t.Errorf("exec: %v, want ErrExpired", err)
	}
	_, err = e.Extend(t.Context(), sdk.ExtendOptions{Target: target(s.ID), Generation: dead.Lease.Generation, ExpiresAt: time.Now().Add(time.Hour)})
	if !errors.Is(err, sdk.ErrExpired) {
		t.Errorf("extend: %v, want ErrExpired", err)
	}
}

func TestAnExtendMovesTheSupervisorsDeadline(t *testing.T) {
	e := backend(t)
	opts := options(sdk.Profile{Name: "shell"})
	s := create(t, e, opts)
	first, err := e.Expire(t.Context(), sdk.ExpireOptions{Target: target(s.ID), Generation: 1, ExpiresAt: time.Now().Add(3 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	extended, err := e.Extend(t.Context(), sdk.ExtendOptions{Target: target(s.ID), Generation: first.Lease.Generation, ExpiresAt: first.Lease.ExpiresAt.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(first.Lease.ExpiresAt.Add(200 * time.Millisecond)))
	run(t, e, s.ID, "true")
	if got, want := extended.Lease.ExpiresAt, s.Lease.MaxExpiresAt; got.After(want) {
		t.Errorf("granted until %v, beyond the maximum %v", got, want)
	}
}

func TestLeaseRules(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	at := func(d time.Duration) time.Time { return s.Lease.ExpiresAt.Add(d) }
	extend := func(generation int64, until time.Time) (sdk.Lease, error) {
		r, err := e.Extend(t.Context(), sdk.ExtendOptions{Target: target(s.ID), Generation: generation, ExpiresAt: until, Event: sdk.EventRef{LedgerID: "l", Sequence: 2}})
		return r.Lease, err
	}
	lease, err := extend(1, at(time.Minute))
	if err != nil || lease.Generation != 2 || !lease.ExpiresAt.Equal(at(time.Minute)) || lease.Event.Sequence != 2 {
		t.Errorf("extend: %+v, %v", lease, err)
	}
	_, err = extend(1, at(2*time.Minute))
	var conflict *sdk.Error
	if !errors.Is(err, sdk.ErrConflict) || !errors.As(err, &conflict) || conflict.Lease == nil || conflict.Lease.Generation != 2 {
		t.Errorf("extend of an old generation: %v, want ErrConflict with the present lease", err)
	}
	if lease, err = extend(2, at(-time.Minute)); err != nil || !lease.ExpiresAt.Equal(at(time.Minute)) {
		t.Errorf("an extend shortened: %+v, %v", lease, err)
	}
	if lease, err = extend(2, at(100*time.Hour)); err != nil || !lease.ExpiresAt.Equal(s.Lease.MaxExpiresAt) {
		t.Errorf("beyond the maximum: %+v, %v; want the maximum", lease, err)
	}
	if _, err := e.Claim(t.Context(), sdk.ClaimOptions{Target: target(s.ID), Generation: lease.Generation, Holder: "reaper", OnlyExpired: true}); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("claim of a live lease by a reaper: %v, want ErrConflict", err)
	}
}

func TestExactlyOneOfExtendAndClaimWins(t *testing.T) {
	e := backend(t)
	for range 3 {
		s := create(t, e, options(sdk.Profile{Name: "shell"}))
		var wins sync.Map
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				if i%2 == 0 {
					if _, err := e.Claim(t.Context(), sdk.ClaimOptions{Target: target(s.ID), Generation: 1, Holder: "r"}); err == nil {
						wins.Store("claim", true)
					}
				} else if l, err := e.Extend(t.Context(), sdk.ExtendOptions{Target: target(s.ID), Generation: 1, ExpiresAt: s.Lease.ExpiresAt.Add(time.Minute)}); err == nil && l.Lease.Generation == 2 {
					wins.Store(i, true)
				}
			})
		}
		group.Wait()
		n := 0
		wins.Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("%d winners", n)
		}
	}
}

func TestTheSupervisorsDeathIsTheSandboxsDeath(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	var found int
	for _, path := range hostProcesses(t, s.ID) {
		if data, _ := os.ReadFile(path); strings.HasPrefix(string(data), "sandboxer-supervisor\x00") {
			var pid int
			for _, c := range strings.Split(path, "/")[2] {
				pid = pid*10 + int(c-'0')
			}
			p, err := os.FindProcess(pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			found++
		}
	}
	if found != 1 {
		t.Fatalf("%d supervisors", found)
	}
	gone(t, state, s.ID)
	lost := until(t, e, s.ID, sdk.StatusLost)
	if len(lost.Guards) > 0 {
		t.Errorf("guards %v of a sandbox that is gone", lost.Guards)
	}
}

func TestIdentity(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := options(sdk.Profile{Name: "shell"})
	opts.Identity.Owner, opts.Identity.Labels = "me", map[string]string{"a": "b"}
	s := create(t, e, opts)

	if _, err := e.Create(t.Context(), opts); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("create of the same id: %v, want ErrConflict", err)
	}
	list, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || list.Incomplete != "" || len(list.Sandboxes) != 1 || list.Sandboxes[0].Identity.Owner != "me" || list.Sandboxes[0].Identity.Labels["a"] != "b" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if list, err := e.List(t.Context(), sdk.ListOptions{Fleet: "other"}); err != nil || len(list.Sandboxes) != 0 {
		t.Errorf("list of another fleet: %+v, %v", list, err)
	}
	foreign := sdk.Target{ID: s.ID, Ref: s.Ref, Fleet: "other"}
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: foreign}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("destroy from another fleet: %v, want ErrNotFound", err)
	}
	run(t, e, s.ID, "true")

	elsewhere := backendAt(t, stateDir(t)+"-2", time.Now)
	_, err = elsewhere.Get(t.Context(), sdk.GetOptions{Target: sdk.Target{ID: s.ID, Ref: s.Ref, Fleet: fleet}})
	if !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), state) {
		t.Errorf("get from another state directory: %v, want ErrUnreachable that names %s", err, state)
	}
	if _, err := elsewhere.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: s.ID, Ref: s.Ref, Fleet: fleet}}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("destroy from another state directory: %v, want ErrUnreachable", err)
	}
}

func TestDestroyOfNothingSucceeds(t *testing.T) {
	e := backend(t)
	result, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(newID("sbx-"))})
	if err != nil || result.Existed {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestACancelledCreateLeavesNothing(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond} {
		opts := options(sdk.Profile{Name: "shell"})
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := e.Create(ctx, opts)
		cancel()
		if err == nil {
			destroyLater(t, e, opts.ID) // it was faster
			continue
		}
		if _, err := e.Get(t.Context(), sdk.GetOptions{Target: target(opts.ID)}); !errors.Is(err, sdk.ErrNotFound) {
			t.Errorf("cancelled after %v: %v, want ErrNotFound", after, err)
		}
		if left := hostProcesses(t, opts.ID); len(left) > 0 {
			t.Errorf("cancelled after %v: still running %v", after, left)
		}
	}
	entries, _ := os.ReadDir(filepath.Join(state, "local", "sandboxes"))
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".new-") {
			t.Errorf("left behind: %s", entry.Name())
		}
	}
}
