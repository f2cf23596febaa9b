// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Snapshots, and sandboxes made from them.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func snapshotRules() []Rule {
	filesystem := []sdk.Feature{sdk.FeatureFilesystemSnapshot}
	return []Rule{
		kindRule(sdk.SnapshotFilesystem, sdk.FeatureFilesystemSnapshot),
		kindRule(sdk.SnapshotMemory, sdk.FeatureMemorySnapshot),
		{ID: "snapshot/identity", Title: "a snapshot keeps its id, identity, source and retention", Features: filesystem, try: snapshotIdentity},
		{ID: "snapshot/leaves_running", Title: "the source goes on", Features: []sdk.Feature{sdk.FeatureFilesystemSnapshot, sdk.FeatureSnapshotLeavesRunning}, try: snapshotLeavesRunning},
		{ID: "snapshot/retention", Title: "the retention is moved later, and never earlier", Features: filesystem, try: snapshotRetention},
		{ID: "snapshot/delete", Title: "a snapshot can be deleted, twice, and is then gone", Features: filesystem, try: snapshotDelete},
		{ID: "snapshot/outlives_source", Title: "destroying the source leaves the snapshot", Features: filesystem, try: snapshotOutlivesSource},
		{ID: "snapshot/unknown", Title: "what is not there is not found", Features: filesystem, try: snapshotUnknown},
		{ID: "snapshot/other_fleet", Title: "a snapshot of another fleet is neither listed, nor restored, nor deleted", Features: filesystem, try: snapshotOtherFleet},
	}
}

// kindRule: a kind of snapshot is made where it is claimed, and refused where
// it is not.
func kindRule(kind sdk.SnapshotKind, feature sdk.Feature) Rule {
	return Rule{
		ID: "snapshot/" + string(kind), Title: "a " + string(kind) + " snapshot is made where that is claimed, and refused where not", about: []sdk.Feature{feature},
		try: func(c *check) {
			snapshots, able := sdk.As[sdk.Snapshotter](c.kit.a)
			if !able && !c.claims(feature) {
				c.note("snapshots are not implemented")
				return
			}
			_, target := c.ready(c.creation())
			if c.claims(feature) {
				s := c.snapshot(target, kind)
				c.failIf(s.Kind != kind, "the snapshot is of kind %q", s.Kind)
				return
			}
			opts := c.snapshotOptions(target, kind)
			_, err := snapshots.Snapshot(c.ctx, opts)
			c.deleteLater(opts.SnapshotID, target.Fleet)
			c.is(err, "a "+string(kind)+" snapshot", sdk.ErrUnsupported)
		},
	}
}

func (c *check) snapshotOptions(target sdk.Target, kind sdk.SnapshotKind) sdk.SnapshotOptions {
	id, now := newID("snp-"), c.now().UTC().Truncate(time.Second)
	return sdk.SnapshotOptions{
		Target: target, SnapshotID: id, Kind: kind, ExpiresAt: now.Add(time.Hour), Event: c.kit.event(),
		Identity: sdk.Identity{ID: id, Fleet: target.Fleet, Incarnation: 1, Owner: "conformance", Task: c.rule.ID, CreatedAt: now, Labels: map[string]string{"of": "a snapshot"}},
	}
}

// snapshot makes a snapshot that is deleted with the try.
func (c *check) snapshot(target sdk.Target, kind sdk.SnapshotKind) sdk.Snapshot {
	opts := c.snapshotOptions(target, kind)
	snapshots := ability[sdk.Snapshotter](c, c.kit.a)
	c.deleteLater(opts.SnapshotID, target.Fleet)
	made, err := snapshots.Snapshot(c.ctx, opts)
	if c.rule.ID == "snapshot/"+string(kind) {
		c.failIf(err != nil, "snapshot: %v", err)
	}
	c.need(err, string(kind)+" snapshot")
	return made.Snapshot
}

