// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"os"
	"path/filepath"
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
	for name, content := range unreadable {
		s := create(t, e, options(sdk.Profile{Name: "shell"}))
		lease, err := e.Expire(t.Context(), sdk.ExpireOptions{Target: target(s.ID), Generation: 1, ExpiresAt: time.Now().Add(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		old := damage(t, state, s.ID, content)
		gone(t, state, s.ID)
		if now := time.Now(); now.Before(lease.Lease.ExpiresAt) || now.After(lease.Lease.ExpiresAt.Add(4*time.Second)) {
			t.Errorf("%s: ended at %v, and the deadline was %v", name, now, lease.Lease.ExpiresAt)
		}
		damage(t, state, s.ID, string(old)) // for the destroy
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
