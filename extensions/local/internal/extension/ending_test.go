// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// ending are the options of a sandbox that ends soon.
func ending(choice sdk.OnExpiry, life time.Duration) sdk.CreateOptions {
	opts := options(sdk.Profile{Name: "shell"})
	opts.OnExpiry, opts.ExpiresAt = choice, time.Now().Add(life)
	return opts
}

// eventually waits for something that has to come. The minute is a failsafe.
func eventually(t *testing.T, what string, look func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !look(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came: " + what)
		}
	}
}

func snapshots(t *testing.T, e *extension.Extension) []sdk.Snapshot {
	t.Helper()
	list, err := e.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: fleet})
	if err != nil || list.Incomplete != "" {
		t.Fatal(err, list.Incomplete)
	}
	return list.Snapshots
}

// Nobody is there: the supervisor makes the snapshot before the deadline, ends
// the sandbox at it, and whoever comes next finds the snapshot.
func TestTheEndLeavesASnapshot(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := ending(sdk.OnExpirySnapshot, 10*time.Second)
	opts.ExpirySnapshotTTL = 3 * time.Hour
	opts.Identity.Labels = map[string]string{"suite": "checkout"}
	s := create(t, e, opts)
	run(t, e, s.ID, "sh", "-c", "echo kept > /srv/kept")
	gone(t, state, s.ID)
	dead := until(t, e, s.ID, sdk.StatusExpired)
	if dead.ExpirySnapshotID != sdk.ExpirySnapshotID(s.ID) || dead.EndReason != sdk.EndDeadline || dead.ExpirySnapshotError != "" {
		t.Fatalf("%+v", dead)
	}
	list := snapshots(t, e)
	if len(list) != 1 || list[0].ID != dead.ExpirySnapshotID || list[0].SandboxID != s.ID || list[0].Identity.Labels["suite"] != "checkout" {
		t.Fatalf("%+v", list)
	}
	made := list[0]
	if made.CreatedAt.After(dead.Lease.ExpiresAt) || !made.ExpiresAt.Equal(made.CreatedAt.Add(3*time.Hour)) {
		t.Errorf("made at %s until %s, of a sandbox that ended at %s", made.CreatedAt, made.ExpiresAt, dead.Lease.ExpiresAt)
	}
	// What is left of the sandbox goes, its snapshot stays.
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	fork := restore(t, e, made.ID, options(sdk.Profile{Name: "shell"}))
	if got := run(t, e, fork.ID, "cat", "/srv/kept"); got != "kept\n" {
		t.Errorf("%q", got)
	}
}

// A destroy that comes first takes the snapshot of an end that was found by
// nobody yet out of the sandbox's directory.
func TestADestroyKeepsTheSnapshotOfTheEnd(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, ending(sdk.OnExpirySnapshot, 10*time.Second))
	gone(t, state, s.ID)
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	got, err := e.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: sdk.ExpirySnapshotID(s.ID), Fleet: fleet})
	if err != nil || got.Snapshot.SandboxID != s.ID {
		t.Errorf("%+v, %v", got, err)
	}
}

// What a sandbox's directory holds in the place of its last snapshot comes from
// the user that sandboxes run as: it is no snapshot of another fleet, and no
// reason not to destroy.
func TestAForgedLastSnapshotIsNotTaken(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, ending(sdk.OnExpirySnapshot, 10*time.Second))
	gone(t, state, s.ID)
	dir := filepath.Join(state, "local", "sandboxes", s.ID, "expiry")
	manifest := filepath.Join(dir, "manifest.json")
	content, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	forged := strings.ReplaceAll(string(content), `"fleet": "`+fleet+`"`, `"fleet": "another"`)
	if err := os.WriteFile(manifest, []byte(forged), 0o600); err != nil {
		t.Fatal(err)
	}
	if list := snapshots(t, e); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	other, err := e.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: "another"})
	if err != nil || len(other.Snapshots) != 0 {
		t.Errorf("%+v, %v", other, err)
	}
	result, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)})
	if err != nil || !strings.Contains(strings.Join(result.Removed, "\n"), "no snapshot") {
		t.Errorf("%+v, %v", result, err)
	}
}

