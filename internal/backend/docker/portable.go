// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Snapshots that go to other backends, and come from them. An archive holds
// the file system in one layer, and the content of volumes in another, so it
// is never deep and shares nothing with the engine.

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
)

// ExportSnapshot implements [sdk.PortableSnapshotter].
func (e *Extension) ExportSnapshot(ctx context.Context, opts sdk.ExportSnapshotOptions) (result sdk.ExportSnapshotResult, err error) {
	eng, fleet, err := e.askFleet(ctx, opts.Fleet)
	if err != nil {
		return result, err
	}
	s, err := e.readSnapshot(ctx, eng, fleet, opts.SnapshotID)
	if err != nil {
		return result, err
	}
	img, err := e.inspectImage(ctx, eng, snapshotTag(s.ID))
	if err == nil {
		img.kept, err = keptVolumes(img.labels)
	}
	if err != nil {
		return result, e.translate(err, "look at snapshot "+s.ID)
	}
	w, err := portable.NewWriter("")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "export", Message: "files of " + s.ID, Total: s.Size})
	}
	losses, err := e.exportLayers(ctx, eng, s.Identity, img, w)
	if err != nil {
		return result, err
	}
	document := portable.Document{
		SnapshotID: s.ID, SandboxID: s.SandboxID, Extension: Name, CreatedAt: s.CreatedAt,
		Profile: s.Profile, ProfileRevision: s.Identity.ProfileRevision, Owner: s.Identity.Owner, Task: s.Identity.Task, Labels: s.Identity.Labels,
		Volumes: slices.Compact(slices.Sorted(slices.Values(slices.Concat(img.volumes, img.kept)))), Losses: losses,
	}
	config := portable.Config{Architecture: img.arch, Workdir: img.workdir, User: img.user}
	for _, variable := range img.env {
		// One without a value is one that the commit blanked.
		if _, value, _ := strings.Cut(variable, "="); value != "" {
			config.Env = append(config.Env, variable)
		}
	}
	result.Losses = losses
	result.Bytes, result.Digest, err = w.Write(opts.Archive, config, document)
	return result, err
}

// exportLayers writes the layers of a snapshot, and tells what is not in them.
func (e *Extension) exportLayers(ctx context.Context, eng engine, identity sdk.Identity, img image, w *portable.Writer) ([]sdk.Loss, error) {
	var devices portable.Tally
	err := e.exportImage(ctx, eng, img.ref, identity, func(content io.Reader) error {
		return w.Layer(func(to io.Writer) error {
			return copyTree(to, content, func(name string) bool { return !within(name, guestwire.Dir) }, devices.Add)
		})
	})
	if err == nil && len(img.kept) > 0 {
		err = e.exportVolumes(ctx, eng, identity, img, w)
	}
	return slices.Concat([]sdk.Loss{
		{Kind: sdk.LossMemory, Detail: "processes and their memory: the command starts anew"},
		{Kind: sdk.LossSecrets, Detail: "secret files lie on a tmpfs, which is in no snapshot"},
		{Kind: sdk.LossEnvironment, Detail: "variables of the create; those of image and profile are carried"},
		{Kind: sdk.LossSockets, Detail: "unix sockets: the engine's archives leave them out"},
		{Kind: sdk.LossAttributes, Detail: "extended attributes other than file capabilities: the engine's archives leave them out"},
		{Kind: sdk.LossTimes, Detail: "fractions of seconds in the times of files: the engine's archives leave them out"},
	}, devices.Loss(sdk.LossDevices, "device files")), err
}

// exportVolumes writes the content of volumes into a layer above that with the
// files. What the image has at their paths is hidden.
func (e *Extension) exportVolumes(ctx context.Context, eng engine, identity sdk.Identity, img image, w *portable.Writer) (err error) {
	helper, err := e.idleContainer(ctx, eng, img.ref, identity, "-export-"+newSuffix())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.removeHelper(ctx, eng, helper)) }()
	return w.Layer(func(to io.Writer) error {
		out := tar.NewWriter(to)
		for i, target := range img.kept {
			if err := e.exportVolume(ctx, eng, out, helper, volumePath(identity.ID, i), strings.TrimPrefix(target, "/")); err != nil {
				return err
			}
		}
		return out.Close()
	})
}

func (e *Extension) exportVolume(ctx context.Context, eng engine, out *tar.Writer, container, dir, target string) error {
	answer, err := eng.CopyFromContainer(ctx, container, client.CopyFromContainerOptions{SourcePath: dir})
	if err != nil {
		return e.translate(err, "read "+dir)
	}
	defer answer.Content.Close()
	return appendTree(out, answer.Content, target, func() error {
		return out.WriteHeader(&tar.Header{Name: path.Join(target, ".wh..wh..opq"), Typeflag: tar.TypeReg, Mode: 0o600})
	})
}

