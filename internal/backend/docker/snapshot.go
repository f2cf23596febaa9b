// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Filesystem snapshots: an image on the engine, committed while the sandbox
// is frozen, with the content of its volumes in a layer of their own. The
// retention is a log of generations like the lease, since the labels of an
// image never change.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	snapshotRepository = "sandboxer.local/snapshot"
	// volumesDir holds the content of volumes in a snapshot.
	volumesDir = guestwire.Dir + "/volumes"
)

func snapshotTag(id string) string { return snapshotRepository + ":" + id }

// Snapshot implements [sdk.Snapshotter].
func (e *Extension) Snapshot(ctx context.Context, opts sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	if !sdk.IsSnapshotID(opts.SnapshotID) {
		return sdk.SnapshotResult{}, sdk.Invalid("snapshot_id", "%q is not a snapshot id", clip(opts.SnapshotID))
	}
	if opts.Kind != sdk.SnapshotFilesystem {
		return sdk.SnapshotResult{}, sdk.Unsupported("kind", "the docker backend makes filesystem snapshots, not %q", clip(string(opts.Kind)))
	}
	if opts.ExpiresAt.IsZero() {
		return sdk.SnapshotResult{}, sdk.Invalid("ttl", "there is no snapshot without a retention")
	}
	eng, _, o, s, err := e.running(ctx, opts.Target)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	identity := opts.Identity.Clone()
	identity.ID, identity.Incarnation = opts.SnapshotID, max(identity.Incarnation, 1)
	if identity.Fleet, err = e.fleetOf(identity.Fleet); err != nil {
		return sdk.SnapshotResult{}, err
	}
	retention := sdk.Lease{ExpiresAt: opts.ExpiresAt.UTC().Round(0), Generation: 1, Event: opts.Event}
	_, nonce, labels, err := e.createRecord(ctx, eng, identity, retention, roleRetention)
	if err != nil {
		return sdk.SnapshotResult{}, e.translate(err, "take the id "+opts.SnapshotID)
	}
	if labels[labelNonce] != nonce {
		return sdk.SnapshotResult{}, sdk.Errorf(sdk.ErrConflict, "snapshot %s exists already, or is being made", opts.SnapshotID)
	}
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "snapshot", Message: "filesystem of " + s.ID})
	}
	err = e.capture(ctx, eng, o, s, identity)
	if err == nil {
		var made sdk.Snapshot
		if made, err = e.readSnapshot(ctx, eng, identity.Fleet, opts.SnapshotID); err == nil {
			return sdk.SnapshotResult{Snapshot: made}, nil
		}
	}
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonDeadline)
	defer cancel()
	_, cleanErr := e.DeleteSnapshot(cleaning, sdk.DeleteSnapshotOptions{SnapshotID: opts.SnapshotID, Fleet: identity.Fleet})
	return sdk.SnapshotResult{}, errors.Join(err, cleanErr)
}

// snapshotSource is what a snapshot is made of.
type snapshotSource struct {
	id      string // of the container
	config  *container.Config
	base    image // that the container was made from
	layers  int   // of base
	volumes []string
}

// capture makes the snapshot's image. One that would have too many layers gets
// its name when it is flat.
func (e *Extension) capture(ctx context.Context, eng engine, o *object, s sdk.Sandbox, identity sdk.Identity) error {
	src, err := e.snapshotSource(ctx, eng, o.main.ID)
	if err != nil {
		return err
	}
	deep := src.layers >= flattenAbove
	tag := snapshotTag(identity.ID)
	if deep {
		tag = ""
	}
	made, err := e.commitFrozen(ctx, eng, src, s, identity, tag, src.commitConfig(o, s, identity))
	if err != nil || !deep {
		return err
	}
	return e.flatten(ctx, eng, made, identity)
}

