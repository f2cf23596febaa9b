// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
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
	const extenders = 100
	random := rand.New(rand.NewPCG(1, 0))
	for round := range size(1000, 150) {
		c := newCloud(t)
		target := c.mustCreate(t, 1)
		deadline := start.Add(time.Hour)
		r := race{winners: map[int64]sdk.Lease{}}
		var all sync.WaitGroup
		for i := range extenders {
			asked := 1 + random.Int64N(3) // of a lease that is there, or will be
			all.Go(func() {
				until := deadline.Add(time.Duration(asked)*time.Minute + time.Duration(i)*time.Millisecond)
				granted, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: asked, ExpiresAt: until})
				r.judge(fmt.Sprintf("extender %d", i), asked, granted.Lease, err)
			})
		}
		asked := 1 + random.Int64N(3)
		all.Go(func() {
			granted, err := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: asked, Holder: "reaper"})
			r.judge("the reaper", asked, granted.Lease, err)
		})
		all.Wait()
		r.check(sdk.Lease{Generation: 1, ExpiresAt: deadline})
		got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
		if err != nil || got.Sandbox.Lease.Generation != int64(1+len(r.winners)) {
			r.faults = append(r.faults, fmt.Sprintf("after %d winners the lease is %+v, %v", len(r.winners), got.Sandbox.Lease, err))
		}
		if len(r.faults) > 0 {
			t.Fatalf("round %d: %q", round, r.faults)
		}
	}
}

// race is what became of those who wanted a lease at the same time.
type race struct {
	mu      sync.Mutex
	winners map[int64]sdk.Lease // by the generation that they made
	faults  []string
}

func (r *race) judge(who string, asked int64, granted sdk.Lease, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var told *sdk.Error
	switch {
	case err == nil:
		if other, twice := r.winners[granted.Generation]; twice {
			r.faults = append(r.faults, fmt.Sprintf("%s and another (%+v) both made generation %d", who, other, granted.Generation))
		}
		r.winners[granted.Generation] = granted
	case !errors.As(err, &told) || told.Lease == nil:
		r.faults = append(r.faults, fmt.Sprintf("%s lost and was not given the lease: %v", who, err))
	case errors.Is(err, sdk.ErrConflict) && told.Lease.Generation != asked, errors.Is(err, sdk.ErrExpired) && told.Lease.Claimed:
	default:
		r.faults = append(r.faults, fmt.Sprintf("%s of generation %d lost: %v, with the lease %+v", who, asked, err, *told.Lease))
	}
}

// check goes through the generations in their order.
func (r *race) check(last sdk.Lease) {
	for generation := int64(2); generation < int64(2+len(r.winners)); generation++ {
		won, ok := r.winners[generation]
		switch {
		case !ok:
			r.faults = append(r.faults, fmt.Sprintf("nobody made generation %d of %d", generation, len(r.winners)+1))
		case last.Claimed:
			r.faults = append(r.faults, "the lease was changed after the claim")
		case won.ExpiresAt.Before(last.ExpiresAt) || !won.Claimed && !won.ExpiresAt.After(last.ExpiresAt):
			r.faults = append(r.faults, fmt.Sprintf("the deadline went from %s to %s", last.ExpiresAt, won.ExpiresAt))
		}
		last = won
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