func (c *check) deleteLater(id, fleet string) {
	snapshots := ability[sdk.Snapshotter](c, c.kit.a)
	c.later(func(ctx context.Context) {
		if _, err := snapshots.DeleteSnapshot(ctx, sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: fleet}); err != nil && !errors.Is(err, sdk.ErrUnsupported) {
			c.kit.left("snapshot %s, made by %s: %s", id, c.rule.ID, err)
		}
	})
}

// deleteSnapshotsOf removes what a sandbox became at its deadline, or when it
// was destroyed after that.
func (c *check) deleteSnapshotsOf(ctx context.Context, snapshots sdk.Snapshotter, opts sdk.CreateOptions) {
	fleet := opts.Identity.Fleet
	list, err := snapshots.ListSnapshots(ctx, sdk.ListSnapshotsOptions{Fleet: fleet})
	for _, s := range list.Snapshots {
		if s.SandboxID == opts.ID {
			_, deleteErr := snapshots.DeleteSnapshot(ctx, sdk.DeleteSnapshotOptions{SnapshotID: s.ID, Fleet: fleet})
			err = errors.Join(err, deleteErr)
		}
	}
	if err != nil && !errors.Is(err, sdk.ErrUnsupported) {
		c.kit.left("snapshots of sandbox %s, made by %s: %s", opts.ID, c.rule.ID, err)
	}
}

func (c *check) getSnapshot(id string) sdk.Snapshot {
	got, err := ability[sdk.Snapshotter](c, c.kit.b).GetSnapshot(c.ctx, sdk.GetSnapshotOptions{SnapshotID: id, Fleet: c.kit.suite.Fleet})
	c.need(err, "get snapshot "+id)
	return got.Snapshot
}

func (c *check) listSnapshots(ext sdk.Extension, fleet, id string) (n int) {
	list, err := ability[sdk.Snapshotter](c, ext).ListSnapshots(c.ctx, sdk.ListSnapshotsOptions{Fleet: fleet})
	c.need(err, "list snapshots")
	if list.Incomplete != "" {
		c.cannot("the listing of snapshots is incomplete: %s", list.Incomplete)
	}
	for _, s := range list.Snapshots {
		if s.ID == id {
			n++
		}
	}
	return n
}

func snapshotIdentity(c *check) {
	_, target := c.ready(c.creation())
	opts := c.snapshotOptions(target, sdk.SnapshotFilesystem)
	c.deleteLater(opts.SnapshotID, target.Fleet)
	made, err := ability[sdk.Snapshotter](c, c.kit.a).Snapshot(c.ctx, opts)
	c.need(err, "snapshot")
	for by, s := range map[string]sdk.Snapshot{"Snapshot": made.Snapshot, "GetSnapshot": c.getSnapshot(opts.SnapshotID)} {
		c.failIf(s.ID != opts.SnapshotID || s.Ref == "", "%s says id %q and ref %q", by, s.ID, s.Ref)
		c.failIf(s.SandboxID != target.ID, "%s says that it was made from %q", by, s.SandboxID)
		c.failIf(!near(s.ExpiresAt, opts.ExpiresAt), "%s says a retention until %s, not %s", by, s.ExpiresAt, opts.ExpiresAt)
		c.failIf(s.ContainsSecrets, "%s says that it contains secrets, and there are none", by)
		c.sameIdentity(by, s.Identity, opts.Identity)
	}
	n := c.listSnapshots(c.kit.b, target.Fleet, opts.SnapshotID)
	c.failIf(n != 1, "it is listed %d times", n)
}

func snapshotLeavesRunning(c *check) {
	_, target := c.ready(c.creation())
	before := c.get(c.kit.a, target)
	for _, kind := range []struct {
		kind    sdk.SnapshotKind
		feature sdk.Feature
	}{{sdk.SnapshotFilesystem, sdk.FeatureFilesystemSnapshot}, {sdk.SnapshotMemory, sdk.FeatureMemorySnapshot}} {
		if !c.claims(kind.feature) {
			continue
		}
		c.snapshot(target, kind.kind)
		after := c.get(c.kit.b, target)
		c.failIf(shown(before) != shown(after), "after a %s snapshot the source changed from %s to %s", kind.kind, shown(before), shown(after))
		if c.claims(sdk.FeatureExec) {
			got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Exit(0)})
			c.failIf(err != nil || got.ExitCode != 0, "after a %s snapshot the source runs no command: %s, %v", kind.kind, got, err)
		}
	}
}

