// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Layers are the layers of an image that lies somewhere else, the lowest
// first.
type Layers struct {
	Config  Config
	Digests []string // hex
	Open    func(i int) (io.ReadCloser, error)
}

// ErrRefused is an image that is not taken: it is hostile, or of a kind that
// is not known.
var ErrRefused = errRefused

// Assemble returns the image of layers.
func (c Cache) Assemble(ctx context.Context, layers Layers) (*Image, error) {
	return c.make(func(t *tree) (Config, string, error) {
		img := image{config: layers.Config}
		for i, digest := range layers.Digests {
			img.layers = append(img.layers, layer{digest: digest})
			if err := layers.apply(ctx, t, i); err != nil {
				return Config{}, "", fmt.Errorf("layer %d: %w", i, err)
			}
		}
		return img.config, img.source(), nil
	})
}

func (l Layers) apply(ctx context.Context, t *tree, i int) error {
	r, err := l.Open(i)
	if err != nil {
		return err
	}
	return errors.Join(t.apply(reader{ctx, r}), r.Close())
}
