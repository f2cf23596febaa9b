// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Restore implements [sdk.Snapshotter].
func (e *Extension) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	eng, fleet, err := e.askFleet(ctx, opts.Create.Identity.Fleet)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	s, err := e.readSnapshot(ctx, eng, fleet, opts.SnapshotID)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	return e.make(ctx, opts.Create, &s)
}

// fillVolumes brings the content of volumes back. They are new and empty, for
// what was deleted in one must not come back from the image below.
func (e *Extension) fillVolumes(ctx context.Context, eng engine, id string, c creation) error {
	if c.from == nil {
		return nil
	}
	for i, target := range c.image.kept {
		if err := e.copyBetween(ctx, eng, id, volumePath(c.from.ID, i), id, target); err != nil {
			return err
		}
	}
	return nil
}

// keptVolumes are the paths whose content a snapshot holds, in its order.
func keptVolumes(labels map[string]string) (paths []string, err error) {
	if labels[labelVolumes] == "" {
		return nil, nil
	}
	err = json.Unmarshal([]byte(labels[labelVolumes]), &paths)
	return paths, err
}

// makeVolumeDirs makes the directories that hold volumes' content.
func (e *Extension) makeVolumeDirs(ctx context.Context, eng engine, id, snapshotID string, n int) error {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	dirs := []string{volumesDir, volumesDir + "/" + snapshotID}
	for i := range n {
		dirs = append(dirs, volumePath(snapshotID, i))
	}
	for _, dir := range dirs {
		// To memory, from our own header.
		_ = w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o700, Typeflag: tar.TypeDir})
	}
	_ = w.Close()
	_, err := eng.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: &packed})
	return e.translate(err, "make "+volumesDir)
}

// dropLayers removes an image whose snapshot was deleted while a sandbox that
// was restored from it lived: nothing names it any more.
func (e *Extension) dropLayers(ctx context.Context, eng engine, fleet, snapshotID string) error {
	filters := labelled(sdk.LabelFleet, fleet, sdk.LabelID, snapshotID, labelRole, roleSnapshot)
	filters.Add("dangling", "true")
	list, err := eng.ImageList(ctx, client.ImageListOptions{Filters: filters})
	if err != nil {
		return e.translate(err, "look for what is left of "+clip(snapshotID))
	}
	for _, img := range list.Items {
		// One that another sandbox uses stays until that one goes.
		_, _ = eng.ImageRemove(ctx, img.ID, client.ImageRemoveOptions{PruneChildren: true})
	}
	return nil
}