// commitFrozen freezes the sandbox for as long as its files are read. One that
// was paused stays so.
func (e *Extension) commitFrozen(ctx context.Context, eng engine, src snapshotSource, s sdk.Sandbox, identity sdk.Identity, tag string, config *container.Config) (imageID string, err error) {
	if s.Status == sdk.StatusReady {
		if _, err := eng.ContainerPause(ctx, src.id, client.ContainerPauseOptions{}); err != nil {
			return "", e.translate(err, "freeze "+s.ID)
		}
		thaw := func() error {
			thawing, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonDeadline)
			defer cancel()
			_, err := eng.ContainerUnpause(thawing, src.id, client.ContainerUnpauseOptions{})
			if errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
				return nil // destroyed or resumed meanwhile
			}
			return e.translate(err, "let "+s.ID+" go on")
		}
		defer func() { err = errors.Join(err, thaw()) }()
	}
	if len(src.volumes) == 0 {
		return e.commit(ctx, eng, src.id, tag, config)
	}
	made, err := e.commit(ctx, eng, src.id, "", config)
	if err != nil {
		return "", err
	}
	helper, err := e.idleContainer(ctx, eng, made, identity, "-volumes")
	if err != nil {
		return "", err
	}
	if err := e.makeVolumeDirs(ctx, eng, helper, identity.ID, len(src.volumes)); err != nil {
		return "", err
	}
	for i, target := range src.volumes {
		if err := e.copyBetween(ctx, eng, src.id, target, helper, volumePath(identity.ID, i)); err != nil {
			return "", err
		}
	}
	if imageID, err = e.commit(ctx, eng, helper, tag, config); err != nil {
		return "", err
	}
	return imageID, e.removeHelper(ctx, eng, helper)
}

// volumePath is where a snapshot holds the content of a volume. Each has a
// directory of its own: below it lie those of the snapshots that its sandbox
// was restored from.
func volumePath(snapshotID string, i int) string {
	return volumesDir + "/" + snapshotID + "/" + strconv.Itoa(i)
}

func (e *Extension) snapshotSource(ctx context.Context, eng engine, id string) (src snapshotSource, err error) {
	inspected, err := eng.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return src, e.translate(err, "look at container "+id)
	}
	src = snapshotSource{id: id, config: inspected.Container.Config}
	for _, m := range inspected.Container.Mounts {
		if m.Type == "volume" {
			src.volumes = append(src.volumes, m.Destination)
		}
	}
	slices.Sort(src.volumes)
	base, err := eng.ImageInspect(ctx, inspected.Container.Image)
	if err != nil {
		return src, e.translate(err, "look at the image of container "+id)
	}
	if src.layers = len(base.RootFS.Layers); src.layers > mostLayers {
		return src, &sdk.Error{Kind: sdk.ErrQuota, Message: fmt.Sprintf("the image below has %d layers, and an engine stacks few more", src.layers),
			Advice: "make the image anew with fewer: `docker export` a sandbox of it, and name the tar in image"}
	}
	if base.Config != nil {
		src.base.env = base.Config.Env
	}
	return src, nil
}

// commitConfig is what an image says beyond what the container says. Labels
// and variables can't be taken out of a commit, but an empty value wins: so a
// container that somebody starts from it does not look like the sandbox, and
// the create's own variables, which may be anything, do not go along.
func (src snapshotSource) commitConfig(o *object, s sdk.Sandbox, identity sdk.Identity) *container.Config {
	labels := map[string]string{}
	for key := range src.config.Labels {
		if strings.HasPrefix(key, sdk.LabelPrefix) {
			labels[key] = ""
		}
	}
	maps.Copy(labels, identity.ToLabels())
	labels[labelRole], labels[labelSandbox], labels[labelDocument] = roleSnapshot, s.ID, o.main.Labels[labelDocument]
	labels[labelVolumes] = encode(src.volumes)
	kept := map[string]bool{}
	for _, variable := range src.base.env {
		name, _, _ := strings.Cut(variable, "=")
		kept[name] = true
	}
	env := slices.Clone(src.base.env)
	for _, variable := range src.config.Env {
		if name, _, _ := strings.Cut(variable, "="); !kept[name] {
			env = append(env, name+"=")
		}
	}
	return &container.Config{Labels: labels, Env: env}
}

// commit makes an image of a container; without a tag it has no name.
func (e *Extension) commit(ctx context.Context, eng engine, id, tag string, config *container.Config) (imageID string, err error) {
	made, err := eng.ContainerCommit(ctx, id, client.ContainerCommitOptions{Reference: tag, NoPause: true, Config: config})
	return made.ID, e.translate(err, "commit "+cmp.Or(tag, id))
}

// copyBetween copies a directory from one container to another, its own owner
// and mode included: the engine leaves those of an archive's root as they are,
// so the archive begins with the directory's name.
func (e *Extension) copyBetween(ctx context.Context, eng engine, from, dir, to, into string) error {
	answer, err := eng.CopyFromContainer(ctx, from, client.CopyFromContainerOptions{SourcePath: dir})
	if err != nil {
		return e.translate(err, "read "+dir)
	}
	defer answer.Content.Close()
	read, write := io.Pipe()
	defer read.Close()
	go func() { write.CloseWithError(rebase(write, answer.Content, path.Base(into))) }()
	_, err = eng.CopyToContainer(ctx, to, client.CopyToContainerOptions{DestinationPath: path.Dir(into), Content: read})
	return e.translate(err, "write "+into)
}

