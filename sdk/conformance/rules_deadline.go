// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// What happens at the deadline, and destroying.

import (
	"errors"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func deadlineRules() []Rule {
	deadline := []sdk.Feature{sdk.FeatureDeadline}
	return []Rule{
		{ID: "deadline/ends", Title: "a sandbox is over after its deadline, and not before", Features: deadline, try: deadlineEnds},
		{ID: "deadline/no_use", Title: "nothing runs after the deadline", Features: []sdk.Feature{sdk.FeatureDeadline, sdk.FeatureExec}, try: deadlineNoUse},
		{ID: "deadline/ends_commands", Title: "a command does not outlive its sandbox", Features: []sdk.Feature{sdk.FeatureDeadline, sdk.FeatureExec}, commands: []Command{CommandSleep}, try: deadlineEndsCommands},
		{ID: "deadline/extended", Title: "an extend carries a sandbox across its old deadline", Features: []sdk.Feature{sdk.FeatureDeadline, sdk.FeatureExtend}, try: deadlineExtended},
		{ID: "deadline/snapshot", Title: "a snapshot is made at the deadline where that is claimed, and refused where not", about: []sdk.Feature{sdk.FeatureExpirySnapshot}, try: deadlineSnapshot},
		{ID: "idle/ends", Title: "an idle sandbox ends before its deadline where that is claimed, looked at or not, and is refused where not", about: []sdk.Feature{sdk.FeatureIdleTimeout}, try: idleEnds},
		{ID: "idle/exec", Title: "a command keeps an idle sandbox where that is claimed, and moves no deadline", Features: []sdk.Feature{sdk.FeatureIdleTimeout, sdk.FeatureIdleExec, sdk.FeatureExec}, commands: []Command{CommandSleep}, try: idleExec},
		{ID: "deadline/pause", Title: "a sandbox is paused at the deadline where that is claimed, and refused where not", about: []sdk.Feature{sdk.FeatureExpiryPause}, try: deadlinePause},
	}
}

// over reports whether a sandbox has ended: its absence, or a status that is
// one.
func (c *check) over(target sdk.Target) bool {
	got, err := c.kit.b.Get(c.ctx, sdk.GetOptions{Target: target})
	if errors.Is(err, sdk.ErrNotFound) {
		return true
	}
	c.need(err, "get "+target.ID)
	switch got.Sandbox.Status {
	case sdk.StatusExpired, sdk.StatusDestroying, sdk.StatusDestroyed:
		return true
	}
	return false
}

func deadlineEnds(c *check) {
	s, target := c.shortLived(c.standard)
	for {
		before := c.over(target)
		now := c.now()
		// An answer that came before the deadline was about a time before it.
		c.failIf(before && now.Before(s.Lease.ExpiresAt.Add(-time.Second)), "it was over at %s, and its deadline is %s", now, s.Lease.ExpiresAt)
		if now.After(s.Lease.ExpiresAt) {
			break
		}
		c.sleep(c.kit.suite.Timing.Poll)
	}
	c.failIf(!c.soon(func() bool { return c.over(target) }), "%s after its deadline it is %s", c.kit.suite.Timing.Grace, c.statusOf(c.kit.b, target))
	c.note("over %s after its deadline", c.now().Sub(s.Lease.ExpiresAt).Round(10*time.Millisecond))
}

func deadlineNoUse(c *check) {
	s, target := c.shortLived(c.standard)
	c.waitFor(s.Lease.ExpiresAt)
	var err error
	c.failIf(!c.soon(func() bool {
		_, err = ability[sdk.Execer](c, c.kit.a).Exec(c.ctx, sdk.ExecOptions{Target: target, Command: c.commands().Exit(0)})
		return err != nil
	}), "a command still runs %s after the deadline", c.kit.suite.Timing.Grace)
	c.is(err, "a command after the deadline", sdk.ErrExpired, sdk.ErrNotFound)
}

func deadlineEndsCommands(c *check) {
	s, target := c.shortLived(c.standard)
	done := make(chan error, 1)
	execer := ability[sdk.Execer](c, c.kit.a)
	go func() {
		_, err := execer.Exec(c.ctx, sdk.ExecOptions{Target: target, Command: c.commands().Sleep(10 * c.kit.suite.Timing.Grace)})
		done <- err
	}()
	c.waitFor(s.Lease.ExpiresAt)
	select {
	case err := <-done:
		c.note("the command ended %s after the deadline: %v", c.now().Sub(s.Lease.ExpiresAt).Round(10*time.Millisecond), err)
	case <-time.After(c.kit.suite.Timing.Grace):
		c.fail("the command still runs %s after the deadline", c.kit.suite.Timing.Grace)
	}
}

func deadlineExtended(c *check) {
	s, target := c.shortLived(c.standard, func(s sdk.Sandbox, target sdk.Target) error {
		_, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(10*time.Minute)))
		return err
	})
	old := s.Lease.ExpiresAt
	c.waitFor(old.Add(time.Second))
	s = c.get(c.kit.b, target)
	c.failIf(s.Status != sdk.StatusReady && s.Status != sdk.StatusCreating, "a second after the old deadline it is %s: %s", s.Status, s.Reason)
	if c.claims(sdk.FeatureExec) {
		c.awaitReady(c.kit.a, s, target)
		c.exec(target, c.commands().Exit(0))
	}
}

