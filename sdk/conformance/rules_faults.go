// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// A backend that lies. Each rule needs a hook of the suite that makes it lie
// in one way, from now until it is healed.

import (
	"context"
	"errors"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Fault is one way in which a backend goes wrong.
type Fault string

// The faults.
const (
	// FaultLostCreate: the backend carries the next create out, and its
	// answer is lost.
	FaultLostCreate Fault = "lost_create"
	// FaultLostExtend: the same for the next change of a lease.
	FaultLostExtend Fault = "lost_extend"
	// FaultLostDestroy: the same for the next removal.
	FaultLostDestroy Fault = "lost_destroy"
	// FaultPretendedDestroy: the backend says that it removed something, and
	// does nothing.
	FaultPretendedDestroy Fault = "pretended_destroy"
	// FaultFalseNotFound: the backend does not find what is there when it is
	// asked for by its own handle.
	FaultFalseNotFound Fault = "false_not_found"
	// FaultLostPage: a listing lacks something.
	FaultLostPage Fault = "lost_page"
	// FaultRepeatedPage: a listing holds something twice.
	FaultRepeatedPage Fault = "repeated_page"
	// FaultThrottled: the backend refuses the next call for now.
	FaultThrottled Fault = "throttled"
	// FaultUnreachable: no call gets through.
	FaultUnreachable Fault = "unreachable"
	// FaultDiedEarly: the next sandbox is dead right after its create.
	FaultDiedEarly Fault = "died_early"
)

func (f Fault) known() bool {
	for _, r := range faultRules() {
		if r.fault == f {
			return true
		}
	}
	return false
}

func faultRules() []Rule {
	rule := func(fault Fault, title string, try func(c *check)) Rule {
		return Rule{ID: "faults/" + string(fault), Title: title, fault: fault, try: try}
	}
	return []Rule{
		rule(FaultLostCreate, "a create whose answer is lost is found by its id, and never made twice", faultLostCreate),
		rule(FaultLostExtend, "an extend whose answer is lost is not granted twice", faultLostExtend),
		rule(FaultLostDestroy, "a destroy whose answer is lost ends in absence or an error", faultDestroy),
		rule(FaultPretendedDestroy, "a destroy that the backend only pretends is no success", faultDestroy),
		rule(FaultFalseNotFound, "not found for what is still listed is neither absence nor a destroy", faultFalseNotFound),
		rule(FaultLostPage, "a listing that lacks something says so", faultLostPage),
		rule(FaultRepeatedPage, "a listing names nothing twice, whatever the backend repeats", faultRepeatedPage),
		rule(FaultThrottled, "a backend that wants to be asked later is, or its wish is handed on", faultThrottled),
		rule(FaultUnreachable, "a backend that can't be asked is unreachable, and nothing is gone", faultUnreachable),
		rule(FaultDiedEarly, "a sandbox that is dead is not ready", faultDiedEarly),
	}
}

// inject begins the rule's fault and returns what ends it.
func (c *check) inject() (heal func()) {
	healed := false
	end := c.kit.suite.Faults[c.rule.fault]()
	heal = func() {
		if !healed && end != nil {
			end()
		}
		healed = true
	}
	c.cleanups = append(c.cleanups, func(context.Context) { heal() })
	return heal
}

func faultLostCreate(c *check) {
	opts := c.creation()
	c.destroyLater(c.kit.a, opts)
	heal := c.inject()
	_, err := c.kit.a.Create(c.ctx, opts)
	heal()
	c.note("the create whose answer was lost: %v", err)
	c.failIf(errors.Is(err, sdk.ErrNotFound), "it is answered as not found: %v", err)
	got, err := c.kit.b.Get(c.ctx, sdk.GetOptions{Target: sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet}})
	c.failIf(err != nil, "it can't be found by its id: %v", err)
	c.sameIdentity("Get", got.Sandbox.Identity, opts.Identity)
	again := opts
	again.Event = c.kit.event()
	_, err = c.kit.a.Create(c.ctx, again)
	c.is(err, "a create of the same id", sdk.ErrConflict)
	n := count(c.list(c.kit.b, opts.Identity.Fleet), opts.ID)
	c.failIf(n != 1, "it is listed %d times", n)
}

func faultLostExtend(c *check) {
	s, target := c.ready(c.creation())
	opts := c.extension(target, s.Lease, s.Lease.MaxExpiresAt)
	heal := c.inject()
	granted, err := c.kit.a.Extend(c.ctx, opts)
	heal()
	seen := c.get(c.kit.b, target).Lease
	c.note("the extend whose answer was lost: %v; the lease is at generation %d", err, seen.Generation)
	c.failIf(err == nil && !granted.Lease.ExpiresAt.Equal(seen.ExpiresAt), "%s is said to be granted, and %s is there", granted.Lease.ExpiresAt, seen.ExpiresAt)
	c.failIf(seen.Generation > s.Lease.Generation+1, "one extend made %d generations", seen.Generation-s.Lease.Generation)
}