// An extend that comes while the last snapshot is made lets the sandbox go on,
// as it was, and without a snapshot.
func TestAnExtendCallsTheLastSnapshotOff(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, ending(sdk.OnExpirySnapshot, 12*time.Second))
	run(t, e, s.ID, "sh", "-c", "(while :; do echo x >> /srv/ticks; sleep 0.05; done) >/dev/null 2>&1 &")
	still := until(t, e, s.ID, sdk.StatusPaused)
	if still.EndReason != sdk.EndDeadline || !strings.Contains(still.Reason, "last snapshot") {
		t.Errorf("%+v", still)
	}
	for what, err := range map[string]error{
		"exec":   errorOf(e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), Command: []string{"true"}})),
		"resume": errorOf(e.Resume(t.Context(), sdk.ResumeOptions{Target: target(s.ID)})),
	} {
		if !errors.Is(err, sdk.ErrConflict) || !strings.Contains(err.Error(), "about to end") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := e.Extend(t.Context(), sdk.ExtendOptions{Target: target(s.ID), Generation: still.Lease.Generation, ExpiresAt: time.Now().Add(10 * time.Minute)}); err != nil {
		t.Fatal(err)
	}
	alive := until(t, e, s.ID, sdk.StatusReady)
	if alive.ExpirySnapshotID != "" || alive.EndReason != "" || alive.Reason != "" {
		t.Errorf("%+v", alive)
	}
	before := run(t, e, s.ID, "wc", "-l", "/srv/ticks")
	eventually(t, "a tick after the resume", func() bool { return run(t, e, s.ID, "wc", "-l", "/srv/ticks") != before })
	if list := snapshots(t, e); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if _, err := os.Lstat(filepath.Join(state, "local", "sandboxes", s.ID, "expiry")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the snapshot is left: %v", err)
	}
}

