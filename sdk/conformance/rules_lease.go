// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// The lease: extend, expire, claim, and what happens at the deadline.

import (
	"errors"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func extendRules() []Rule {
	extend := []sdk.Feature{sdk.FeatureExtend}
	return []Rule{
		{ID: "extend/later", Title: "extend moves the deadline later, and another instance sees it", Features: extend, try: extendLater},
		{ID: "extend/monotonic", Title: "extend never shortens", Features: extend, try: extendMonotonic},
		{ID: "extend/maximum", Title: "extend grants no more than the maximum, and says what it granted", Features: extend, try: extendMaximum},
		{ID: "extend/event", Title: "the lease record names the ledger event behind it", Features: extend, try: extendEvent},
		{ID: "extend/compare_and_swap", Title: "an extend of an old generation is a conflict that carries the present lease", Features: []sdk.Feature{sdk.FeatureExtend, sdk.FeatureExtendCAS}, try: extendCompareAndSwap},
		{ID: "extend/after_deadline", Title: "nothing extends past the deadline", Features: []sdk.Feature{sdk.FeatureExtend, sdk.FeatureDeadline}, try: extendAfterDeadline},
		{ID: "extend/after_claim", Title: "nothing extends after a claim", Features: []sdk.Feature{sdk.FeatureExtend, sdk.FeatureClaim}, try: extendAfterClaim},
	}
}

func (c *check) extension(target sdk.Target, lease sdk.Lease, until time.Time) sdk.ExtendOptions {
	return sdk.ExtendOptions{Target: target, Generation: lease.Generation, ExpiresAt: until, Event: c.kit.event()}
}

func extendLater(c *check) {
	s, target := c.ready(c.creation())
	until := s.Lease.ExpiresAt.Add(time.Hour)
	granted, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, until))
	c.failIf(err != nil, "extend: %v", err)
	c.failIf(!near(granted.Lease.ExpiresAt, until), "%s was asked for and %s granted", until, granted.Lease.ExpiresAt)
	c.failIf(granted.Lease.Generation <= s.Lease.Generation, "the generation went from %d to %d", s.Lease.Generation, granted.Lease.Generation)
	for name, ext := range map[string]sdk.Extension{"the instance": c.kit.a, "another instance": c.kit.b} {
		seen := c.get(ext, target).Lease
		c.failIf(!seen.ExpiresAt.Equal(granted.Lease.ExpiresAt) || seen.Generation != granted.Lease.Generation,
			"%s was granted at generation %d, and %s sees %s at %d", granted.Lease.ExpiresAt, granted.Lease.Generation, name, seen.ExpiresAt, seen.Generation)
	}
}

func extendMonotonic(c *check) {
	s, target := c.ready(c.creation())
	for _, until := range []time.Time{s.Lease.ExpiresAt.Add(-5 * time.Minute), c.now().Add(-time.Hour)} {
		_, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, until))
		after := c.get(c.kit.b, target).Lease
		c.failIf(after.ExpiresAt.Before(s.Lease.ExpiresAt), "an extend to %s moved the deadline from %s to %s (%v)", until, s.Lease.ExpiresAt, after.ExpiresAt, err)
		s.Lease = after
	}
}

func extendMaximum(c *check) {
	s, target := c.ready(c.creation())
	granted, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.MaxExpiresAt.Add(24*time.Hour)))
	c.failIf(err != nil, "an extend past the maximum grants what is left: %v", err)
	c.failIf(granted.Lease.ExpiresAt.After(s.Lease.MaxExpiresAt), "%s was granted, past the maximum of %s", granted.Lease.ExpiresAt, s.Lease.MaxExpiresAt)
	c.failIf(!near(granted.Lease.ExpiresAt, s.Lease.MaxExpiresAt), "%s was granted, and the maximum is %s", granted.Lease.ExpiresAt, s.Lease.MaxExpiresAt)
	seen := c.get(c.kit.b, target).Lease
	c.failIf(!seen.ExpiresAt.Equal(granted.Lease.ExpiresAt), "%s is said to be granted, and %s is", granted.Lease.ExpiresAt, seen.ExpiresAt)
}