func faultDestroy(c *check) {
	_, target := c.ready(c.creation())
	heal := c.inject()
	gone, err := c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
	heal()
	c.note("destroy: %+v, %v", gone, err)
	if err != nil {
		return
	}
	_, err = c.kit.b.Get(c.ctx, sdk.GetOptions{Target: target})
	c.is(err, "Get after a destroy that succeeded", sdk.ErrNotFound)
	c.failIf(count(c.list(c.kit.b, target.Fleet), target.ID) != 0, "the destroy succeeded, and it is listed")
}

func faultFalseNotFound(c *check) {
	_, target := c.ready(c.creation())
	heal := c.inject()
	_, err := c.kit.a.Get(c.ctx, sdk.GetOptions{Target: target})
	c.note("Get: %v", err)
	c.failIf(errors.Is(err, sdk.ErrNotFound), "a sandbox that is there is said to be gone: %v", err)
	_, err = c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
	heal()
	c.note("Destroy: %v", err)
	if err == nil {
		_, err = c.kit.b.Get(c.ctx, sdk.GetOptions{Target: target})
		c.is(err, "Get after a destroy that succeeded", sdk.ErrNotFound)
	}
}

func faultLostPage(c *check) { c.listed(c.createMany(c.kit.suite.Page + 1)) }

func faultRepeatedPage(c *check) { c.listed(c.createMany(c.kit.suite.Page + 1)) }

// listed takes a listing while the fault is in force: it holds nothing twice,
// and everything unless it says that it may not.
func (c *check) listed(made []sdk.CreateOptions) {
	heal := c.inject()
	list, err := c.kit.a.List(c.ctx, sdk.ListOptions{Fleet: c.kit.suite.Fleet})
	heal()
	c.note("%d listed, incomplete: %q, %v", len(list.Sandboxes), list.Incomplete, err)
	seen := map[string]int{}
	for _, s := range list.Sandboxes {
		seen[s.ID]++
		c.failIf(seen[s.ID] > 1, "%s is listed twice", s.ID)
	}
	for _, opts := range made {
		c.failIf(err == nil && list.Incomplete == "" && seen[opts.ID] == 0, "the listing lacks %s and says that it is complete", opts.ID)
	}
}

func faultThrottled(c *check) {
	_, target := c.ready(c.creation())
	heal := c.inject()
	_, err := c.kit.a.Get(c.ctx, sdk.GetOptions{Target: target})
	heal()
	if err != nil {
		c.is(err, "Get of a backend that wants to be asked later", sdk.ErrQuota, sdk.ErrUnreachable)
	}
}

func faultUnreachable(c *check) {
	s, target := c.ready(c.creation())
	opts := c.creation()
	c.destroyLater(c.kit.a, opts)
	heal := c.inject()
	_, err := c.kit.a.Get(c.ctx, sdk.GetOptions{Target: target})
	c.is(err, "Get", sdk.ErrUnreachable)
	list, err := c.kit.a.List(c.ctx, sdk.ListOptions{Fleet: target.Fleet})
	c.failIf(err == nil && list.Incomplete == "", "a listing of %d is said to be complete", len(list.Sandboxes))
	_, err = c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.MaxExpiresAt))
	c.is(err, "Extend", sdk.ErrUnreachable)
	_, err = c.kit.a.Create(c.ctx, opts)
	c.is(err, "Create", sdk.ErrUnreachable)
	_, err = c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
	c.is(err, "Destroy", sdk.ErrUnreachable)
	probed, err := c.kit.a.Probe(c.ctx, sdk.ProbeOptions{})
	c.failIf(err == nil && probed.Usable, "Probe says that the backend is usable")
	heal()
	c.get(c.kit.b, target)
}

func faultDiedEarly(c *check) {
	opts := c.creation()
	c.destroyLater(c.kit.a, opts)
	heal := c.inject()
	made, err := c.kit.a.Create(c.ctx, opts)
	heal()
	if err != nil {
		c.note("create: %v", err)
		return
	}
	target := targetOf(made.Sandbox, opts)
	var seen sdk.Sandbox
	c.failIf(!c.soon(func() bool {
		seen = c.get(c.kit.b, target)
		return seen.Status != sdk.StatusReady && seen.Status != sdk.StatusCreating
	}), "it is dead, and said to be %s", seen.Status)
	c.note("it is %s: %s", seen.Status, seen.Reason)
	c.destroyed(target)
}