func snapshotRetention(c *check) {
	_, target := c.ready(c.creation())
	s := c.snapshot(target, sdk.SnapshotFilesystem)
	for _, step := range []struct{ ask, want time.Time }{
		{s.ExpiresAt.Add(time.Hour), s.ExpiresAt.Add(time.Hour)},
		{s.ExpiresAt.Add(-time.Minute), s.ExpiresAt.Add(time.Hour)},
	} {
		answer, err := ability[sdk.Snapshotter](c, c.kit.a).ExtendSnapshot(c.ctx, sdk.ExtendSnapshotOptions{SnapshotID: s.ID, Fleet: target.Fleet, ExpiresAt: step.ask})
		seen := c.getSnapshot(s.ID)
		c.failIf(!near(seen.ExpiresAt, step.want), "asked for %s the retention is %s, not %s (%v)", step.ask, seen.ExpiresAt, step.want, err)
		c.failIf(err == nil && !answer.Snapshot.ExpiresAt.Equal(seen.ExpiresAt), "the answer says %s, and %s is seen", answer.Snapshot.ExpiresAt, seen.ExpiresAt)
	}
}

func snapshotDelete(c *check) {
	_, target := c.ready(c.creation())
	s := c.snapshot(target, sdk.SnapshotFilesystem)
	opts := sdk.DeleteSnapshotOptions{SnapshotID: s.ID, Fleet: target.Fleet}
	gone, err := ability[sdk.Snapshotter](c, c.kit.a).DeleteSnapshot(c.ctx, opts)
	c.failIf(err != nil || !gone.Existed, "%+v, %v", gone, err)
	_, err = ability[sdk.Snapshotter](c, c.kit.b).GetSnapshot(c.ctx, sdk.GetSnapshotOptions{SnapshotID: s.ID, Fleet: target.Fleet})
	c.is(err, "GetSnapshot after a delete", sdk.ErrNotFound)
	c.failIf(c.listSnapshots(c.kit.b, target.Fleet, s.ID) != 0, "it is said to be gone, and is listed")
	again, err := ability[sdk.Snapshotter](c, c.kit.b).DeleteSnapshot(c.ctx, opts)
	c.failIf(err != nil || again.Existed, "the second time: %+v, %v", again, err)
}

func snapshotOutlivesSource(c *check) {
	_, target := c.ready(c.creation())
	s := c.snapshot(target, sdk.SnapshotFilesystem)
	_, err := c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
	c.need(err, "destroy")
	c.failIf(c.listSnapshots(c.kit.b, target.Fleet, s.ID) != 1, "the snapshot went with its source")
	if c.claims(sdk.FeatureRestore) {
		c.restore(s)
	}
}

func snapshotUnknown(c *check) {
	snapshots, id, fleet := ability[sdk.Snapshotter](c, c.kit.a), newID("snp-"), c.kit.suite.Fleet
	_, err := snapshots.GetSnapshot(c.ctx, sdk.GetSnapshotOptions{SnapshotID: id, Fleet: fleet})
	c.is(err, "GetSnapshot", sdk.ErrNotFound)
	_, err = snapshots.ExtendSnapshot(c.ctx, sdk.ExtendSnapshotOptions{SnapshotID: id, Fleet: fleet, ExpiresAt: c.now().Add(time.Hour)})
	c.is(err, "ExtendSnapshot", sdk.ErrNotFound)
	gone, err := snapshots.DeleteSnapshot(c.ctx, sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: fleet})
	c.failIf(err != nil || gone.Existed, "DeleteSnapshot: %+v, %v", gone, err)
	_, err = snapshots.Snapshot(c.ctx, c.snapshotOptions(sdk.Target{ID: newID("sbx-"), Fleet: fleet}, sdk.SnapshotFilesystem))
	c.is(err, "Snapshot of an unknown sandbox", sdk.ErrNotFound)
	if c.claims(sdk.FeatureRestore) {
		_, err = snapshots.Restore(c.ctx, sdk.RestoreOptions{SnapshotID: id, Create: c.creation()})
		c.is(err, "Restore", sdk.ErrNotFound)
	}
}