// refused fails unless a create is refused as unsupported, on its attribute,
// and made nothing.
func (c *check) refused(opts sdk.CreateOptions, feature sdk.Feature, path string) {
	c.destroyLater(c.kit.a, opts)
	_, err := c.kit.a.Create(c.ctx, opts)
	c.failIf(err == nil, "%s is unsupported, and a create that asks for it succeeded", feature)
	c.is(err, "a create that asks for "+string(feature), sdk.ErrUnsupported)
	c.atPath(err, path)
	c.failIf(count(c.list(c.kit.b, opts.Identity.Fleet), opts.ID) != 0, "it was refused and is listed")
}

func deadlineSnapshot(c *check) {
	creation := func() sdk.CreateOptions {
		opts := c.creation()
		opts.OnExpiry = sdk.OnExpirySnapshot
		opts.Profile.OnExpiry = opts.OnExpiry
		return opts
	}
	if !c.claims(sdk.FeatureExpirySnapshot) {
		c.refused(creation(), sdk.FeatureExpirySnapshot, "on_expiry")
		return
	}
	var s sdk.Sandbox
	var target sdk.Target
	for life := c.kit.suite.Timing.Short; s.ExpirySnapshotID == ""; life *= 3 {
		s, target = c.living(life, creation)
		c.failIf(s.OnExpiry != sdk.OnExpirySnapshot, "the sandbox says %q", s.OnExpiry)
		c.waitFor(s.Lease.ExpiresAt)
		c.failIf(!c.soon(func() bool {
			s = c.get(c.kit.b, target)
			return s.ExpirySnapshotID != "" || s.ExpirySnapshotError != ""
		}), "%s after its deadline it names no snapshot, and no reason for that; it is %s", c.kit.suite.Timing.Grace, s.Status)
		// One that says why there is none may have had too little time.
		c.failIf(s.ExpirySnapshotID == "" && life > 8*c.kit.suite.Timing.Short, "its snapshot could not be made: %s", s.ExpirySnapshotError)
	}
	snapshots := ability[sdk.Snapshotter](c, c.kit.b)
	c.deleteLater(s.ExpirySnapshotID, target.Fleet)
	got, err := snapshots.GetSnapshot(c.ctx, sdk.GetSnapshotOptions{SnapshotID: s.ExpirySnapshotID, Fleet: target.Fleet})
	c.failIf(err != nil, "the snapshot that it names: %v", err)
	c.failIf(got.Snapshot.SandboxID != target.ID, "the snapshot is of %q", got.Snapshot.SandboxID)
	c.failIf(s.ExpirySnapshotID != sdk.ExpirySnapshotID(target.ID), "its id is %q, and should follow from the sandbox's", s.ExpirySnapshotID)
	c.failIf(got.Snapshot.CreatedAt.After(s.Lease.ExpiresAt.Add(time.Second)), "it was made at %s, after the deadline %s", got.Snapshot.CreatedAt, s.Lease.ExpiresAt)
}

