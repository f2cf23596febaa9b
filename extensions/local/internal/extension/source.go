// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// What a sandbox's root is made from: the host's own root, or an image.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/image"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/registry"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// source is what a sandbox's root is made from. Without a path it is the
// host's own.
type source struct {
	image  *image.Image // held until it is closed
	meta   image.Meta
	digest string // of what it was made from: a registry's, or our own
}

func (s source) path() string {
	if s.image == nil {
		return ""
	}
	return s.image.Path
}

func imageSource(i *image.Image) source { return source{image: i, meta: i.Meta, digest: i.Source} }

func (s store) images() image.Cache { return image.Cache{Dir: s.path("images")} }

// Prepare implements [sdk.Preparer].
func (e *Extension) Prepare(ctx context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	if err := e.store.open(); err != nil {
		return sdk.PrepareResult{}, err
	}
	program, err := e.store.program()
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	defer program.Close()
	s, err := e.source(ctx, sdk.CreateOptions{Profile: opts.Profile, Progress: opts.Progress}, nil)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	defer s.image.Close()
	e.collect()
	return sdk.PrepareResult{ImageDigest: s.digest}, nil
}

func (e *Extension) source(ctx context.Context, opts sdk.CreateOptions, from *origin) (source, error) {
	if from != nil {
		return e.snapshotSource(ctx, opts, from)
	}
	name := opts.Profile.Image
	if name == "" {
		return source{}, nil
	}
	path, isPath, err := imagePath(name)
	if err != nil {
		return source{}, err
	}
	progress := func(phase string) func(string) {
		return func(message string) {
			if opts.Progress != nil {
				opts.Progress(sdk.Progress{Phase: phase, Message: message})
			}
		}
	}
	var digest string
	unpacked, err := e.withRoom(ctx, name, func(images image.Cache) (i *image.Image, err error) {
		if isPath {
			return images.Unpack(ctx, path, progress("unpack"))
		}
		i, digest, err = images.Pull(ctx, name, progress("pull"))
		return i, err
	})
	if errors.Is(err, os.ErrNotExist) {
		return source{}, &sdk.Error{Kind: sdk.ErrInvalid, Path: "image", Message: fmt.Sprintf("%s can't be used", clip(path)), Err: err}
	}
	if ctx.Err() != nil {
		return source{}, ctx.Err()
	}
	if errors.Is(err, sdk.ErrQuota) {
		return source{}, err
	}
	if err != nil && !isPath {
		return source{}, pullError(err)
	}
	if err != nil {
		return source{}, &sdk.Error{Kind: sdk.ErrInvalid, Path: "image", Err: err, Message: "it can't be unpacked"}
	}
	s := imageSource(unpacked)
	if digest != "" {
		s.digest = digest
	}
	return s, nil
}

// pullError gives a pull that failed its kind.
func pullError(err error) error {
	for _, k := range []struct{ cause, kind error }{
		{registry.ErrUnreachable, sdk.ErrUnreachable}, {registry.ErrUnauthorized, sdk.ErrUnauthenticated},
	} {
		if errors.Is(err, k.cause) {
			return &sdk.Error{Kind: k.kind, Path: "image", Err: err, Message: "it can't be pulled"}
		}
	}
	return &sdk.Error{Kind: sdk.ErrInvalid, Path: "image", Err: err, Message: "it can't be pulled"}
}

// snapshotSource finds the root that a snapshot lies on. Its image need not
// be where it was, as long as it is in the cache.
func (e *Extension) snapshotSource(ctx context.Context, opts sdk.CreateOptions, from *origin) (source, error) {
	key := from.manifest.Image
	if key == "" {
		return source{}, nil
	}
	kept, err := e.store.images().Lookup(key)
	if err != nil && from.manifest.Profile.Image != "" {
		opts.Profile = from.manifest.Profile
		s, unpackErr := e.source(ctx, opts, nil)
		if unpackErr == nil && s.meta.Key == key {
			return s, nil
		}
		s.image.Close()
	}
	if err != nil {
		return source{}, &sdk.Error{Kind: sdk.ErrUnsupported, Path: "snapshot", Err: err,
			Message: fmt.Sprintf("snapshot %s lies on image %s, which is not here any more", from.manifest.ID, clip(from.manifest.Profile.Image)),
			Advice:  "put that image back at its path"}
	}
	return imageSource(kept), nil
}

// imagePath tells a path from a reference. A name that could be either is a
// path where there is such a file.
func imagePath(name string) (path string, isPath bool, err error) {
	path = name
	if home, err := os.UserHomeDir(); err == nil && strings.HasPrefix(name, "~/") {
		path = filepath.Join(home, name[2:])
	}
	if _, err := os.Stat(path); err != nil && !filepath.IsAbs(path) && !strings.HasPrefix(path, "./") && !strings.HasPrefix(path, "../") {
		return "", false, nil
	}
	path, err = filepath.Abs(path)
	return path, true, err
}

// env returns the image's environment.
func (s source) env() map[string]string {
	env := map[string]string{}
	for _, variable := range s.meta.Config.Env {
		if name, value, ok := strings.Cut(variable, "="); ok && validEnv(name) && !strings.ContainsRune(value, 0) {
			env[name] = value
		}
	}
	return env
}

// user resolves the main process's user in the root's own database.
func (s source) user(name string) (guest.User, error) {
	if name == "" || name == "root" || name == "0" || name == "0:0" {
		return guest.User{Home: "/root"}, nil
	}
	passwd, group := s.meta.Passwd, s.meta.Group
	if s.path() == "" {
		passwd, group = readSmall("/etc/passwd"), readSmall("/etc/group")
	}
	return guest.ResolveUser(name, strings.NewReader(passwd), strings.NewReader(group))
}

func readSmall(path string) string {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > 4<<20 {
		return ""
	}
	return string(data)
}
