// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	imagetypes "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"
)

// exact is an engine whose listings hold nothing that does not carry all the
// labels that were asked for: of several labels, Podman's listing of volumes
// is content with one (seen with 4.3.1).
type exact struct{ engine }

// carries tells whether something has every label that a filter names, as
// key=value.
func carries(labels map[string]string, filters client.Filters) bool {
	for pair := range filters["label"] {
		key, value, _ := strings.Cut(pair, "=")
		if present, found := labels[key]; !found || present != value {
			return false
		}
	}
	return true
}

// only keeps of what was listed what carries the labels that were asked for.
func only[T any](list []T, filters client.Filters, labels func(T) map[string]string) []T {
	return slices.DeleteFunc(list, func(one T) bool { return !carries(labels(one), filters) })
}

func (x exact) ContainerList(ctx context.Context, options client.ContainerListOptions) (client.ContainerListResult, error) {
	list, err := x.engine.ContainerList(ctx, options)
	list.Items = only(list.Items, options.Filters, func(c container.Summary) map[string]string { return c.Labels })
	return list, err
}

func (x exact) VolumeList(ctx context.Context, options client.VolumeListOptions) (client.VolumeListResult, error) {
	list, err := x.engine.VolumeList(ctx, options)
	list.Items = only(list.Items, options.Filters, func(v volume.Volume) map[string]string { return v.Labels })
	return list, err
}

func (x exact) NetworkList(ctx context.Context, options client.NetworkListOptions) (client.NetworkListResult, error) {
	list, err := x.engine.NetworkList(ctx, options)
	list.Items = only(list.Items, options.Filters, func(n network.Summary) map[string]string { return n.Labels })
	return list, err
}

func (x exact) ImageList(ctx context.Context, options client.ImageListOptions) (client.ImageListResult, error) {
	list, err := x.engine.ImageList(ctx, options)
	list.Items = only(list.Items, options.Filters, func(i imagetypes.Summary) map[string]string { return i.Labels })
	return list, err
}
