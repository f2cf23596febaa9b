// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

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

// A hundred extenders and a reaper want one lease, round after round: of
// each generation exactly one changes it, the deadline only grows, after the
// claim nothing does, and whoever loses is given the present lease.
func TestAHundredExtendersAndAReaper(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	for round := range size(1000, 150) {
		c := newCloud(t)
		faults := conformancetest.Contend(t.Context(), c, c.mustCreate(t, 1), start.Add(time.Hour), random)
		if len(faults) > 0 {
			t.Fatalf("round %d: %q", round, faults)
		}
	}
}

// Extends within 5 ms of the deadline: what is accepted lives
// until its new deadline, and what comes too late is refused.
func TestAnExtendAtTheDeadlineIsNeverAcceptedAndDead(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 0))
	accepted, tries := 0, size(10_000, 2000)
	for range tries {
		c := newCloud(t)
		target := c.mustCreate(t, 1)
		deadline := start.Add(time.Hour)
		at := time.Duration(random.Int64N(int64(10*time.Millisecond))) - 5*time.Millisecond
		c.clock.Advance(time.Hour + at)
		granted, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: deadline.Add(time.Minute)})
		c.clock.Advance(10 * time.Millisecond) // past the old deadline, whichever
		got, getErr := c.Get(t.Context(), sdk.GetOptions{Target: target})
		switch {
		case getErr != nil:
			t.Fatal(getErr)
		case err == nil && (at >= 0 || got.Sandbox.Status != sdk.StatusReady || !granted.Lease.ExpiresAt.Equal(deadline.Add(time.Minute))):
			t.Fatalf("%s from the deadline: accepted, and it is %s until %s", at, got.Sandbox.Status, granted.Lease.ExpiresAt)
		case err != nil && (at < 0 || !errors.Is(err, sdk.ErrExpired) || got.Sandbox.Status == sdk.StatusReady):
			t.Fatalf("%s from the deadline: %v, and it is %s", at, err, got.Sandbox.Status)
		case err == nil:
			accepted++
		}
	}
	if accepted < tries/3 || accepted > tries*2/3 {
		t.Errorf("%d of %d were accepted: the test does not look at the deadline", accepted, tries)
	}
}
