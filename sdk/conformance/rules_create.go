// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Create, and finding what was created.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func createRules() []Rule {
	return []Rule{
		{ID: "create/ref_and_id", Title: "Create returns the id that was asked for and a ref", try: createRefAndID},
		{ID: "create/identity", Title: "owner, task, run, labels and profile revision come back exactly", try: createIdentity},
		{ID: "create/lease", Title: "the lease is the one asked for, and is nobody's", Features: []sdk.Feature{sdk.FeatureDeadline}, try: createLease},
		{ID: "create/no_maximum", Title: "without a maximum the deadline is the maximum", Features: []sdk.Feature{sdk.FeatureDeadline, sdk.FeatureExtend}, try: createNoMaximum},
		{ID: "create/past_deadline", Title: "nothing is made that has expired already", Features: []sdk.Feature{sdk.FeatureDeadline}, try: createPastDeadline},
		{ID: "create/guard", Title: "a sandbox says what ends it at its deadline", Features: []sdk.Feature{sdk.FeatureDeadline}, try: createGuard},
		{ID: "create/idempotent", Title: "a second create of an id is a conflict and changes nothing", Features: []sdk.Feature{sdk.FeatureIdempotentCreate}, try: createIdempotent},
		{ID: "create/one_winner", Title: "of many creates of one id at once exactly one succeeds", Features: []sdk.Feature{sdk.FeatureIdempotentCreate}, try: createOneWinner},
		{ID: "get/unknown", Title: "Get of what is not there is not found", try: getUnknown},
		{ID: "get/by_id", Title: "Get finds a sandbox by its label, without the ref", try: getByID},
	}
}

func createRefAndID(c *check) {
	opts := c.creation()
	s, target := c.create(opts)
	c.failIf(s.ID != opts.ID, "the id is %q, not %q", s.ID, opts.ID)
	c.failIf(s.Ref == "", "there is no ref")
	c.failIf(s.Status != sdk.StatusCreating && s.Status != sdk.StatusReady, "a new sandbox is %s: %s", s.Status, s.Reason)
	c.failIf(s.Incarnation != 1, "the first run is incarnation %d", s.Incarnation)
	got := c.get(c.kit.a, target)
	c.failIf(got.Ref != s.Ref, "Get says ref %q, Create said %q", got.Ref, s.Ref)
	c.note("ref %s, %s", s.Ref, s.Status)
}

func createIdentity(c *check) {
	opts := c.creation()
	opts.Identity.Owner, opts.Identity.Task, opts.Identity.Actor = "team: payments & co", "JIRA-12/tâche", "ci@example.org"
	opts.Identity.Run = "https://ci.example.org/run/1?a=b&c=%20d"
	opts.Identity.Labels = map[string]string{"suite": "checkout", "empty": "", "quoted": `a "b" = c, {d}`, "ключ": "значение ☂"}
	s, target := c.create(opts)
	c.sameIdentity("Create", s.Identity, opts.Identity)
	c.sameIdentity("Get", c.get(c.kit.b, target).Identity, opts.Identity)
	for _, listed := range c.list(c.kit.b, target.Fleet) {
		if listed.ID == opts.ID {
			c.sameIdentity("List", listed.Identity, opts.Identity)
			return
		}
	}
	c.cannot("the sandbox is not listed")
}

func (c *check) sameIdentity(by string, got, want sdk.Identity) {
	got, want = got.Clone(), want.Clone()
	if len(got.Labels) == 0 && len(want.Labels) == 0 {
		got.Labels, want.Labels = nil, nil
	}
	c.failIf(!got.CreatedAt.Equal(want.CreatedAt), "%s says created_at %s, not %s", by, got.CreatedAt, want.CreatedAt)
	c.failIf(!maps.Equal(got.Labels, want.Labels), "%s says labels %q, not %q", by, got.Labels, want.Labels)
	for name, pair := range map[string][2]string{
		"id": {got.ID, want.ID}, "fleet": {got.Fleet, want.Fleet}, "owner": {got.Owner, want.Owner}, "task": {got.Task, want.Task},
		"run": {got.Run, want.Run}, "actor": {got.Actor, want.Actor}, "profile": {got.Profile, want.Profile},
		"profile_revision": {got.ProfileRevision, want.ProfileRevision},
	} {
		c.failIf(pair[0] != pair[1], "%s says %s %q, not %q", by, name, pair[0], pair[1])
	}
}