// GetSnapshot implements [sdk.Snapshotter].
func (e *Extension) GetSnapshot(ctx context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	eng, fleet, err := e.askFleet(ctx, opts.Fleet)
	if err != nil {
		return sdk.GetSnapshotResult{}, err
	}
	s, err := e.readSnapshot(ctx, eng, fleet, opts.SnapshotID)
	return sdk.GetSnapshotResult{Snapshot: s}, err
}

func (e *Extension) askFleet(ctx context.Context, fleet string) (engine, string, error) {
	fleet, err := e.fleetOf(fleet)
	if err != nil {
		return nil, "", err
	}
	eng, _, err := e.ask(ctx)
	return eng, fleet, err
}

func (e *Extension) readSnapshot(ctx context.Context, eng engine, fleet, id string) (sdk.Snapshot, error) {
	found, faults, err := e.snapshots(ctx, eng, fleet, id)
	switch {
	case err != nil:
		return sdk.Snapshot{}, err
	case len(faults) > 0:
		return sdk.Snapshot{}, errors.New(faults[0])
	case len(found) == 0:
		return sdk.Snapshot{}, sdk.Errorf(sdk.ErrNotFound, "there is no snapshot %s on the engine at %s in fleet %q", clip(id), e.host, clip(fleet))
	}
	return found[0], nil
}

// ListSnapshots implements [sdk.Snapshotter].
func (e *Extension) ListSnapshots(ctx context.Context, opts sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	eng, fleet, err := e.askFleet(ctx, opts.Fleet)
	if err != nil {
		return sdk.ListSnapshotsResult{}, err
	}
	found, faults, err := e.snapshots(ctx, eng, fleet, "")
	return sdk.ListSnapshotsResult{Snapshots: found, Incomplete: clip(strings.Join(faults, "; "))}, err
}

// snapshots lists those of a fleet, or one of them. A snapshot is there while
// its image has its tag: what restored sandboxes still use has none.
func (e *Extension) snapshots(ctx context.Context, eng engine, fleet, id string) (found []sdk.Snapshot, faults []string, err error) {
	pairs := []string{sdk.LabelFleet, fleet}
	if id != "" {
		pairs = append(pairs, sdk.LabelID, id)
	}
	images, err := eng.ImageList(ctx, client.ImageListOptions{Filters: labelled(append(pairs, labelRole, roleSnapshot)...)})
	if err != nil {
		return nil, nil, e.translate(err, "list snapshots")
	}
	volumes, err := eng.VolumeList(ctx, client.VolumeListOptions{Filters: labelled(append(pairs, labelRole, roleRetention)...)})
	if err != nil {
		return nil, nil, e.translate(err, "list snapshots")
	}
	retention := map[string]record{}
	for _, v := range volumes.Items {
		r, err := readRecord(v.Labels[sdk.LabelID], v.Name, v.Labels)
		if err != nil {
			faults = append(faults, err.Error())
			continue
		}
		if r.generation > retention[v.Labels[sdk.LabelID]].generation {
			retention[v.Labels[sdk.LabelID]] = r
		}
	}
	for _, img := range images.Items {
		id := img.Labels[sdk.LabelID]
		if img.Labels[sdk.LabelFleet] != fleet || img.Labels[labelRole] != roleSnapshot || !slices.Contains(img.RepoTags, snapshotTag(id)) {
			continue
		}
		identity, _, err := sdk.IdentityFromLabels(img.Labels)
		profile, profileErr := decodeDocument(img.Labels[labelDocument])
		if err := errors.Join(err, profileErr); err != nil {
			faults = append(faults, fmt.Sprintf("snapshot %s: %v", clip(id), err))
			continue
		}
		expires := retention[id].lease.ExpiresAt
		if expires.IsZero() {
			// Its record was removed by somebody: it is kept for a while, not
			// lost for that.
			expires = time.Unix(img.Created, 0).UTC().Add(sdk.DefaultExpirySnapshotTTL)
		}
		var lost []string
		if text := img.Labels[labelLost]; text != "" && json.Unmarshal([]byte(text), &lost) != nil {
			lost = []string{"the label " + labelLost + " can't be read"}
		}
		found = append(found, sdk.Snapshot{
			ID: id, Ref: img.ID, SandboxID: img.Labels[labelSandbox], Kind: sdk.SnapshotFilesystem, Identity: identity,
			CreatedAt: identity.CreatedAt, ExpiresAt: expires, Size: img.Size, Digest: img.ID, Profile: profile, Lost: lost,
		})
	}
	slices.SortFunc(found, func(a, b sdk.Snapshot) int { return strings.Compare(a.ID, b.ID) })
	return found, faults, nil
}