// A snapshot that there is no time for prolongs nothing, and the record says
// so.
func TestTheEndWaitsForNoSnapshot(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, ending(sdk.OnExpirySnapshot, 10*time.Minute))
	if _, err := e.Expire(t.Context(), sdk.ExpireOptions{Target: target(s.ID), Generation: 1, ExpiresAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	gone(t, state, s.ID)
	dead := until(t, e, s.ID, sdk.StatusExpired)
	if dead.ExpirySnapshotID != "" || dead.ExpirySnapshotError == "" || !strings.Contains(dead.Reason, dead.ExpirySnapshotError) {
		t.Errorf("%+v", dead)
	}
}

// kill -9 of the supervisor while it makes the last snapshot leaves a sandbox
// that is lost, and half a snapshot that nobody takes for one.
func TestAKilledSupervisorLeavesNoHalfSnapshot(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, ending(sdk.OnExpirySnapshot, time.Minute))
	run(t, e, s.ID, "sh", "-c", "head -c 150M /dev/urandom > /srv/much")
	dir := filepath.Join(state, "local", "sandboxes", s.ID)
	if _, err := e.Expire(t.Context(), sdk.ExpireOptions{Target: target(s.ID), Generation: 1, ExpiresAt: time.Now().Add(5 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the beginning of the snapshot", func() bool {
		_, err := os.Lstat(filepath.Join(dir, "expiry.partial", "upper.tar"))
		return err == nil
	})
	kill(t, s.ID)
	gone(t, state, s.ID)
	dead := until(t, e, s.ID, sdk.StatusLost)
	if dead.EndReason != sdk.EndSupervisorDied || dead.ExpirySnapshotID != "" {
		t.Errorf("%+v", dead)
	}
	if list := snapshots(t, e); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// kill kills a sandbox's supervisor.
func kill(t *testing.T, id string) {
	t.Helper()
	for _, path := range hostProcesses(t, id) {
		line, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(line), "sandboxer-supervisor\x00") {
			continue
		}
		var pid int
		for _, digit := range strings.Split(path, "/")[2] {
			pid = pid*10 + int(digit-'0')
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no supervisor")
}

// At its deadline it is paused, and has a deadline of its own; resumed it goes
// on, and at that deadline it is paused again. One that is paused at its
// deadline is destroyed.
func TestTheEndPauses(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := ending(sdk.OnExpiryPause, 4*time.Second)
	opts.PausedTTL = 5 * time.Second
	s := create(t, e, opts)
	run(t, e, s.ID, "sh", "-c", "echo kept > /srv/kept")
	paused := until(t, e, s.ID, sdk.StatusPaused)
	if paused.EndReason != sdk.EndDeadline || paused.Lease.Claimed || !paused.Lease.ExpiresAt.After(s.Lease.ExpiresAt) ||
		paused.Lease.Generation != s.Lease.Generation+1 || paused.Lease.ExpiresAt.After(s.Lease.MaxExpiresAt) {
		t.Fatalf("%+v", paused)
	}
	resumed, err := e.Resume(t.Context(), sdk.ResumeOptions{Target: target(s.ID)})
	if err != nil || resumed.Sandbox.Status != sdk.StatusReady || resumed.Sandbox.EndReason != "" || !resumed.Sandbox.Lease.ExpiresAt.Equal(paused.Lease.ExpiresAt) {
		t.Fatalf("%+v, %v", resumed.Sandbox, err)
	}
	if got := run(t, e, s.ID, "cat", "/srv/kept"); got != "kept\n" {
		t.Errorf("%q", got)
	}
	again := until(t, e, s.ID, sdk.StatusPaused)
	if !again.Lease.ExpiresAt.After(paused.Lease.ExpiresAt) {
		t.Errorf("paused until %s, before until %s", again.Lease.ExpiresAt, paused.Lease.ExpiresAt)
	}
	gone(t, state, s.ID)
	if dead := until(t, e, s.ID, sdk.StatusExpired); dead.EndReason != sdk.EndDeadline || !dead.Lease.Claimed {
		t.Errorf("%+v", dead)
	}
}

func TestTheMaximumLeavesNoPause(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := ending(sdk.OnExpiryPause, 2*time.Second)
	opts.MaxExpiresAt = opts.ExpiresAt
	s := create(t, e, opts)
	gone(t, state, s.ID)
	if dead := until(t, e, s.ID, sdk.StatusExpired); !strings.Contains(dead.Reason, "maximum") {
		t.Errorf("%+v", dead)
	}
}

// Not used, a sandbox ends long before its deadline. To look at it is no use.
func TestAnIdleSandboxEnds(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := ending(sdk.OnExpiryDestroy, 10*time.Minute)
	opts.IdleTimeout = 2 * time.Second
	s := create(t, e, opts)
	if s.IdleTimeout != opts.IdleTimeout || s.IdleExpiresAt.IsZero() || s.IdleExpiresAt.After(s.Lease.ExpiresAt) {
		t.Errorf("%+v", s)
	}
	eventually(t, "the end of an idle sandbox that is looked at all the time", func() bool {
		got, err := e.Get(t.Context(), sdk.GetOptions{Target: target(s.ID)})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = e.Logs(t.Context(), sdk.LogsOptions{Target: target(s.ID), Output: io.Discard})
		if _, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet}); err != nil {
			t.Fatal(err)
		}
		return got.Sandbox.Status == sdk.StatusExpired
	})
	dead := until(t, e, s.ID, sdk.StatusExpired)
	if dead.EndReason != sdk.EndIdle || !dead.Lease.Claimed || !dead.Lease.ExpiresAt.Equal(s.Lease.ExpiresAt) || !strings.Contains(dead.Reason, "not used for 2s") {
		t.Errorf("%+v", dead)
	}
	gone(t, state, s.ID)
}

// Each source of activity keeps it: short commands, a long one, a copy, bytes
// of a port. An extend does not, and none moves the deadline.
func TestUseKeepsAnIdleSandbox(t *testing.T) {
	const idle = 2 * time.Second
	use := map[string]func(t *testing.T, e *extension.Extension, s sdk.Sandbox){
		"exec":      func(t *testing.T, e *extension.Extension, s sdk.Sandbox) { run(t, e, s.ID, "true") },
		"long exec": func(t *testing.T, e *extension.Extension, s sdk.Sandbox) { run(t, e, s.ID, "sleep", "5") },
		"copy": func(t *testing.T, e *extension.Extension, s sdk.Sandbox) {
			if _, err := e.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target(s.ID), Path: "/etc/hostname", Archive: io.Discard}); err != nil {
				t.Fatal(err)
			}
		},
		"port": func(t *testing.T, _ *extension.Extension, s sdk.Sandbox) { count(t, s) },
	}
	e := backend(t)
	for name, act := range use {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := options(counter)
			opts.IdleTimeout = idle
			s := create(t, e, opts)
			run(t, e, s.ID, "sh", "-c", "until [ -e /srv/listening ]; do sleep 0.05; done")
			for begin := time.Now(); time.Since(begin) < 2*idle; time.Sleep(idle / 10) {
				act(t, e, s)
			}
			got, err := e.Get(t.Context(), sdk.GetOptions{Target: target(s.ID)})
			if err != nil || got.Sandbox.Status != sdk.StatusReady || !got.Sandbox.Lease.ExpiresAt.Equal(s.Lease.ExpiresAt) {
				t.Fatalf("%+v, %v", got.Sandbox, err)
			}
			if _, err := e.Extend(t.Context(), sdk.ExtendOptions{Target: target(s.ID), Generation: 1, ExpiresAt: s.Lease.ExpiresAt.Add(time.Minute)}); err != nil {
				t.Fatal(err)
			}
			if dead := until(t, e, s.ID, sdk.StatusExpired); dead.EndReason != sdk.EndIdle {
				t.Errorf("%+v", dead)
			}
		})
	}
}