func createLease(c *check) {
	opts := c.creation()
	s, target := c.create(opts)
	for by, lease := range map[string]sdk.Lease{"Create": s.Lease, "Get": c.get(c.kit.b, target).Lease} {
		c.failIf(!near(lease.ExpiresAt, opts.ExpiresAt), "%s says a deadline of %s, and %s was asked for", by, lease.ExpiresAt, opts.ExpiresAt)
		c.failIf(!near(lease.MaxExpiresAt, opts.MaxExpiresAt), "%s says a maximum of %s, and %s was asked for", by, lease.MaxExpiresAt, opts.MaxExpiresAt)
		c.failIf(lease.Generation < 1, "%s says generation %d", by, lease.Generation)
		c.failIf(lease.Claimed, "%s says that a new lease is claimed", by)
		c.failIf(lease.Event != opts.Event, "%s says event %+v, not %+v", by, lease.Event, opts.Event)
	}
}

func createNoMaximum(c *check) {
	opts := c.creation()
	opts.MaxExpiresAt = time.Time{}
	s, target := c.create(opts)
	c.failIf(!near(s.Lease.MaxExpiresAt, opts.ExpiresAt), "the maximum is %s, the deadline %s", s.Lease.MaxExpiresAt, s.Lease.ExpiresAt)
	_, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, opts.ExpiresAt.Add(time.Hour)))
	after := c.get(c.kit.a, target).Lease
	c.failIf(!near(after.ExpiresAt, opts.ExpiresAt), "it was extended to %s, past its maximum of %s (%v)", after.ExpiresAt, opts.ExpiresAt, err)
}

func createPastDeadline(c *check) {
	opts := c.creation()
	opts.ExpiresAt = c.now().Add(-time.Minute)
	c.destroyLater(c.kit.a, opts)
	_, err := c.kit.a.Create(c.ctx, opts)
	c.is(err, "a create whose deadline has passed", sdk.ErrInvalid, sdk.ErrExpired)
	c.failIf(count(c.list(c.kit.b, opts.Identity.Fleet), opts.ID) != 0, "it was refused and is listed")
}

func createGuard(c *check) {
	s, target := c.ready(c.creation())
	c.failIf(len(s.Guards) == 0, "the deadline is claimed as %s, and no guard is named", c.kit.report.Probed.Of(sdk.FeatureDeadline).Class)
	c.note("%s is guarded by %v", target.ID, s.Guards)
}

func createIdempotent(c *check) {
	opts := c.creation()
	_, target := c.ready(opts)
	before := c.get(c.kit.a, target)
	second := c.creation()
	second.ID, second.Identity.ID = opts.ID, opts.ID
	second.Identity.Owner, second.Env = "somebody else", map[string]string{"SECOND": "yes"}
	second.ExpiresAt = opts.ExpiresAt.Add(time.Hour)
	for name, ext := range map[string]sdk.Extension{"the same instance": c.kit.a, "another instance": c.kit.b} {
		_, err := ext.Create(c.ctx, second)
		c.is(err, "a second create by "+name, sdk.ErrConflict)
	}
	after := c.get(c.kit.a, target)
	c.failIf(shown(before) != shown(after), "it changed the sandbox from %s to %s", shown(before), shown(after))
	n := count(c.list(c.kit.b, target.Fleet), opts.ID)
	c.failIf(n != 1, "the id is listed %d times", n)
}