// ImportSnapshot implements [sdk.PortableSnapshotter].
func (e *Extension) ImportSnapshot(ctx context.Context, opts sdk.ImportSnapshotOptions) (result sdk.ImportSnapshotResult, err error) {
	if !sdk.IsSnapshotID(opts.SnapshotID) {
		return result, sdk.Invalid("snapshot_id", "%q is not a snapshot id", clip(opts.SnapshotID))
	}
	if opts.ExpiresAt.IsZero() {
		return result, sdk.Invalid("ttl", "there is no snapshot without a retention")
	}
	fleet, err := e.fleetOf(opts.Identity.Fleet)
	if err != nil {
		return result, err
	}
	eng, f, err := e.ask(ctx)
	if err != nil {
		return result, err
	}
	archive, err := portable.Open(ctx, opts.Archive, portable.OpenOptions{})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	if err := archive.Fits(f.arch); err != nil {
		return result, err
	}
	identity := archive.Document.Identify(opts.Identity)
	identity.ID, identity.Fleet, identity.Incarnation = opts.SnapshotID, fleet, max(identity.Incarnation, 1)
	config, err := importedConfig(archive, identity)
	if err != nil {
		return result, err
	}
	retention := sdk.Lease{ExpiresAt: opts.ExpiresAt.UTC().Round(0), Generation: 1, Event: opts.Event}
	_, nonce, labels, err := e.createRecord(ctx, eng, identity, retention, roleRetention)
	if err != nil {
		return result, e.translate(err, "take the id "+opts.SnapshotID)
	}
	if labels[labelNonce] != nonce {
		return result, sdk.Errorf(sdk.ErrConflict, "snapshot %s exists already, or is being made", opts.SnapshotID)
	}
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "import", Message: "loading " + opts.SnapshotID + " into the engine", Total: archive.Unpacked})
	}
	err = e.loadImported(ctx, eng, archive, config, snapshotTag(identity.ID))
	if err == nil {
		result.Snapshot, err = e.readSnapshot(ctx, eng, fleet, identity.ID)
	}
	if err == nil {
		result.Losses = archive.Document.Losses
		return result, nil
	}
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonDeadline)
	defer cancel()
	_, cleanErr := e.DeleteSnapshot(cleaning, sdk.DeleteSnapshotOptions{SnapshotID: opts.SnapshotID, Fleet: fleet})
	return sdk.ImportSnapshotResult{}, errors.Join(err, cleanErr)
}

// importedConfig returns the configuration of the image that a snapshot from
// an archive is. Volumes are made anew by a restore, with the content that the
// image has at their paths.
func importedConfig(archive *portable.Archive, identity sdk.Identity) ([]byte, error) {
	document := encodeDocument(archive.Document.Profile)
	if document == "" {
		return nil, sdk.Unsupported("archive", "the profile is too large for a label of the engine: keep large files in the image, and not in the profile's files")
	}
	labels := identity.ToLabels()
	labels[labelRole], labels[labelSandbox], labels[labelDocument] = roleSnapshot, archive.Document.SandboxID, document
	labels[labelLost] = encode(portable.Lines(archive.Document.Losses))
	volumes := map[string]struct{}{}
	for _, volume := range archive.Document.Volumes {
		volumes[volume] = struct{}{}
	}
	diffIDs := make([]string, len(archive.Layers))
	for i, layer := range archive.Layers {
		diffIDs[i] = layer.DiffID
	}
	return json.Marshal(map[string]any{
		"architecture": archive.Config.Architecture, "os": "linux", "created": identity.CreatedAt.UTC().Format(time.RFC3339Nano),
		"config": map[string]any{
			"Env": archive.Config.Env, "User": archive.Config.User, "WorkingDir": archive.Config.Workdir, "Labels": labels, "Volumes": volumes,
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
}

// loadImported streams an archive to the engine, in the form that every engine
// can load.
func (e *Extension) loadImported(ctx context.Context, eng engine, archive *portable.Archive, config []byte, tag string) error {
	read, write := io.Pipe()
	defer read.Close()
	go func() { write.CloseWithError(writeImported(write, archive, config, tag)) }()
	answer, err := eng.ImageLoad(ctx, read, client.ImageLoadWithQuiet(true))
	if err != nil {
		return e.translate(err, "load "+tag)
	}
	defer answer.Close()
	return answered(answer, "load "+tag)
}

func writeImported(to io.Writer, archive *portable.Archive, config []byte, tag string) error {
	const configName = "config.json"
	out := tar.NewWriter(to)
	entry := saveManifest{Config: configName, RepoTags: []string{tag}}
	for i, layer := range archive.Layers {
		name := fmt.Sprintf("%d/layer.tar", i)
		entry.Layers = append(entry.Layers, name)
		if err := copyFile(out, name, archive.Blob(i), layer.Size); err != nil {
			return err
		}
	}
	for name, content := range map[string][]byte{configName: config, "manifest.json": []byte(encode([]saveManifest{entry}))} {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := out.Write(content); err != nil {
			return err
		}
	}
	return out.Close()
}

func copyFile(out *tar.Writer, name, file string, size int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}
