// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Images that are too deep. Each snapshot of what was restored from a snapshot
// lies on that one's layers, and an engine stacks some 125 of them.

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// flattenAbove is how many layers a snapshot may have. It leaves room for
	// those of the next one and of a sandbox.
	flattenAbove = 100
	// mostLayers is how many an image may have whose sandbox is snapshotted:
	// what is committed has to be looked at once before it is flat.
	mostLayers = 120

	flatRepository = "sandboxer.local/flat"
)

// flatten makes of a committed image one whose content is a single layer, and
// gives it the snapshot's name. The content passes through the client.
func (e *Extension) flatten(ctx context.Context, eng engine, deep string, identity sdk.Identity) (err error) {
	img, err := eng.ImageInspect(ctx, deep)
	if err != nil {
		return e.translate(err, "look at the layers of "+identity.ID)
	}
	flat := flatRepository + ":" + identity.ID
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonDeadline)
		defer cancel()
		// What is not there, or is used by what was made of it, stays.
		_, _ = eng.ImageRemove(clean, flat, client.ImageRemoveOptions{})
		_, _ = eng.ImageRemove(clean, deep, client.ImageRemoveOptions{PruneChildren: true})
	}()
	if err := e.exportImage(ctx, eng, deep, identity, func(content io.Reader) error {
		read, write := io.Pipe()
		defer read.Close()
		go func() { write.CloseWithError(withoutOlderVolumes(write, content, identity.ID)) }()
		answer, err := eng.ImageImport(ctx, client.ImageImportSource{Source: read, SourceName: "-"}, flat, client.ImageImportOptions{})
		if err != nil {
			return e.translate(err, "import "+flat)
		}
		defer answer.Close()
		return answered(answer, "import "+flat)
	}); err != nil {
		return err
	}
	config := &container.Config{}
	if c := img.Config; c != nil {
		config.User, config.WorkingDir, config.Env, config.Labels, config.Volumes = c.User, c.WorkingDir, c.Env, c.Labels, c.Volumes
	}
	helper, err := e.idleContainer(ctx, eng, flat, identity, "-flat")
	if err != nil {
		return err
	}
	if _, err := e.commit(ctx, eng, helper, snapshotTag(identity.ID), config); err != nil {
		return err
	}
	return e.removeHelper(ctx, eng, helper)
}

// exportImage hands the file system of an image to take, as a tar.
func (e *Extension) exportImage(ctx context.Context, eng engine, imageID string, identity sdk.Identity, take func(content io.Reader) error) (err error) {
	helper, err := e.idleContainer(ctx, eng, imageID, identity, "-export-"+newSuffix())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.removeHelper(ctx, eng, helper)) }()
	content, err := eng.ContainerExport(ctx, helper, client.ContainerExportOptions{})
	if err != nil {
		return e.translate(err, "read the files of "+identity.ID)
	}
	defer content.Close()
	return e.translate(take(content), "read the files of "+identity.ID)
}

// idleContainer makes a container that never runs. Its volumes, where the image wants
// some, are empty.
func (e *Extension) idleContainer(ctx context.Context, eng engine, imageID string, identity sdk.Identity, suffix string) (string, error) {
	img, err := e.inspectImage(ctx, eng, imageID)
	if err != nil {
		return "", e.translate(err, "look at the image of "+identity.ID)
	}
	labels := identity.ToLabels()
	labels[labelRole] = roleHelper
	host := &container.HostConfig{NetworkMode: "none"}
	for _, target := range img.volumes {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeVolume, Target: target, VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: maps.Clone(labels)}})
	}
	made, err := eng.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: identity.ID + suffix, Config: &container.Config{Image: img.ref, Labels: labels, Cmd: []string{guestwire.Program}}, HostConfig: host,
	})
	return made.ID, e.translate(err, "make a helper of "+identity.ID)
}

// newSuffix tells the helpers of exports at the same time apart.
func newSuffix() string { return strings.ToLower(rand.Text()) }

// removeHelper removes a helper, also when the caller's context has ended.
func (e *Extension) removeHelper(ctx context.Context, eng engine, id string) error {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonDeadline)
	defer cancel()
	_, err := eng.ContainerRemove(clean, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return e.translate(err, "remove the helper "+id)
}

// withoutOlderVolumes copies a root filesystem without the volumes of the
// snapshots that this one comes from, which lie below its own.
func withoutOlderVolumes(to io.Writer, from io.Reader, snapshotID string) error {
	own := path.Join(volumesDir, snapshotID)
	return copyTree(to, from, func(name string) bool {
		return !within(name, volumesDir) || name == volumesDir || within(name, own)
	}, nil)
}

// copyTree copies a tar of a root filesystem, without the names that are not
// kept and, when it has somewhere to put them, without device files. A hard
// link to what is not kept is an error: it would be lost.
func copyTree(to io.Writer, from io.Reader, keep func(name string) bool, devices func(name string)) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	var gone []string
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return fmt.Errorf("the engine's archive: %w", err)
		}
		name, link := path.Join("/", header.Name), path.Join("/", header.Linkname)
		device := header.Typeflag == tar.TypeChar || header.Typeflag == tar.TypeBlock || header.Typeflag == tar.TypeLink && slices.Contains(gone, link)
		switch {
		case !keep(name), name == engineMark:
			continue
		case device && devices != nil:
			devices(name)
			gone = append(gone, name)
			continue
		case header.Typeflag == tar.TypeLink && !keep(link):
			return &sdk.Error{Kind: sdk.ErrUnsupported, Message: fmt.Sprintf("%s is a hard link to %s, which is sandboxer's own", clip(name), clip(link)), Advice: "remove the link in the sandbox, and make the snapshot again"}
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return fmt.Errorf("the engine's archive: %w", err)
		}
	}
}

// rebase copies an archive of a directory and calls the directory base, which
// may be a path.
func rebase(to io.Writer, from io.Reader, base string) error {
	out := tar.NewWriter(to)
	if err := appendTree(out, from, base, nil); err != nil {
		return err
	}
	return out.Close()
}

// appendTree appends the entries of an archive of a directory, called base.
// With after, that is called when the directory itself was written.
func appendTree(out *tar.Writer, from io.Reader, base string, after func() error) error {
	in := tar.NewReader(from)
	renamed := func(name string) string {
		_, below, _ := strings.Cut(strings.Trim(path.Clean(name), "/"), "/")
		return path.Join(base, below)
	}
	for first := true; ; first = false {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the engine's archive: %w", err)
		}
		header.Name = renamed(header.Name)
		if header.Typeflag == tar.TypeDir {
			header.Name += "/"
		}
		if header.Typeflag == tar.TypeLink {
			header.Linkname = renamed(header.Linkname)
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return fmt.Errorf("the engine's archive: %w", err)
		}
		if first && after != nil {
			if err := after(); err != nil {
				return err
			}
		}
	}
}

// engineMark is a file that the engine puts into every container.
const engineMark = "/.dockerenv"
