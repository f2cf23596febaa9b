// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
)

// size is how much of a test is run: all of it with SANDBOXER_TEST_FULL.
func size(full, ordinary int) int {
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		return full
	}
	return ordinary
}

// leased puts the record of a sandbox on disk that runs as far as its locks
// tell: the lease verbs need no more, and a test of thousands has no time to
// start as many.
func leased(t *testing.T, state string, deadline time.Time) (id string, end func()) {
	t.Helper()
	id = newID("sbx-")
	dir := filepath.Join(state, "local", "sandboxes", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := record.Hold(dir, record.SupervisorLock)
	if err != nil {
		t.Fatal(err)
	}
	err = record.Write(dir, record.Record{
		ID: id, Identity: sdk.Identity{ID: id, Fleet: fleet, Incarnation: 1}, Status: sdk.StatusReady,
		Lease: sdk.Lease{ExpiresAt: deadline, MaxExpiresAt: deadline.Add(time.Hour), Generation: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return id, func() {
		lock.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// A hundred extenders and a reaper want one lease, round after round: of
// each generation exactly one changes it, the deadline only grows, after the
// claim nothing does, and whoever loses is given the present lease.
func TestAHundredExtendersAndAReaper(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	random := rand.New(rand.NewPCG(1, 0))
	for round := range size(1000, 25) {
		deadline := time.Now().Add(time.Hour).UTC().Round(0)
		id, end := leased(t, state, deadline)
		faults := conformancetest.Contend(t.Context(), e, target(id), deadline, random)
		end()
		if len(faults) > 0 {
			t.Fatalf("round %d: %q", round, faults)
		}
	}
}

// Extends within 5 ms of the deadline, against a reaper that looks at about
// the same time: what is accepted is not claimed before its new deadline, and
// what comes too late is refused. The clocks are the test's.
func TestAnExtendAtTheDeadlineIsNeverAcceptedAndDead(t *testing.T) {
	state := stateDir(t)
	deadline := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	random := rand.New(rand.NewPCG(2, 0))
	accepted, tries := 0, size(10_000, 500)
	near := func() time.Duration {
		return time.Duration(random.Int64N(int64(10*time.Millisecond))) - 5*time.Millisecond
	}
	for range tries {
		id, end := leased(t, state, deadline)
		extendAt, claimAt := near(), near()
		at := func(d time.Duration) *extension.Extension {
			return backendAt(t, state, func() time.Time { return deadline.Add(d) })
		}
		extender, reaper := at(extendAt), at(claimAt)
		var extended, claimed error
		var all sync.WaitGroup
		all.Go(func() {
			_, extended = extender.Extend(t.Context(), sdk.ExtendOptions{Target: target(id), Generation: 1, ExpiresAt: deadline.Add(time.Minute)})
		})
		all.Go(func() {
			_, claimed = reaper.Claim(t.Context(), sdk.ClaimOptions{Target: target(id), Generation: 1, Holder: "reaper", OnlyExpired: true})
		})
		all.Wait()
		end()
		switch {
		case extended == nil && claimed == nil:
			t.Fatalf("extended at %s and claimed at %s from the deadline: accepted and dead", extendAt, claimAt)
		case extended == nil && extendAt >= 0:
			t.Fatalf("accepted %s after the deadline", extendAt)
		case claimed == nil && claimAt < 0:
			t.Fatalf("claimed %s before the deadline", -claimAt)
		case extended != nil && !errors.Is(extended, sdk.ErrExpired):
			t.Fatalf("refused %s from the deadline: %v", extendAt, extended)
		case claimed != nil && !errors.Is(claimed, sdk.ErrConflict):
			t.Fatalf("the reaper, %s from the deadline: %v", claimAt, claimed)
		case extended == nil:
			accepted++
		}
	}
	if accepted < tries/5 || accepted > tries*3/5 {
		t.Errorf("%d of %d were accepted: the test does not look at the deadline", accepted, tries)
	}
}