func createOneWinner(c *check) {
	opts := c.creation()
	c.destroyLater(c.kit.a, opts)
	errs := make([]error, 4)
	var creates sync.WaitGroup
	for i := range errs {
		opts, ext := opts, c.kit.a
		opts.Event = c.kit.event()
		if i%2 == 1 {
			ext = c.kit.b
		}
		creates.Go(func() { _, errs[i] = ext.Create(c.ctx, opts) })
	}
	creates.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		c.is(err, "a create that lost", sdk.ErrConflict)
	}
	c.failIf(won != 1, "%d of %d creates succeeded", won, len(errs))
	n := count(c.list(c.kit.b, opts.Identity.Fleet), opts.ID)
	c.failIf(n != 1, "the id is listed %d times", n)
}

func getUnknown(c *check) {
	_, err := c.kit.a.Get(c.ctx, sdk.GetOptions{Target: sdk.Target{ID: newID("sbx-"), Fleet: c.kit.suite.Fleet}})
	c.is(err, "Get of an id that never was", sdk.ErrNotFound)
}

func getByID(c *check) {
	_, target := c.create(c.creation())
	byRef := c.get(c.kit.a, target)
	target.Ref = ""
	got, err := c.kit.b.Get(c.ctx, sdk.GetOptions{Target: target})
	c.failIf(err != nil, "without the ref: %v", err)
	c.failIf(got.Sandbox.Ref != byRef.Ref, "without the ref another one is found: %q, not %q", got.Sandbox.Ref, byRef.Ref)
}

func listRules() []Rule {
	complete := []sdk.Feature{sdk.FeatureListComplete}
	return []Rule{
		{ID: "list/complete", Title: "everything that was created is listed, once", Features: complete, try: listComplete},
		{ID: "list/agrees_with_get", Title: "List and Get say the same", try: listAgreesWithGet},
		{ID: "list/other_fleet", Title: "a listing holds nothing of another fleet", try: listOtherFleet},
		{ID: "list/second_instance", Title: "another instance sees the same", try: listSecondInstance},
	}
}

// createMany makes sandboxes, all at once.
func (c *check) createMany(n int) []sdk.CreateOptions {
	made, errs := make([]sdk.CreateOptions, n), make([]error, n)
	var creates sync.WaitGroup
	for i := range made {
		made[i] = c.creation()
		c.destroyLater(c.kit.a, made[i])
		creates.Go(func() { _, errs[i] = c.kit.a.Create(c.ctx, made[i]) })
	}
	creates.Wait()
	c.need(errors.Join(errs...), fmt.Sprintf("create %d at once", n))
	return made
}

func listComplete(c *check) {
	made := c.createMany(c.kit.suite.Many)
	for name, ext := range map[string]sdk.Extension{"the instance that made them": c.kit.a, "another one": c.kit.b} {
		list, err := ext.List(c.ctx, sdk.ListOptions{Fleet: c.kit.suite.Fleet})
		c.failIf(err != nil, "List: %v", err)
		c.failIf(list.Incomplete != "", "the listing of %s is incomplete: %s", name, list.Incomplete)
		seen := map[string]int{}
		for _, s := range list.Sandboxes {
			seen[s.ID]++
			c.failIf(seen[s.ID] > 1, "%s lists %s twice", name, s.ID)
		}
		for _, opts := range made {
			c.failIf(seen[opts.ID] == 0, "%s does not list %s", name, opts.ID)
		}
	}
	c.note("%d created and listed", len(made))
}

func listAgreesWithGet(c *check) {
	_, target := c.ready(c.creation())
	got := c.get(c.kit.a, target)
	for _, listed := range c.list(c.kit.a, target.Fleet) {
		if listed.ID == target.ID {
			c.failIf(shown(listed) != shown(got), "List says %s, Get says %s", shown(listed), shown(got))
			return
		}
	}
	c.fail("Get finds %s and List does not", target.ID)
}