func snapshotOtherFleet(c *check) {
	_, target := c.ready(c.creation())
	s := c.snapshot(target, sdk.SnapshotFilesystem)
	snapshots, fleet := ability[sdk.Snapshotter](c, c.kit.other), c.kit.otherFleet()
	c.failIf(c.listSnapshots(c.kit.other, fleet, s.ID) != 0, "another fleet lists it")
	_, err := snapshots.GetSnapshot(c.ctx, sdk.GetSnapshotOptions{SnapshotID: s.ID, Fleet: fleet})
	c.is(err, "GetSnapshot by another fleet", sdk.ErrNotFound)
	gone, err := snapshots.DeleteSnapshot(c.ctx, sdk.DeleteSnapshotOptions{SnapshotID: s.ID, Fleet: fleet})
	c.failIf(gone.Existed, "DeleteSnapshot by another fleet says that it was there")
	if err != nil {
		c.is(err, "DeleteSnapshot by another fleet", sdk.ErrNotFound)
	}
	if c.claims(sdk.FeatureRestore) {
		opts := c.creationIn(fleet)
		c.destroyLater(c.kit.other, opts)
		_, err = snapshots.Restore(c.ctx, sdk.RestoreOptions{SnapshotID: s.ID, Create: opts})
		c.is(err, "Restore by another fleet", sdk.ErrNotFound)
	}
	c.failIf(c.listSnapshots(c.kit.a, target.Fleet, s.ID) != 1, "it is gone")
}

func restoreRules() []Rule {
	restore := []sdk.Feature{sdk.FeatureFilesystemSnapshot, sdk.FeatureRestore}
	content := []Command{CommandRead, CommandWrite}
	return []Rule{
		{ID: "restore/content", Title: "a restored sandbox has the snapshot's files, and an identity and lease of its own", Features: append(restore, sdk.FeatureExec), commands: content, try: restoreContent},
		{ID: "restore/conflict", Title: "restoring to an id that exists is a conflict", Features: append(restore, sdk.FeatureIdempotentCreate), try: restoreConflict},
		{ID: "restore/fork", Title: "what is restored twice is two sandboxes", Features: append(restore, sdk.FeatureFork, sdk.FeatureExec), commands: content, try: restoreFork},
		{ID: "restore/memory", Title: "the processes of a memory snapshot go on, each fork for itself", Features: []sdk.Feature{sdk.FeatureMemorySnapshot, sdk.FeatureRestore, sdk.FeatureExec}, commands: []Command{CommandCounter, CommandRead}, try: restoreMemory},
	}
}

// restore makes a sandbox from a snapshot and waits until it is ready.
func (c *check) restore(s sdk.Snapshot, changes ...func(opts *sdk.CreateOptions)) sdk.Target {
	opts := c.creation()
	opts.Profile = s.Profile
	for _, change := range changes {
		change(&opts)
	}
	c.destroyLater(c.kit.a, opts)
	made, err := ability[sdk.Snapshotter](c, c.kit.a).Restore(c.ctx, sdk.RestoreOptions{SnapshotID: s.ID, Create: opts})
	c.failIf(err != nil, "restore: %v", err)
	target := targetOf(made.Sandbox, opts)
	got := c.awaitReady(c.kit.b, made.Sandbox, target)
	c.failIf(got.ID != opts.ID, "the restored sandbox has id %q, not %q", got.ID, opts.ID)
	c.sameIdentity("the restored sandbox", got.Identity, opts.Identity)
	c.failIf(!near(got.Lease.ExpiresAt, opts.ExpiresAt) || got.Lease.Claimed, "the restored sandbox has the lease %+v", got.Lease)
	return target
}