func deadlinePause(c *check) {
	creation := func() sdk.CreateOptions {
		opts := c.creation()
		opts.OnExpiry = sdk.OnExpiryPause
		opts.Profile.OnExpiry = opts.OnExpiry
		return opts
	}
	if !c.claims(sdk.FeatureExpiryPause) {
		c.refused(creation(), sdk.FeatureExpiryPause, "on_expiry")
		return
	}
	s, target := c.shortLived(creation)
	c.failIf(s.OnExpiry != sdk.OnExpiryPause, "the sandbox says %q", s.OnExpiry)
	c.waitFor(s.Lease.ExpiresAt)
	c.failIf(!c.soon(func() bool {
		s = c.get(c.kit.b, target)
		return s.Status == sdk.StatusPaused || s.Status == sdk.StatusExpired
	}), "%s after its deadline it is %s", c.kit.suite.Timing.Grace, s.Status)
	c.failIf(s.Status != sdk.StatusPaused, "it was to be paused, and is %s: %s", s.Status, s.Reason)
	c.failIf(s.Lease.Expired(c.now()) || s.Lease.ExpiresAt.After(s.Lease.MaxExpiresAt), "paused, its own deadline is %s, of at most %s", s.Lease.ExpiresAt, s.Lease.MaxExpiresAt)
}

func destroyRules() []Rule {
	from := func(status string, reach func(c *check) sdk.Target, features ...sdk.Feature) Rule {
		return Rule{
			ID: "destroy/" + status, Title: "a sandbox that is " + status + " can be destroyed, twice, and is then gone", Features: features,
			try: func(c *check) { c.destroyed(reach(c)) },
		}
	}
	return []Rule{
		from("ready", func(c *check) sdk.Target { _, target := c.ready(c.creation()); return target }),
		from("creating", func(c *check) sdk.Target { _, target := c.create(c.creation()); return target }),
		from("paused", func(c *check) sdk.Target {
			_, target := c.ready(c.creation())
			_, err := ability[sdk.Pauser](c, c.kit.a).Pause(c.ctx, sdk.PauseOptions{Target: target})
			c.need(err, "pause")
			return target
		}, sdk.FeaturePause),
		from("claimed", func(c *check) sdk.Target {
			s, target := c.ready(c.creation())
			c.claim(target, s.Lease)
			return target
		}, sdk.FeatureClaim),
		from("expired", func(c *check) sdk.Target {
			s, target := c.shortLived(c.standard)
			c.waitFor(s.Lease.ExpiresAt)
			return target
		}, sdk.FeatureDeadline),
		{ID: "destroy/by_id", Title: "a sandbox is destroyed by its label, without the ref", try: func(c *check) {
			_, target := c.ready(c.creation())
			target.Ref = ""
			c.destroyed(target)
		}},
		{ID: "destroy/unknown", Title: "destroying what never was succeeds and removes nothing", try: func(c *check) {
			gone, err := c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: sdk.Target{ID: newID("sbx-"), Fleet: c.kit.suite.Fleet}})
			c.failIf(err != nil, "Destroy: %v", err)
			c.failIf(gone.Existed || len(gone.Removed) > 0 || len(gone.Leftovers) > 0, "the answer is %+v", gone)
		}},
		{ID: "destroy/only_one", Title: "destroying one sandbox leaves the others", try: func(c *check) {
			_, one := c.ready(c.creation())
			_, two := c.ready(c.creation())
			before := c.get(c.kit.a, two)
			_, err := c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: one})
			c.need(err, "destroy")
			after, err := c.kit.b.Get(c.ctx, sdk.GetOptions{Target: two})
			c.failIf(err != nil || shown(before) != shown(after.Sandbox), "the other one changed from %s to %s (%v)", shown(before), shown(after.Sandbox), err)
		}},
	}
}

