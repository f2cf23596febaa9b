// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

func (a *app) getCommand() *cobra.Command {
	var opts lifecycle.GetOptions
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show one sandbox",
		Long:  "Show one sandbox. Looking at it never renews it.",
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	return a.onSandbox(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Sandbox, error) {
		return runtime.Manager.Get(ctx, id, opts)
	})
}

// onSandbox completes a command that takes the id of one sandbox and prints
// the sandbox that it then is.
func (a *app) onSandbox(cmd *cobra.Command, act func(context.Context, *config.Runtime, string) (lifecycle.Sandbox, error)) *cobra.Command {
	cmd.Args = exactly("the id of a sandbox")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := sandboxID(args[0]); err != nil {
			return err
		}
		return a.use(func(runtime *config.Runtime) error {
			s, err := act(cmd.Context(), runtime, args[0])
			if err != nil {
				return err
			}
			return a.printSandbox(s, runtime.Manager.Now())
		})
	}
	a.printsData(cmd)
	return cmd
}