// ExtendSnapshot implements [sdk.Snapshotter].
func (e *Extension) ExtendSnapshot(ctx context.Context, opts sdk.ExtendSnapshotOptions) (sdk.ExtendSnapshotResult, error) {
	eng, fleet, err := e.askFleet(ctx, opts.Fleet)
	if err != nil {
		return sdk.ExtendSnapshotResult{}, err
	}
	for range leaseTries {
		s, err := e.readSnapshot(ctx, eng, fleet, opts.SnapshotID)
		if err != nil || !opts.ExpiresAt.After(s.ExpiresAt) {
			return sdk.ExtendSnapshotResult{Snapshot: s}, err
		}
		volumes, err := eng.VolumeList(ctx, client.VolumeListOptions{Filters: labelled(sdk.LabelFleet, fleet, sdk.LabelID, s.ID, labelRole, roleRetention)})
		if err != nil {
			return sdk.ExtendSnapshotResult{}, e.translate(err, "extend "+s.ID)
		}
		next := int64(1)
		for _, v := range volumes.Items {
			if r, err := readRecord(s.ID, v.Name, v.Labels); err == nil && r.generation >= next {
				next = r.generation + 1
			}
		}
		_, nonce, labels, err := e.createRecord(ctx, eng, s.Identity, sdk.Lease{ExpiresAt: opts.ExpiresAt.UTC().Round(0), Generation: next}, roleRetention)
		if err != nil {
			return sdk.ExtendSnapshotResult{}, e.translate(err, "extend "+s.ID)
		}
		if labels[labelNonce] != nonce {
			continue // somebody else was faster: their retention may be enough
		}
		for _, v := range volumes.Items {
			e.removeVolume(ctx, eng, v.Name)
		}
	}
	return sdk.ExtendSnapshotResult{}, sdk.Errorf(sdk.ErrUnreachable, "the retention of %s could not be changed in %d tries", clip(opts.SnapshotID), leaseTries)
}

// DeleteSnapshot implements [sdk.Snapshotter]. Sandboxes that were restored
// from it go on; its layers go with the last of them.
func (e *Extension) DeleteSnapshot(ctx context.Context, opts sdk.DeleteSnapshotOptions) (result sdk.DeleteSnapshotResult, err error) {
	eng, fleet, err := e.askFleet(ctx, opts.Fleet)
	if err != nil {
		return result, err
	}
	found, _, err := e.snapshots(ctx, eng, fleet, opts.SnapshotID)
	if err != nil {
		return result, err
	}
	owned, err := e.ownedBy(ctx, eng, sdk.Target{ID: opts.SnapshotID, Fleet: fleet})
	if err != nil {
		return result, err
	}
	result.Existed = len(found) > 0 || len(owned.all()) > 0
	if len(found) > 0 {
		_, err := eng.ImageRemove(ctx, snapshotTag(opts.SnapshotID), client.ImageRemoveOptions{Force: true, PruneChildren: true})
		if err != nil && !errdefs.IsNotFound(err) {
			return result, e.translate(err, "remove snapshot "+clip(opts.SnapshotID))
		}
	}
	failed, err := e.removeOwned(ctx, eng, owned)
	if err != nil {
		return result, err
	}
	// What a snapshot that was cut short has left has no name.
	if err := e.dropLayers(ctx, eng, fleet, opts.SnapshotID); err != nil {
		return result, err
	}
	for name, cause := range failed {
		return result, fmt.Errorf("snapshot %s: %s is left: %w", clip(opts.SnapshotID), name, cause)
	}
	if left, _, err := e.snapshots(ctx, eng, fleet, opts.SnapshotID); err != nil || len(left) > 0 {
		return result, errors.Join(err, fmt.Errorf("snapshot %s is still listed", clip(opts.SnapshotID)))
	}
	return result, nil
}
