// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
)

// patient is an engine behind an SSH connection that may have gone unnoticed:
// a question that was under way then is asked once more, over a new one. What
// changes something is never repeated.
type patient struct{ engine }

// again asks a question, and once more when its connection was lost.
func again[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	answer, err := ask()
	if errors.Is(err, sshtransport.ErrLost) && ctx.Err() == nil {
		return ask()
	}
	return answer, err
}

func (p patient) Info(ctx context.Context, options client.InfoOptions) (client.SystemInfoResult, error) {
	return again(ctx, func() (client.SystemInfoResult, error) { return p.engine.Info(ctx, options) })
}

func (p patient) ContainerInspect(ctx context.Context, id string, options client.ContainerInspectOptions) (client.ContainerInspectResult, error) {
	return again(ctx, func() (client.ContainerInspectResult, error) { return p.engine.ContainerInspect(ctx, id, options) })
}

func (p patient) ContainerList(ctx context.Context, options client.ContainerListOptions) (client.ContainerListResult, error) {
	return again(ctx, func() (client.ContainerListResult, error) { return p.engine.ContainerList(ctx, options) })
}

func (p patient) ExecInspect(ctx context.Context, execID string, options client.ExecInspectOptions) (client.ExecInspectResult, error) {
	return again(ctx, func() (client.ExecInspectResult, error) { return p.engine.ExecInspect(ctx, execID, options) })
}

func (p patient) ImageList(ctx context.Context, options client.ImageListOptions) (client.ImageListResult, error) {
	return again(ctx, func() (client.ImageListResult, error) { return p.engine.ImageList(ctx, options) })
}

func (p patient) ImageInspect(ctx context.Context, image string, options ...client.ImageInspectOption) (client.ImageInspectResult, error) {
	return again(ctx, func() (client.ImageInspectResult, error) { return p.engine.ImageInspect(ctx, image, options...) })
}

func (p patient) NetworkList(ctx context.Context, options client.NetworkListOptions) (client.NetworkListResult, error) {
	return again(ctx, func() (client.NetworkListResult, error) { return p.engine.NetworkList(ctx, options) })
}

func (p patient) VolumeList(ctx context.Context, options client.VolumeListOptions) (client.VolumeListResult, error) {
	return again(ctx, func() (client.VolumeListResult, error) { return p.engine.VolumeList(ctx, options) })
}
