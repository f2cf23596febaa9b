// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// extenders is how many want the lease of [Contend] beside the reaper.
const extenders = 100

// Contend lets a hundred extenders and a reaper want the lease of one sandbox,
// which is at its first generation, and returns what is wrong with what
// became of them: of each generation exactly one changes it, the deadline only
// grows, after the claim nothing does, and whoever loses is given the present
// lease.
func Contend(ctx context.Context, e sdk.Extension, target sdk.Target, deadline time.Time, random *rand.Rand) []string {
	r := race{winners: map[int64]sdk.Lease{}}
	var all sync.WaitGroup
	for i := range extenders {
		asked := 1 + random.Int64N(3) // of a lease that is there, or will be
		all.Go(func() {
			until := deadline.Add(time.Duration(asked)*time.Minute + time.Duration(i)*time.Millisecond)
			granted, err := e.Extend(ctx, sdk.ExtendOptions{Target: target, Generation: asked, ExpiresAt: until})
			r.judge(fmt.Sprintf("extender %d", i), asked, granted.Lease, err)
		})
	}
	asked := 1 + random.Int64N(3)
	all.Go(func() {
		granted, err := e.Claim(ctx, sdk.ClaimOptions{Target: target, Generation: asked, Holder: "reaper"})
		r.judge("the reaper", asked, granted.Lease, err)
	})
	all.Wait()
	r.check(sdk.Lease{Generation: 1, ExpiresAt: deadline})
	got, err := e.Get(ctx, sdk.GetOptions{Target: target})
	if err != nil || got.Sandbox.Lease.Generation != int64(1+len(r.winners)) {
		r.faults = append(r.faults, fmt.Sprintf("after %d winners the lease is %+v, %v", len(r.winners), got.Sandbox.Lease, err))
	}
	return r.faults
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
