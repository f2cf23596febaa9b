// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Snapshots that go to other backends, and come from them.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
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
		if p.Image == "" && p.Template == "" && c.kit.suite.ImageFile != "" {
			p.Image, p.Command = c.kit.suite.ImageFile, nil
		}
	})
}

func (c *check) exported(s sdk.Snapshot) ([]byte, sdk.ExportSnapshotResult) {
	var archive limited
	result, err := ability[sdk.PortableSnapshotter](c, c.kit.b).ExportSnapshot(c.ctx, sdk.ExportSnapshotOptions{SnapshotID: s.ID, Fleet: c.kit.suite.Fleet, Archive: &archive})
	if errors.Is(err, sdk.ErrUnsupported) && s.Profile.Image == "" && s.Profile.Template == "" {
		c.leaveOut("the suite names no image, and without one nothing is exported: %s", err)
	}
	c.failIf(err != nil, "export: %v", err)
	content := []byte(archive.String())
	c.failIf(result.Bytes != int64(len(content)), "the archive has %d bytes, and the answer says %d", len(content), result.Bytes)
	return content, result
}

// opened reads an archive as another backend would, all digests verified.
func (c *check) opened(content []byte) *portable.Archive {
	archive, err := portable.Open(c.ctx, bytes.NewReader(content), portable.OpenOptions{})
	c.failIf(err != nil, "the archive can't be read: %v", err)
	c.later(func(context.Context) {
		if err := archive.Close(); err != nil {
			c.kit.left("what was unpacked by %s: %s", c.rule.ID, err)
		}
	})
	return archive
}

// unpacked is everything that an archive says, its layers unpacked: what is
// packed can't be searched.
func (c *check) unpacked(archive *portable.Archive) string {
	document, err := json.Marshal(archive.Document)
	c.need(err, "read the document")
	var all strings.Builder
	fmt.Fprintf(&all, "%s\n%+v\n", document, archive.Config)
	for i := range archive.Layers {
		layer, err := archive.OpenLayer(i)
		c.need(err, "open a layer")
		_, err = io.Copy(&all, layer)
		c.need(errors.Join(err, layer.Close()), "read a layer")
	}
	return all.String()
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
	opened := c.opened(archive)
	c.failIf(!slices.EqualFunc(opened.Document.Losses, out.Losses, func(a, b sdk.Loss) bool { return a.Kind == b.Kind && a.Count == b.Count }),
		"the archive tells of the losses %v, and the answer of %v", opened.Document.Losses, out.Losses)
	c.failIf(!strings.Contains(c.unpacked(opened), content), "the file that was written is in no layer")
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
	blob, err := os.ReadFile(c.opened(archive).Blob(0))
	c.need(err, "read a layer")
	changed := bytes.Clone(archive)
	changed[bytes.Index(archive, blob)+len(blob)/2] ^= 0x55 // between the parts it would mean nothing
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
	said := c.unpacked(c.opened(archive))
	for what, canary := range map[string]string{"secret": secret, "variable of the create": variable} {
		c.failIf(strings.Contains(said, canary), "a %s is in the archive", what)
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