func extendEvent(c *check) {
	s, target := c.ready(c.creation())
	opts := c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(time.Minute))
	_, err := c.kit.a.Extend(c.ctx, opts)
	c.need(err, "extend")
	got := c.get(c.kit.b, target).Lease.Event
	c.failIf(got != opts.Event, "the record names %+v, not %+v", got, opts.Event)
}

func extendCompareAndSwap(c *check) {
	s, target := c.ready(c.creation())
	first, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(time.Minute)))
	c.need(err, "extend")
	_, err = c.kit.b.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(time.Hour)))
	c.is(err, "an extend of an old generation", sdk.ErrConflict)
	c.carries(err, first.Lease)
	after := c.get(c.kit.a, target).Lease
	c.failIf(!after.ExpiresAt.Equal(first.Lease.ExpiresAt) || after.Generation != first.Lease.Generation, "it was refused and changed the lease from %+v to %+v", first.Lease, after)
}

// carries fails unless an error holds the present lease.
func (c *check) carries(err error, present sdk.Lease) {
	var said *sdk.Error
	c.failIf(!errors.As(err, &said) || said.Lease == nil, "the error carries no lease: %v", err)
	c.failIf(said.Lease.Generation != present.Generation || !said.Lease.ExpiresAt.Equal(present.ExpiresAt), "the error carries %+v, and the present lease is %+v", *said.Lease, present)
}

func extendAfterDeadline(c *check) {
	s, target := c.shortLived(c.standard)
	c.waitFor(s.Lease.ExpiresAt)
	_, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, c.now().Add(time.Hour)))
	c.failIf(err == nil, "an extend after the deadline of %s succeeded", s.Lease.ExpiresAt)
	if _, gone := c.kit.a.Get(c.ctx, sdk.GetOptions{Target: target}); errors.Is(gone, sdk.ErrNotFound) {
		c.is(err, "an extend after the deadline, of what the backend has removed", sdk.ErrExpired, sdk.ErrNotFound)
		return
	}
	c.is(err, "an extend after the deadline", sdk.ErrExpired)
}

func extendAfterClaim(c *check) {
	s, target := c.ready(c.creation())
	claimed := c.claim(target, s.Lease)
	for _, generation := range []int64{s.Lease.Generation, claimed.Generation} {
		_, err := c.kit.b.Extend(c.ctx, sdk.ExtendOptions{Target: target, Generation: generation, ExpiresAt: s.Lease.ExpiresAt.Add(time.Hour), Event: c.kit.event()})
		c.is(err, "an extend after a claim", sdk.ErrExpired)
	}
	after := c.get(c.kit.b, target).Lease
	c.failIf(after.ExpiresAt.After(claimed.ExpiresAt), "it was refused and moved the deadline to %s", after.ExpiresAt)
}

func (c *check) claim(target sdk.Target, lease sdk.Lease) sdk.Lease {
	claimed, err := c.kit.a.Claim(c.ctx, sdk.ClaimOptions{Target: target, Generation: lease.Generation, Holder: "conformance", Event: c.kit.event()})
	c.need(err, "claim")
	return claimed.Lease
}

// waitFor waits until a time has passed, by a little.
func (c *check) waitFor(t time.Time) { c.sleep(max(0, t.Sub(c.now())) + 20*time.Millisecond) }

func expireRules() []Rule {
	return []Rule{
		{ID: "expire/earlier", Title: "expire moves the deadline earlier", Features: []sdk.Feature{sdk.FeatureDeadline}, try: expireEarlier},
		{ID: "expire/never_lengthens", Title: "expire never lengthens", Features: []sdk.Feature{sdk.FeatureDeadline}, try: expireNeverLengthens},
		{ID: "expire/now", Title: "expire down to now ends the sandbox", Features: []sdk.Feature{sdk.FeatureDeadline}, try: expireNow},
		{ID: "expire/compare_and_swap", Title: "an expire of an old generation is a conflict", Features: []sdk.Feature{sdk.FeatureExtendCAS, sdk.FeatureExtend}, try: expireCompareAndSwap},
	}
}

