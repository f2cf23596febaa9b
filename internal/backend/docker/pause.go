// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Pause implements [sdk.Pauser].
func (e *Extension) Pause(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	s, err := e.toggle(ctx, opts.Target, sdk.StatusPaused, func(eng engine, id string) error {
		_, err := eng.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		return err
	})
	return sdk.PauseResult{Sandbox: s}, err
}

// Resume implements [sdk.Pauser].
func (e *Extension) Resume(ctx context.Context, opts sdk.ResumeOptions) (sdk.ResumeResult, error) {
	s, err := e.toggle(ctx, opts.Target, sdk.StatusReady, func(eng engine, id string) error {
		_, err := eng.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
		return err
	})
	return sdk.ResumeResult{Sandbox: s}, err
}

// toggle changes a sandbox to a status, and looks what it is then. The answer
// to the change itself decides nothing: two at once both get what they want.
func (e *Extension) toggle(ctx context.Context, target sdk.Target, to sdk.Status, change func(eng engine, id string) error) (sdk.Sandbox, error) {
	eng, _, o, s, err := e.running(ctx, target)
	if err != nil || s.Status == to {
		return s, err
	}
	changeErr := change(eng, o.main.ID)
	_, _, _, s, err = e.running(ctx, target)
	if err != nil || s.Status == to {
		return s, err
	}
	return s, e.translate(changeErr, "change "+s.ID)
}
