// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

func (a *app) pauseCommand() *cobra.Command {
	var opts lifecycle.PauseOptions
	cmd := &cobra.Command{
		Use:   "pause ID",
		Short: "Suspend a sandbox; its deadline stays",
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	return a.onSandbox(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Sandbox, error) {
		return runtime.Manager.Pause(ctx, id, opts)
	})
}