func expireEarlier(c *check) {
	s, target := c.ready(c.creation())
	until := s.Lease.ExpiresAt.Add(-5 * time.Minute)
	moved, err := c.kit.a.Expire(c.ctx, sdk.ExpireOptions{Target: target, Generation: s.Lease.Generation, ExpiresAt: until, Event: c.kit.event()})
	c.failIf(err != nil, "expire: %v", err)
	seen := c.get(c.kit.b, target).Lease
	c.failIf(!near(moved.Lease.ExpiresAt, until) || !seen.ExpiresAt.Equal(moved.Lease.ExpiresAt), "%s was asked for, %s answered and %s is seen", until, moved.Lease.ExpiresAt, seen.ExpiresAt)
	c.failIf(seen.Generation <= s.Lease.Generation, "the generation went from %d to %d", s.Lease.Generation, seen.Generation)
}

func expireNeverLengthens(c *check) {
	s, target := c.ready(c.creation())
	_, err := c.kit.a.Expire(c.ctx, sdk.ExpireOptions{Target: target, Generation: s.Lease.Generation, ExpiresAt: s.Lease.ExpiresAt.Add(time.Hour), Event: c.kit.event()})
	after := c.get(c.kit.b, target).Lease
	c.failIf(after.ExpiresAt.After(s.Lease.ExpiresAt), "an expire moved the deadline from %s to %s (%v)", s.Lease.ExpiresAt, after.ExpiresAt, err)
}

func expireNow(c *check) {
	s, target := c.ready(c.creation())
	_, err := c.kit.a.Expire(c.ctx, sdk.ExpireOptions{Target: target, Generation: s.Lease.Generation, ExpiresAt: c.now().Add(-time.Hour), Event: c.kit.event()})
	c.failIf(err != nil, "expire: %v", err)
	c.failIf(!c.soon(func() bool { return c.over(target) }), "it is still %s", c.statusOf(c.kit.a, target))
}

func expireCompareAndSwap(c *check) {
	s, target := c.ready(c.creation())
	extended, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(time.Hour)))
	c.need(err, "extend")
	_, err = c.kit.b.Expire(c.ctx, sdk.ExpireOptions{Target: target, Generation: s.Lease.Generation, ExpiresAt: c.now(), Event: c.kit.event()})
	c.is(err, "an expire of an old generation", sdk.ErrConflict)
	c.carries(err, extended.Lease)
	after := c.get(c.kit.a, target).Lease
	c.failIf(!after.ExpiresAt.Equal(extended.Lease.ExpiresAt), "it was refused and moved the deadline to %s", after.ExpiresAt)
}

func claimRules() []Rule {
	claim := []sdk.Feature{sdk.FeatureClaim}
	return []Rule{
		{ID: "claim/holds", Title: "a claim is seen by another instance, and names its holder", Features: claim, try: claimHolds},
		{ID: "claim/again", Title: "a claim whose holder died is continued", Features: claim, try: claimAgain},
		{ID: "claim/only_expired", Title: "a reaper's claim of a live lease is refused", Features: claim, try: claimOnlyExpired},
		{ID: "claim/after_deadline", Title: "a reaper's claim of an expired lease succeeds", Features: []sdk.Feature{sdk.FeatureClaim, sdk.FeatureDeadline}, try: claimAfterDeadline},
		{ID: "claim/compare_and_swap", Title: "a claim of an old generation is a conflict", Features: []sdk.Feature{sdk.FeatureClaim, sdk.FeatureExtend, sdk.FeatureExtendCAS}, try: claimCompareAndSwap},
		{ID: "claim/race", Title: "exactly one of concurrent extends and a claim wins", Features: []sdk.Feature{sdk.FeatureClaim, sdk.FeatureExtend, sdk.FeatureExtendCAS}, try: claimRace},
	}
}

func claimHolds(c *check) {
	s, target := c.ready(c.creation())
	claimed := c.claim(target, s.Lease)
	c.failIf(!claimed.Claimed || claimed.ClaimHolder != "conformance", "the answer is %+v", claimed)
	seen := c.get(c.kit.b, target)
	c.failIf(!seen.Lease.Claimed || seen.Lease.ClaimHolder != "conformance", "another instance sees %+v", seen.Lease)
	c.failIf(seen.Status == sdk.StatusReady, "a claimed sandbox is ready")
}

