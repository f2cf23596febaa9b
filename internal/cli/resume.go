// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

func (a *app) resumeCommand() *cobra.Command {
	var opts lifecycle.PauseOptions
	cmd := &cobra.Command{
		Use:   "resume ID",
		Short: "Continue a suspended sandbox and wait until it is ready again",
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	return a.onSandbox(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Sandbox, error) {
		return runtime.Manager.Resume(ctx, id, opts)
	})
}