func listOtherFleet(c *check) {
	ours, theirs := c.creation(), c.creationIn(c.kit.otherFleet())
	c.create(ours)
	c.createWith(c.kit.other, theirs)
	for _, look := range []struct {
		ext           sdk.Extension
		mine, foreign sdk.CreateOptions
	}{{c.kit.a, ours, theirs}, {c.kit.other, theirs, ours}} {
		all := c.list(look.ext, look.mine.Identity.Fleet)
		c.failIf(count(all, look.mine.ID) != 1, "fleet %s does not list its own sandbox once", look.mine.Identity.Fleet)
		c.failIf(count(all, look.foreign.ID) != 0, "fleet %s lists a sandbox of %s", look.mine.Identity.Fleet, look.foreign.Identity.Fleet)
		for _, s := range all {
			c.failIf(s.Identity.Fleet != look.mine.Identity.Fleet, "fleet %s lists %s of fleet %q", look.mine.Identity.Fleet, s.ID, s.Identity.Fleet)
		}
	}
}

func listSecondInstance(c *check) {
	_, target := c.ready(c.creation())
	one, two := c.get(c.kit.a, target), c.get(c.kit.b, target)
	c.failIf(shown(one) != shown(two), "one says %s, the other %s", shown(one), shown(two))
}

// foreignRules: what belongs to another fleet does not exist for this one.
func foreignRules() []Rule {
	rule := func(verb string, act func(c *check, target sdk.Target, lease sdk.Lease) error, features ...sdk.Feature) Rule {
		return Rule{
			ID: "foreign/" + verb, Title: verb + " never touches a sandbox of another fleet", Features: features,
			try: func(c *check) {
				s, theirs := c.createWith(c.kit.other, c.creationIn(c.kit.otherFleet()))
				c.awaitReady(c.kit.other, s, theirs)
				before := c.get(c.kit.other, theirs)
				for _, ref := range []string{theirs.Ref, ""} {
					err := act(c, sdk.Target{ID: theirs.ID, Ref: ref, Fleet: c.kit.suite.Fleet}, before.Lease)
					// Destroying what is not there succeeds.
					if verb != "destroy" || err != nil {
						c.is(err, verb+" of a sandbox of another fleet", sdk.ErrNotFound)
					}
				}
				after, err := c.kit.other.Get(c.ctx, sdk.GetOptions{Target: theirs})
				c.failIf(err != nil, "its own fleet no longer finds it: %v", err)
				c.failIf(shown(before) != shown(after.Sandbox), "it changed from %s to %s", shown(before), shown(after.Sandbox))
			},
		}
	}
	return []Rule{
		rule("get", func(c *check, target sdk.Target, _ sdk.Lease) error {
			_, err := c.kit.a.Get(c.ctx, sdk.GetOptions{Target: target})
			return err
		}),
		rule("extend", func(c *check, target sdk.Target, lease sdk.Lease) error {
			_, err := c.kit.a.Extend(c.ctx, c.extension(target, lease, lease.ExpiresAt.Add(time.Hour)))
			return err
		}),
		rule("expire", func(c *check, target sdk.Target, lease sdk.Lease) error {
			_, err := c.kit.a.Expire(c.ctx, sdk.ExpireOptions{Target: target, Generation: lease.Generation, Event: c.kit.event()})
			return err
		}),
		rule("claim", func(c *check, target sdk.Target, lease sdk.Lease) error {
			_, err := c.kit.a.Claim(c.ctx, sdk.ClaimOptions{Target: target, Generation: lease.Generation, Holder: "conformance", Event: c.kit.event()})
			return err
		}),
		rule("destroy", func(c *check, target sdk.Target, _ sdk.Lease) error {
			gone, err := c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
			c.failIf(gone.Existed || len(gone.Removed) > 0, "Destroy says that it removed %q", gone.Removed)
			return err
		}),
		rule("exec", func(c *check, target sdk.Target, _ sdk.Lease) error {
			_, err := ability[sdk.Execer](c, c.kit.a).Exec(c.ctx, sdk.ExecOptions{Target: target, Command: c.commands().Exit(0)})
			return err
		}, sdk.FeatureExec),
		rule("pause", func(c *check, target sdk.Target, _ sdk.Lease) error {
			_, err := ability[sdk.Pauser](c, c.kit.a).Pause(c.ctx, sdk.PauseOptions{Target: target})
			return err
		}, sdk.FeaturePause),
	}
}