// destroyed destroys, and looks whether nothing is there any more.
func (c *check) destroyed(target sdk.Target) {
	gone, err := c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
	c.failIf(err != nil, "Destroy: %v (left: %q)", err, gone.Leftovers)
	c.failIf(len(gone.Leftovers) > 0, "Destroy succeeded and left %q", gone.Leftovers)
	c.note("removed %q", gone.Removed)
	for _, look := range []sdk.Target{target, {ID: target.ID, Fleet: target.Fleet}} {
		got, err := c.kit.b.Get(c.ctx, sdk.GetOptions{Target: look})
		c.failIf(err == nil, "it is said to be gone, and Get finds it %s", got.Sandbox.Status)
		c.is(err, "Get after a destroy", sdk.ErrNotFound)
	}
	c.failIf(count(c.list(c.kit.b, target.Fleet), target.ID) != 0, "it is said to be gone, and is listed")
	again, err := c.kit.b.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
	c.failIf(err != nil, "the second Destroy: %v", err)
	c.failIf(again.Existed, "the second Destroy says that something was there")
}

// idleCreation is a create with an idle timeout far before its deadline.
func (c *check) idleCreation() sdk.CreateOptions {
	opts := c.creation()
	opts.IdleTimeout = c.kit.suite.Timing.Short
	return opts
}

func idleEnds(c *check) {
	if !c.claims(sdk.FeatureIdleTimeout) {
		c.refused(c.idleCreation(), sdk.FeatureIdleTimeout, "idle_timeout")
		return
	}
	s, target := c.create(c.idleCreation())
	c.failIf(s.IdleTimeout != c.kit.suite.Timing.Short, "the sandbox says that its idle timeout is %s", s.IdleTimeout)
	// Each look is none, or it would never end.
	c.failIf(!c.soon(func() bool {
		c.list(c.kit.b, target.Fleet)
		got, err := c.kit.b.Get(c.ctx, sdk.GetOptions{Target: target})
		if errors.Is(err, sdk.ErrNotFound) {
			return true
		}
		c.need(err, "get "+target.ID)
		s = got.Sandbox
		c.failIf(s.IdleExpiresAt.After(s.Lease.ExpiresAt), "it is to be idle until %s, after its deadline %s", s.IdleExpiresAt, s.Lease.ExpiresAt)
		return s.Status == sdk.StatusExpired
	}), "%s after it was last used it is %s", c.kit.suite.Timing.Grace, s.Status)
	if s.Status == sdk.StatusExpired {
		c.failIf(s.EndReason != sdk.EndIdle, "the reason of its end is %q", s.EndReason)
	}
}

func idleExec(c *check) {
	var target sdk.Target
	var deadline time.Time
	first := 3 * c.kit.suite.Timing.Short
	for idle := first; ; idle *= 5 {
		opts := c.creation()
		opts.IdleTimeout = idle
		made, at := c.create(opts)
		target, deadline = at, made.Lease.ExpiresAt
		begun := c.now()
		c.soon(func() bool { return c.get(c.kit.a, target).Status != sdk.StatusCreating })
		got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Sleep(idle + idle/2)})
		if err != nil && idle == first && c.now().Sub(begun) < idle {
			continue // on a busy machine its clock ended before the command came to it
		}
		c.need(err, "run a command that lasts longer than idle_timeout")
		c.failIf(got.ExitCode != 0, "a command that lasts longer than idle_timeout: %s", got)
		break
	}
	s := c.get(c.kit.b, target)
	c.failIf(s.Status != sdk.StatusReady, "used all the time, it is %s: %s", s.Status, s.Reason)
	c.failIf(!s.Lease.ExpiresAt.Equal(deadline), "its use moved the deadline from %s to %s", deadline, s.Lease.ExpiresAt)
}
