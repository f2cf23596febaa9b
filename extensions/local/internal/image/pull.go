// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

// Images by reference. They are streamed from the registry into the image's
// file, layer by layer, and stored nowhere else.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/registry"
)

// Pull returns the image of a reference, and the digest that it stands for
// now. One by digest that was pulled before needs no network.
func (c Cache) Pull(ctx context.Context, ref string, progress func(message string)) (i *Image, digest string, err error) {
	if progress == nil {
		progress = func(string) {}
	}
	repository, pinned, err := registry.Pinned(ref)
	if err != nil {
		return nil, "", err
	}
	if pinned != "" {
		if i, err := c.pulled(repository, pinned); err == nil {
			return i, pinned, nil
		}
	}
	progress("resolve " + ref)
	remote, err := registry.Resolve(ctx, ref)
	if err != nil {
		return nil, "", fmt.Errorf("image %s: %w", clip(ref), err)
	}
	if i, err := c.pulled(repository, remote.Digest); err == nil {
		return i, remote.Digest, nil
	}
	if i, err = c.make(func(t *tree) (Config, string, error) { return c.pull(ctx, t, remote, progress) }); err != nil {
		return nil, "", fmt.Errorf("image %s: %w", clip(remote.Ref), err)
	}
	// Under the digest of the index too, where that was the one asked for.
	for _, known := range []string{remote.Digest, pinned} {
		if known == "" {
			continue
		}
		if err := c.remember(c.pulledName(repository, known), i); err != nil {
			return nil, "", err
		}
	}
	return i, remote.Digest, nil
}

func (c Cache) pulled(repository, digest string) (*Image, error) {
	return c.named(c.pulledName(repository, digest))
}

// pulledName is where it is noted which image a digest of a repository is.
func (c Cache) pulledName(repository, digest string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s@%s", format, runtime.GOARCH, repository, digest))
	return filepath.Join(c.Dir, ofPrefix+hex.EncodeToString(sum[:16]))
}

func (c Cache) pull(ctx context.Context, t *tree, remote *registry.Image, progress func(string)) (Config, string, error) {
	var config imageConfig
	if err := json.Unmarshal(remote.Config, &config); err != nil {
		return Config{}, "", fmt.Errorf("its configuration: %w", err)
	}
	var img image
	var size int64
	for _, l := range remote.Layers {
		img.layers = append(img.layers, layer{blobPrefix + l.Digest, l.Digest})
		size += l.Size
	}
	if size > maxData {
		return Config{}, "", refused("%d bytes of layers", size)
	}
	if err := config.into(&img); err != nil {
		return Config{}, "", err
	}
	b := &remoteBlobs{image: remote, progress: progress}
	return img.config, img.source(), applyLayers(ctx, t, b, img)
}

// remoteBlobs are the parts of an image in a registry.
type remoteBlobs struct {
	image    *registry.Image
	progress func(string)
	n        int
}

func (r *remoteBlobs) open(name string) (io.ReadCloser, error) {
	digest := strings.TrimPrefix(name, blobPrefix)
	for _, l := range r.image.Layers {
		if l.Digest == digest {
			r.n++
			r.progress(fmt.Sprintf("pull layer %d of %d, %.1f MiB", r.n, len(r.image.Layers), float64(l.Size)/(1<<20)))
			break
		}
	}
	return r.image.Open(digest)
}