// callRules are about calls as such.
func callRules() []Rule {
	return []Rule{
		{ID: "calls/cancelled", Title: "a call whose context has ended returns at once and does nothing new", try: callsCancelled},
		{ID: "calls/kinds", Title: "every verb on what is not there is not found", try: callsKinds},
	}
}

func callsCancelled(c *check) {
	s, target := c.ready(c.creation())
	opts := c.creation()
	c.destroyLater(c.kit.a, opts)
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	ext := c.kit.a
	for _, call := range []struct {
		name string
		make func() error
	}{
		{"Create", func() error { _, err := ext.Create(ended, opts); return err }},
		{"Get", func() error { _, err := ext.Get(ended, sdk.GetOptions{Target: target}); return err }},
		{"List", func() error { _, err := ext.List(ended, sdk.ListOptions{Fleet: target.Fleet}); return err }},
		{"Probe", func() error { _, err := ext.Probe(ended, sdk.ProbeOptions{}); return err }},
		{"Extend", func() error {
			_, err := ext.Extend(ended, c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(time.Hour)))
			return err
		}},
	} {
		done := make(chan error, 1)
		go func() { done <- call.make() }()
		select {
		case err := <-done:
			c.note("%s: %v", call.name, err)
		case <-time.After(c.kit.suite.Timing.Grace):
			c.fail("%s did not return within %s of its context's end", call.name, c.kit.suite.Timing.Grace)
		}
	}
	n := count(c.list(c.kit.b, opts.Identity.Fleet), opts.ID)
	c.failIf(n != 0, "a create whose context had ended made a sandbox")
	after := c.get(c.kit.a, target).Lease
	c.failIf(!after.ExpiresAt.Equal(s.Lease.ExpiresAt), "an extend whose context had ended moved the deadline to %s", after.ExpiresAt)
}

func callsKinds(c *check) {
	ext, target := c.kit.a, sdk.Target{ID: newID("sbx-"), Fleet: c.kit.suite.Fleet}
	_, err := ext.Extend(c.ctx, sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: c.now().Add(time.Hour), Event: c.kit.event()})
	c.is(err, "Extend", sdk.ErrNotFound)
	_, err = ext.Expire(c.ctx, sdk.ExpireOptions{Target: target, Generation: 1, Event: c.kit.event()})
	c.is(err, "Expire", sdk.ErrNotFound)
	_, err = ext.Claim(c.ctx, sdk.ClaimOptions{Target: target, Generation: 1, Holder: "conformance", Event: c.kit.event()})
	c.is(err, "Claim", sdk.ErrNotFound)
	if able, ok := sdk.As[sdk.Execer](ext); ok && c.claims(sdk.FeatureExec) {
		_, err = able.Exec(c.ctx, sdk.ExecOptions{Target: target, Command: c.commands().Exit(0)})
		c.is(err, "Exec", sdk.ErrNotFound)
	}
	if able, ok := sdk.As[sdk.Logger](ext); ok && c.claims(sdk.FeatureLogs) {
		_, err = able.Logs(c.ctx, sdk.LogsOptions{Target: target, Output: &limited{}})
		c.is(err, "Logs", sdk.ErrNotFound)
	}
	if able, ok := sdk.As[sdk.Pauser](ext); ok && c.claims(sdk.FeaturePause) {
		_, err = able.Pause(c.ctx, sdk.PauseOptions{Target: target})
		c.is(err, "Pause", sdk.ErrNotFound)
	}
	if able, ok := sdk.As[sdk.Copier](ext); ok && c.claims(sdk.FeatureFiles) {
		_, err = able.CopyOut(c.ctx, sdk.CopyOutOptions{Target: target, Path: "/", Archive: &limited{}})
		c.is(err, "CopyOut", sdk.ErrNotFound)
	}
}
