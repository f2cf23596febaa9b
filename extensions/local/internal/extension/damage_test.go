// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// unreadable are records that can't be acted on.
var unreadable = map[string]string{
	"newer":   `{"format": 99}`,
	"corrupt": `{"format": 1, "id": `,
	"foreign": `{"format": 1, "id": "sbx-00000000000000000000"}`,
}

func recordOf(state, id string) string {
	return filepath.Join(state, "local", "sandboxes", id, "record.json")
}

// damage replaces a sandbox's record and returns the one that was there.
func damage(t *testing.T, state, id, content string) []byte {
	t.Helper()
	old, err := os.ReadFile(recordOf(state, id))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recordOf(state, id), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return old
}

func TestAnUnreadableRecordDoesNotOutliveTheDeadline(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	ids, old, deadlines := map[string]string{}, map[string][]byte{}, map[string]time.Time{}
	for name, content := range unreadable {
		// The deadline that a sandbox is made with is the one that its
		// supervisor has surely read.
		opts := options(sdk.Profile{Name: "shell"})
		opts.ExpiresAt = time.Now().Add(10 * time.Second)
		ids[name], deadlines[name] = create(t, e, opts).ID, opts.ExpiresAt
		old[name] = damage(t, state, ids[name], content)
	}
	for name, id := range ids {
		gone(t, state, id)
		if now := time.Now(); now.Before(deadlines[name]) {
			t.Errorf("%s: ended at %v, before its deadline %v", name, now, deadlines[name])
		}
		damage(t, state, id, string(old[name])) // for the destroy
	}
}

func TestARecordThatBecomesReadableAgainCounts(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	old := damage(t, state, s.ID, "garbage")
	time.Sleep(6 * time.Second) // longer than the supervisor sleeps
	damage(t, state, s.ID, string(old))
	run(t, e, s.ID, "true")
	if _, err := e.Expire(t.Context(), sdk.ExpireOptions{Target: target(s.ID), Generation: 1}); err != nil {
		t.Fatal(err)
	}
	until(t, e, s.ID, sdk.StatusExpired)
}

func TestAnUnreadableRecordBlocksOnlyItself(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	for name, content := range unreadable {
		id := newID("sbx-")
		if err := os.Mkdir(filepath.Dir(recordOf(state, id)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(recordOf(state, id), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet})
		if err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].ID != s.ID || list.Incomplete != "" || !slices.Contains(list.Unreadable, id) {
			t.Errorf("%s: %+v, %v; want the one that can be read, and the id of the other", name, list, err)
		}
		_, getErr := e.Get(t.Context(), sdk.GetOptions{Target: target(id)})
		_, destroyErr := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(id)})
		_, claimErr := e.Claim(t.Context(), sdk.ClaimOptions{Target: target(id), Generation: 1})
		for _, err := range []error{getErr, destroyErr, claimErr} {
			if err == nil || !strings.Contains(err.Error(), recordOf(state, id)) || !strings.Contains(err.Error(), "(") {
				t.Errorf("%s: %v, want an error that names the file and what to do", name, err)
			}
			for _, kind := range sdk.Kinds() {
				if errors.Is(err, kind) {
					t.Errorf("%s: %v is %v", name, err, kind)
				}
			}
		}
		if name == "newer" != strings.Contains(destroyErr.Error(), "use the newer sandboxer") {
			t.Errorf("%s: %v", name, destroyErr)
		}
		if left, err := os.ReadFile(recordOf(state, id)); err != nil || string(left) != content {
			t.Errorf("%s: it was touched: %s, %v", name, left, err)
		}
	}
	// What is not there is seen to be gone, whatever lies beside it.
	absent := target(newID("sbx-"))
	if result, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: absent}); err != nil || result.Existed {
		t.Errorf("destroy of nothing: %+v, %v", result, err)
	}
	if _, err := e.Get(t.Context(), sdk.GetOptions{Target: absent}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("get of nothing: %v", err)
	}
}

func TestWhatRunsIsNeverGone(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	if err := os.Remove(recordOf(state, s.ID)); err != nil {
		t.Fatal(err)
	}
	alive := func() bool { return len(hostProcesses(t, s.ID)) > 0 }
	_, err := e.Get(t.Context(), sdk.GetOptions{Target: target(s.ID)})
	if alive() && (err == nil || errors.Is(err, sdk.ErrNotFound)) {
		t.Errorf("get: %v while it runs", err)
	}
	list, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if alive() && (err != nil || !slices.Equal(list.Unreadable, []string{s.ID})) {
		t.Errorf("list: %+v, %v while it runs", list, err)
	}
	if result, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil || !result.Existed {
		t.Errorf("destroy: %+v, %v", result, err)
	}
	if left := hostProcesses(t, s.ID); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if _, err := os.Lstat(filepath.Dir(recordOf(state, s.ID))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}
