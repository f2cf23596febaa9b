// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import (
	"context"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Pause implements [sdk.Pauser].
func (e *Extension) Pause(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	s, err := e.suspend(ctx, opts.Target, "pause")
	return sdk.PauseResult{Sandbox: s}, err
}

// Resume implements [sdk.Pauser].
func (e *Extension) Resume(ctx context.Context, opts sdk.ResumeOptions) (sdk.ResumeResult, error) {
	s, err := e.suspend(ctx, opts.Target, "resume")
	return sdk.ResumeResult{Sandbox: s}, err
}

func (e *Extension) suspend(ctx context.Context, target sdk.Target, verb string) (sdk.Sandbox, error) {
	r, dir, err := e.running(target)
	if err != nil {
		return sdk.Sandbox{}, err
	}
	if ending(r) {
		return sdk.Sandbox{}, errEnding(r)
	}
	if err := supervisor.Suspend(ctx, dir, verb == "resume"); err != nil {
		return sdk.Sandbox{}, e.callError(r.ID, dir, verb, err)
	}
	if r, dir, err = e.read(target); err != nil {
		return sdk.Sandbox{}, err
	}
	return e.sandbox(r, dir), nil
}