func claimAgain(c *check) {
	s, target := c.ready(c.creation())
	claimed := c.claim(target, s.Lease)
	for _, generation := range []int64{s.Lease.Generation, claimed.Generation} {
		again, err := c.kit.b.Claim(c.ctx, sdk.ClaimOptions{Target: target, Generation: generation, Holder: "the next sweep", OnlyExpired: true, Event: c.kit.event()})
		c.failIf(err != nil, "a second claim: %v", err)
		c.failIf(!again.Lease.Claimed, "the second claim succeeded, and the lease is not claimed")
	}
}

func (c *check) reap(target sdk.Target, lease sdk.Lease) error {
	_, err := c.kit.b.Claim(c.ctx, sdk.ClaimOptions{Target: target, Generation: lease.Generation, Holder: "reaper", OnlyExpired: true, Event: c.kit.event()})
	return err
}

func claimOnlyExpired(c *check) {
	s, target := c.ready(c.creation())
	c.is(c.reap(target, s.Lease), "a claim of a live lease", sdk.ErrConflict)
	c.failIf(c.get(c.kit.a, target).Lease.Claimed, "it was refused, and the lease is claimed")
}

func claimAfterDeadline(c *check) {
	s, target := c.shortLived(c.standard)
	c.waitFor(s.Lease.ExpiresAt)
	err := c.reap(target, s.Lease)
	if errors.Is(err, sdk.ErrConflict) {
		// The backend ended it and wrote that down.
		err = c.reap(target, c.get(c.kit.b, target).Lease)
	}
	if errors.Is(err, sdk.ErrNotFound) {
		c.note("the backend has removed it: %v", err)
		return
	}
	c.failIf(err != nil, "a claim after the deadline: %v", err)
}

func claimCompareAndSwap(c *check) {
	s, target := c.ready(c.creation())
	extended, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(time.Hour)))
	c.need(err, "extend")
	_, err = c.kit.b.Claim(c.ctx, sdk.ClaimOptions{Target: target, Generation: s.Lease.Generation, Holder: "late", Event: c.kit.event()})
	c.is(err, "a claim of an old generation", sdk.ErrConflict)
	c.carries(err, extended.Lease)
	c.failIf(c.get(c.kit.a, target).Lease.Claimed, "it was refused, and the lease is claimed")
}

func claimRace(c *check) {
	const extenders = 7
	_, target := c.ready(c.creation())
	claims := 0
	for round := range c.kit.suite.Rounds {
		lease := c.get(c.kit.a, target).Lease
		if lease.Claimed {
			claims++
			_, target = c.ready(c.creation())
			lease = c.get(c.kit.a, target).Lease
		}
		leases, errs := make([]sdk.Lease, extenders+1), make([]error, extenders+1)
		var start, done sync.WaitGroup
		start.Add(1)
		for i := range leases {
			ext, event := c.kit.a, c.kit.event()
			if i%2 == 1 {
				ext = c.kit.b
			}
			until := lease.ExpiresAt.Add(time.Duration(i+1) * 2 * time.Second)
			done.Go(func() {
				start.Wait()
				// The place of the claim in the line moves, so that it does not always come last.
				if i == round%len(leases) {
					r, err := ext.Claim(c.ctx, sdk.ClaimOptions{Target: target, Generation: lease.Generation, Holder: "racer", Event: event})
					leases[i], errs[i] = r.Lease, err
					return
				}
				r, err := ext.Extend(c.ctx, sdk.ExtendOptions{Target: target, Generation: lease.Generation, ExpiresAt: until, Event: event})
				leases[i], errs[i] = r.Lease, err
			})
		}
		start.Done()
		done.Wait()
		winners := 0
		var won sdk.Lease
		for i, err := range errs {
			if err == nil {
				winners++
				won = leases[i]
			} else if !errors.Is(err, sdk.ErrConflict) && !errors.Is(err, sdk.ErrExpired) {
				c.fail("round %d: a loser is told neither conflict nor expired: %v", round, err)
			}
		}
		c.failIf(winners != 1, "round %d: %d of %d won", round, winners, len(leases))
		seen := c.get(c.kit.b, target).Lease
		c.failIf(seen.Claimed != won.Claimed || seen.Generation != won.Generation || !seen.ExpiresAt.Equal(won.ExpiresAt), "round %d: the winner was told %+v, and %+v is there", round, won, seen)
	}
	c.note("%d rounds of %d; the claim won some %d", c.kit.suite.Rounds, extenders+1, claims)
}
