// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Snapshots that go to other backends, and come from them.

import (
	"bytes"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func portableRules() []Rule {
	features := []sdk.Feature{sdk.FeaturePortableSnapshot, sdk.FeatureFilesystemSnapshot}
	return []Rule{
		{ID: "portable/round_trip", Title: "what is exported and imported is the same snapshot, with a report of what it lost", Features: append(features, sdk.FeatureRestore, sdk.FeatureFiles), try: portableRoundTrip},
		{ID: "portable/damaged", Title: "an archive that is cut off or changed is refused, and leaves nothing", Features: features, try: portableDamaged},
		{ID: "portable/secrets", Title: "no secret and no variable of the create is in an archive", Features: append(features, sdk.FeatureSecretFiles), try: portableSecrets},
		{ID: "portable/unknown", Title: "what is not there, or is of another fleet, is not exported", Features: features, try: portableUnknown},
	}
}

// portableCreation is a sandbox whose snapshot can be carried: one that is
// made from an image.
func (c *check) portableCreation() sdk.CreateOptions {
	return c.creation(func(p *sdk.Profile) {
		switch {
		case p.Image != "" || p.Template != "":
		case c.kit.suite.ImageFile == "":
			c.leaveOut("the suite names no image")
		default:
			p.Image, p.Command = c.kit.suite.ImageFile, nil
		}
	})
}

func (c *check) exported(s sdk.Snapshot) ([]byte, sdk.ExportSnapshotResult) {
	var archive limited
	result, err := ability[sdk.PortableSnapshotter](c, c.kit.b).ExportSnapshot(c.ctx, sdk.ExportSnapshotOptions{SnapshotID: s.ID, Fleet: c.kit.suite.Fleet, Archive: &archive})
	c.failIf(err != nil, "export: %v", err)
	content := []byte(archive.String())
	c.failIf(result.Bytes != int64(len(content)), "the archive has %d bytes, and the answer says %d", len(content), result.Bytes)
	return content, result
}

// take imports an archive into a snapshot that goes with the try.
func (c *check) take(archive []byte) (string, sdk.ImportSnapshotResult, error) {
	id, now := newID("snp-"), c.now().UTC().Truncate(time.Second)
	c.deleteLater(id, c.kit.suite.Fleet)
	result, err := ability[sdk.PortableSnapshotter](c, c.kit.a).ImportSnapshot(c.ctx, sdk.ImportSnapshotOptions{
		SnapshotID: id, ExpiresAt: now.Add(time.Hour), Archive: bytes.NewReader(archive), Event: c.kit.event(),
		Identity: sdk.Identity{ID: id, Fleet: c.kit.suite.Fleet, Incarnation: 1, Owner: "importer", CreatedAt: now},
	})
	return id, result, err
}

func portableRoundTrip(c *check) {
	_, source := c.ready(c.portableCreation())
	content := "travelled " + newID("snp-")
	err := c.copyIn(source, filesDir, file("a.txt", content, 0o640))
	c.need(err, "copy in")
	s := c.snapshot(source, sdk.SnapshotFilesystem)
	archive, out := c.exported(s)
	c.failIf(!slices.ContainsFunc(out.Losses, func(l sdk.Loss) bool { return l.Kind == sdk.LossMemory }), "its report has no word about memory: %v", out.Losses)
	id, in, err := c.take(archive)
	c.failIf(err != nil, "import: %v", err)
	c.failIf(in.Snapshot.ID != id || in.Snapshot.SandboxID != source.ID, "the import is snapshot %q of %q", in.Snapshot.ID, in.Snapshot.SandboxID)
	c.failIf(in.Snapshot.Profile.Name != s.Profile.Name, "its profile is %q, not %q", in.Snapshot.Profile.Name, s.Profile.Name)
	c.failIf(in.Snapshot.Identity.Owner != "importer", "its owner is %q", in.Snapshot.Identity.Owner)
	for _, loss := range out.Losses {
		c.failIf(!slices.ContainsFunc(in.Losses, func(l sdk.Loss) bool { return l.Kind == loss.Kind }), "the import has no word about %s", loss)
	}
	c.failIf(c.listSnapshots(c.kit.b, c.kit.suite.Fleet, id) != 1, "the import is not listed")
	fork := c.restore(c.getSnapshot(id))
	files, err := c.copyOut(fork, filesDir)
	c.need(err, "copy out")
	got := files["tree/a.txt"]
	c.failIf(got.content != content || got.mode != 0o640, "the restored sandbox has %q with mode %o, not %q with 640", got.content, got.mode, content)
}

func portableDamaged(c *check) {
	_, source := c.ready(c.portableCreation())
	archive, _ := c.exported(c.snapshot(source, sdk.SnapshotFilesystem))
	changed := bytes.Clone(archive)
	changed[len(changed)/2] ^= 0x55
	for what, content := range map[string][]byte{"none": nil, "half": archive[:len(archive)/2], "changed": changed, "noise": bytes.Repeat([]byte("noise"), 1000)} {
		id, _, err := c.take(content)
		c.is(err, what+" of an archive", sdk.ErrInvalid)
		c.failIf(c.listSnapshots(c.kit.b, c.kit.suite.Fleet, id) != 0, "%s of an archive was refused, and is listed", what)
	}
}

func portableSecrets(c *check) {
	opts := c.portableCreation()
	secret, variable := newID("snp-"), newID("snp-")
	opts.Secrets, opts.Env = map[string]sdk.Secret{"CANARY": sdk.Secret(secret)}, map[string]string{"VARIABLE": variable}
	_, source := c.ready(opts)
	archive, result := c.exported(c.snapshot(source, sdk.SnapshotFilesystem))
	for what, canary := range map[string]string{"secret": secret, "variable of the create": variable} {
		c.failIf(bytes.Contains(archive, []byte(canary)), "a %s is in the archive", what)
	}
	c.failIf(!slices.ContainsFunc(result.Losses, func(l sdk.Loss) bool { return l.Kind == sdk.LossSecrets }), "its report has no word about secrets: %v", result.Losses)
}

func portableUnknown(c *check) {
	_, source := c.ready(c.portableCreation())
	s := c.snapshot(source, sdk.SnapshotFilesystem)
	for what, of := range map[string]struct {
		ext sdk.Extension
		sdk.ExportSnapshotOptions
	}{
		"what is not there":             {c.kit.a, sdk.ExportSnapshotOptions{SnapshotID: newID("snp-"), Fleet: c.kit.suite.Fleet}},
		"a snapshot of another fleet's": {c.kit.other, sdk.ExportSnapshotOptions{SnapshotID: s.ID, Fleet: c.kit.otherFleet()}},
	} {
		var archive limited
		of.Archive = &archive
		_, err := ability[sdk.PortableSnapshotter](c, of.ext).ExportSnapshot(c.ctx, of.ExportSnapshotOptions)
		c.is(err, "an export of "+what, sdk.ErrNotFound)
		c.failIf(archive.String() != "", "an export of %s wrote %d bytes", what, len(archive.String()))
	}
}
