// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Snapshots: the vendor's images.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	tagSource = sdk.LabelPrefix + "snapshot-of"
	tagLost   = sdk.LabelPrefix + "lost" // by an import
)

// snapshotOf returns what an image is; ok is false for one that is not ours.
func snapshotOf(i Image, fleet string) (s sdk.Snapshot, ok bool, err error) {
	identity, ok, err := sdk.IdentityFromLabels(i.Tags)
	if err != nil || !ok || identity.Fleet != fleet {
		return s, false, err
	}
	s = sdk.Snapshot{
		ID: identity.ID, Ref: i.ID, SandboxID: i.Tags[tagSource], Kind: sdk.SnapshotFilesystem, Identity: identity,
		CreatedAt: i.CreatedAt, ExpiresAt: i.DeleteAt, Size: i.Size, Digest: i.Digest, ContainsSecrets: i.Secrets,
	}
	if i.Memory {
		s.Kind = sdk.SnapshotMemory
	}
	if strings.HasPrefix(identity.ID, "sbx-") {
		// Made by the vendor at the deadline, with the tags of the box.
		s.SandboxID, s.ID = identity.ID, sdk.ExpirySnapshotID(identity.ID)
		s.Identity.ID = s.ID
	}
	if lost := i.Tags[tagLost]; lost != "" {
		if err := json.Unmarshal([]byte(lost), &s.Lost); err != nil {
			return s, false, fmt.Errorf("tag %s of image %s: %w", tagLost, i.ID, err)
		}
	}
	if err := json.Unmarshal([]byte(i.Tags[tagProfile]), &s.Profile); err != nil {
		return s, false, fmt.Errorf("tag %s of image %s: %w", tagProfile, i.ID, err)
	}
	return s, true, nil
}

// Snapshot keeps the files of a box.
func (e *Extension) Snapshot(ctx context.Context, opts sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	b, source, err := e.usable(ctx, opts.Target)
	if err != nil && source.Status != sdk.StatusPaused {
		return sdk.SnapshotResult{}, err
	}
	tags := opts.Identity.ToLabels()
	tags[tagSource], tags[tagProfile] = opts.Target.ID, encode(source.Profile)
	shown := Image{Name: opts.SnapshotID, Tags: tags, Memory: opts.Kind == sdk.SnapshotMemory, DeleteAt: opts.ExpiresAt}
	var made Image
	err = e.try(ctx, func(api API) (err error) {
		made, err = api.CreateImage(ctx, b.ID, shown)
		return err
	})
	if answerLost(err) || hasCode(err, CodeNameTaken) {
		// It may be there all the same, or the request arrived twice.
		if found, findErr := e.findImage(ctx, opts.SnapshotID, opts.Identity.Fleet); findErr == nil && found.Tags[tagSource] == opts.Target.ID {
			made, err = found, nil
		}
	}
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	s, _, err := snapshotOf(made, opts.Identity.Fleet)
	return sdk.SnapshotResult{Snapshot: s}, err
}

// findImage returns the image of a snapshot.
func (e *Extension) findImage(ctx context.Context, id, fleet string) (Image, error) {
	images, incomplete, err := e.images(ctx, fleet)
	if err != nil {
		return Image{}, err
	}
	for _, i := range images {
		if s, ok, err := snapshotOf(i, fleet); err == nil && ok && s.ID == id {
			return i, nil
		}
	}
	if incomplete != "" {
		return Image{}, sdk.Errorf(sdk.ErrUnreachable, "snapshot %s was not found, but %s", id, incomplete)
	}
	return Image{}, sdk.Errorf(sdk.ErrNotFound, "no image carries the id %s", id)
}

func (e *Extension) images(ctx context.Context, fleet string) ([]Image, string, error) {
	return list(ctx, e, map[string]string{sdk.LabelFleet: fleet}, API.ListImages, func(i Image) string { return i.ID })
}

// GetSnapshot returns one snapshot.
func (e *Extension) GetSnapshot(ctx context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	i, err := e.findImage(ctx, opts.SnapshotID, opts.Fleet)
	if err != nil {
		return sdk.GetSnapshotResult{}, err
	}
	s, _, err := snapshotOf(i, opts.Fleet)
	return sdk.GetSnapshotResult{Snapshot: s}, err
}

// ListSnapshots returns the snapshots of a fleet.
func (e *Extension) ListSnapshots(ctx context.Context, opts sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	images, incomplete, err := e.images(ctx, opts.Fleet)
	if err != nil {
		return sdk.ListSnapshotsResult{}, err
	}
	result := sdk.ListSnapshotsResult{Incomplete: incomplete}
	for _, i := range images {
		s, ok, err := snapshotOf(i, opts.Fleet)
		if err != nil {
			result.Incomplete = err.Error()
			continue
		}
		if ok {
			result.Snapshots = append(result.Snapshots, s)
		}
	}
	return result, nil
}

// ExtendSnapshot moves a retention later.
func (e *Extension) ExtendSnapshot(ctx context.Context, opts sdk.ExtendSnapshotOptions) (sdk.ExtendSnapshotResult, error) {
	for range tries {
		i, err := e.findImage(ctx, opts.SnapshotID, opts.Fleet)
		if err != nil {
			return sdk.ExtendSnapshotResult{}, err
		}
		if opts.ExpiresAt.After(i.DeleteAt) {
			err = e.try(ctx, func(api API) (err error) {
				i, err = api.UpdateImage(ctx, i.ID, UpdateRequest{IfVersion: i.Version, Until: opts.ExpiresAt})
				return err
			})
		}
		if err == nil {
			s, _, err := snapshotOf(i, opts.Fleet)
			return sdk.ExtendSnapshotResult{Snapshot: s}, err
		}
		if !hasCode(err, CodeVersion) && !answerLost(err) {
			return sdk.ExtendSnapshotResult{}, err
		}
	}
	return sdk.ExtendSnapshotResult{}, sdk.Errorf(sdk.ErrUnreachable, "the retention of %s could not be changed in %d tries", opts.SnapshotID, tries)
}

// DeleteSnapshot removes a snapshot, and returns when nothing finds it.
func (e *Extension) DeleteSnapshot(ctx context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	result := sdk.DeleteSnapshotResult{}
	for attempt := range goneTries {
		if attempt > 0 {
			if err := e.wait.Sleep(ctx, gonePause<<attempt); err != nil {
				return result, err
			}
		}
		i, err := e.findImage(ctx, opts.SnapshotID, opts.Fleet)
		if errors.Is(err, sdk.ErrNotFound) {
			return result, nil
		}
		if err != nil {
			return result, err
		}
		result.Existed = true
		err = e.try(ctx, func(api API) error { return api.DeleteImage(ctx, i.ID) })
		if err != nil && !errors.Is(err, sdk.ErrNotFound) && !answerLost(err) {
			return result, err
		}
	}
	return result, fmt.Errorf("snapshot %s could not be seen gone: %w", opts.SnapshotID, errContradiction)
}

// Restore makes a box from an image.
func (e *Extension) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	i, err := e.findImage(ctx, opts.SnapshotID, opts.Create.Identity.Fleet)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	return e.create(ctx, opts.Create, i.ID)
}