// While it is paused it is not idle; a resume begins the idle clock anew.
func TestTheIdleClockStandsStillWhilePaused(t *testing.T) {
	e := backend(t)
	opts := ending(sdk.OnExpiryPause, 10*time.Minute)
	opts.IdleTimeout, opts.PausedTTL = 2*time.Second, time.Hour
	s := create(t, e, opts)
	paused := until(t, e, s.ID, sdk.StatusPaused)
	if paused.EndReason != sdk.EndIdle || !paused.IdleExpiresAt.IsZero() || paused.Lease.ExpiresAt.After(s.Lease.MaxExpiresAt) {
		t.Errorf("%+v", paused)
	}
	time.Sleep(3 * time.Second) // longer than the idle timeout
	if got := until(t, e, s.ID, sdk.StatusPaused); !got.Lease.ExpiresAt.Equal(paused.Lease.ExpiresAt) {
		t.Errorf("%+v", got)
	}
	if _, err := e.Resume(t.Context(), sdk.ResumeOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	run(t, e, s.ID, "true")
	if again := until(t, e, s.ID, sdk.StatusPaused); again.EndReason != sdk.EndIdle {
		t.Errorf("%+v", again)
	}
}

// Both at once: an idle sandbox leaves its snapshot.
func TestAnIdleSandboxLeavesASnapshot(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := ending(sdk.OnExpirySnapshot, 10*time.Minute)
	opts.IdleTimeout = 8 * time.Second
	s := create(t, e, opts)
	gone(t, state, s.ID)
	dead := until(t, e, s.ID, sdk.StatusExpired)
	if dead.EndReason != sdk.EndIdle || dead.ExpirySnapshotID == "" {
		t.Fatalf("%+v", dead)
	}
	if list := snapshots(t, e); len(list) != 1 || list[0].ID != dead.ExpirySnapshotID {
		t.Errorf("%+v", list)
	}
}

func errorOf[T any](_ T, err error) error { return err }