const contentFile = "/tmp/conformance-content"

func restoreContent(c *check) {
	_, source := c.ready(c.creation())
	c.exec(source, c.commands().Write(contentFile, "before"))
	s := c.snapshot(source, sdk.SnapshotFilesystem)
	if c.claims(sdk.FeatureSnapshotLeavesRunning) {
		c.exec(source, c.commands().Write(contentFile, "after"))
	}
	fork := c.restore(s, func(opts *sdk.CreateOptions) {
		opts.Identity.Owner, opts.Env = "another", map[string]string{"FORK": "yes"}
	})
	got := c.exec(fork, c.commands().Read(contentFile))
	c.failIf(got != "before", "the file that held %q at the snapshot holds %q", "before", got)
	if _, lacks := c.commands().Lacks[CommandEnv]; !lacks {
		got = c.exec(fork, c.commands().Env("FORK"))
		c.failIf(got != "yes\n", "the variable that the restore sets is %q", got)
	}
}

func restoreConflict(c *check) {
	opts := c.creation()
	_, source := c.ready(opts)
	s := c.snapshot(source, sdk.SnapshotFilesystem)
	before := c.get(c.kit.a, source)
	again := c.creation()
	again.ID, again.Identity.ID, again.Profile = opts.ID, opts.ID, s.Profile
	_, err := ability[sdk.Snapshotter](c, c.kit.a).Restore(c.ctx, sdk.RestoreOptions{SnapshotID: s.ID, Create: again})
	c.is(err, "a restore to an id that exists", sdk.ErrConflict)
	after := c.get(c.kit.b, source)
	c.failIf(shown(before) != shown(after), "it changed the sandbox from %s to %s", shown(before), shown(after))
}

func restoreFork(c *check) {
	_, source := c.ready(c.creation())
	c.exec(source, c.commands().Write(contentFile, "common"))
	s := c.snapshot(source, sdk.SnapshotFilesystem)
	one, two := c.restore(s), c.restore(s)
	c.exec(one, c.commands().Write(contentFile, "one"))
	for target, want := range map[sdk.Target]string{one: "one", two: "common"} {
		got := c.exec(target, c.commands().Read(contentFile))
		c.failIf(got != want, "after a change in the first fork %s reads %q, not %q", target.ID, got, want)
	}
	if c.claims(sdk.FeatureSnapshotLeavesRunning) {
		got := c.exec(source, c.commands().Read(contentFile))
		c.failIf(got != "common", "after a change in a fork the source reads %q", got)
	}
	_, err := c.kit.a.Destroy(c.ctx, sdk.DestroyOptions{Target: one})
	c.need(err, "destroy")
	c.exec(two, c.commands().Read(contentFile))
}

const counterFile = "/tmp/conformance-counter"

// counter reads what a counting process last wrote.
func (c *check) counter(target sdk.Target) (token string, n int) {
	if !c.soon(func() bool {
		got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Read(counterFile)})
		c.need(err, "read the counter")
		_, err = fmt.Sscan(got.stdout, &token, &n)
		return err == nil
	}) {
		c.cannot("the main process does not count in %s", counterFile)
	}
	return token, n
}

func restoreMemory(c *check) {
	_, source := c.ready(c.creation(func(p *sdk.Profile) { p.Command = c.commands().Counter(counterFile) }))
	token, before := c.counter(source)
	s := c.snapshot(source, sdk.SnapshotMemory)
	for range 2 {
		fork := c.restore(s)
		got, at := c.counter(fork)
		c.failIf(got != token, "the process's own token is %q and was %q: it was started anew", got, token)
		c.failIf(at < before, "the process counts %d, and had counted %d before the snapshot", at, before)
		later := at
		c.failIf(!c.soon(func() bool { _, later = c.counter(fork); return later > at }), "the process stands still at %d", at)
	}
}
