// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// image is what is known of an image on the engine.
type image struct {
	ref     string // what a container is made from: the id
	digest  string // what it is known by
	arch    string
	user    string
	workdir string
	env     []string
	volumes []string // paths that the image wants volumes at
	labels  map[string]string
	kept    []string // paths whose volumes' content a snapshot holds
}

// isPath tells a path from a reference.
func isPath(name string) bool {
	return filepath.IsAbs(name) || strings.HasPrefix(name, "/") || strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") || strings.HasPrefix(name, "~/")
}

// Prepare implements [sdk.Preparer].
func (e *Extension) Prepare(ctx context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	eng, _, err := e.ask(ctx)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	img, err := e.source(ctx, eng, opts.Profile, opts.Progress)
	return sdk.PrepareResult{ImageDigest: img.digest}, err
}

// source returns the image that a profile names, or is built from.
func (e *Extension) source(ctx context.Context, eng engine, p sdk.Profile, progress func(sdk.Progress)) (image, error) {
	if p.Build != nil {
		return e.imageBuild(ctx, eng, *p.Build, progress)
	}
	return e.image(ctx, eng, p.Image, progress)
}

// image returns an image that is on the engine, getting it there when it is
// not.
func (e *Extension) image(ctx context.Context, eng engine, name string, progress func(sdk.Progress)) (image, error) {
	if isPath(name) {
		return e.imageFile(ctx, eng, name, progress)
	}
	img, err := e.inspectImage(ctx, eng, name)
	if !errdefs.IsNotFound(err) {
		return img, e.imageError(err, "image "+clip(name))
	}
	if err := e.pull(ctx, eng, name, progress); err != nil {
		return image{}, err
	}
	img, err = e.inspectImage(ctx, eng, name)
	return img, e.imageError(err, "image "+clip(name))
}

// imageError is an error about an image: one that is not there is the
// profile's fault, and no sandbox that is not found.
func (e *Extension) imageError(err error, what string) error {
	translated := e.translate(err, what)
	var said *sdk.Error
	if errors.As(translated, &said) && (errors.Is(said.Kind, sdk.ErrNotFound) || errors.Is(said.Kind, sdk.ErrInvalid)) {
		said.Kind, said.Path = sdk.ErrInvalid, "image"
	}
	return translated
}

func (e *Extension) inspectImage(ctx context.Context, eng engine, name string) (image, error) {
	found, err := eng.ImageInspect(ctx, name)
	if err != nil {
		return image{}, err
	}
	img := image{ref: found.ID, digest: found.ID, arch: goarch(found.Architecture)}
	if len(found.RepoDigests) > 0 {
		img.digest = found.RepoDigests[0]
	}
	if found.Os != "" && found.Os != "linux" {
		return image{}, sdk.Unsupported("image", "%q is for %s, and sandboxes are Linux containers", clip(name), clip(found.Os))
	}
	if c := found.Config; c != nil {
		img.user, img.workdir, img.env, img.labels = c.User, c.WorkingDir, c.Env, c.Labels
		for path := range c.Volumes {
			img.volumes = append(img.volumes, path)
		}
		slices.Sort(img.volumes)
	}
	return img, nil
}

// pullError is an error of a pull. The engine answers with whatever the
// registry said to it; only what is certain is called the profile's fault.
func (e *Extension) pullError(err error, name string) error {
	translated := e.imageError(err, "pull "+clip(name))
	var said *sdk.Error
	if errors.As(translated, &said) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return translated
	}
	kind, text := sdk.ErrUnreachable, err.Error()
	for _, certain := range []string{"not found", "manifest unknown", "HTTP 404", "no match for platform"} {
		if strings.Contains(text, certain) {
			kind = sdk.ErrInvalid
		}
	}
	return &sdk.Error{Kind: kind, Path: "image", Message: fmt.Sprintf("the engine at %s could not pull %s", e.host, clip(name)), Err: err}
}

// pull has the engine pull an image. The registry's credentials are those of
// Docker's command line; they go to the engine in a header and nowhere else.
func (e *Extension) pull(ctx context.Context, eng engine, name string, progress func(sdk.Progress)) error {
	auth, err := e.registryAuth(ctx, name)
	if err != nil {
		return err
	}
	answer, err := eng.ImagePull(ctx, name, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return e.pullError(err, name)
	}
	defer answer.Close()
	layers := map[string][2]int64{}
	for message, err := range answer.JSONMessages(ctx) {
		if err != nil {
			return e.pullError(err, name)
		}
		if message.Error != nil {
			return e.pullError(errors.New(clip(message.Error.Message)), name)
		}
		if progress == nil {
			continue
		}
		step := sdk.Progress{Phase: "pull", Message: strings.TrimSpace(clip(message.Status) + " " + clip(message.ID))}
		if p := message.Progress; p != nil && message.ID != "" {
			layers[message.ID] = [2]int64{p.Current, p.Total}
		}
		for _, layer := range layers {
			step.Done, step.Total = step.Done+layer[0], step.Total+layer[1]
		}
		progress(step)
	}
	return nil
}
