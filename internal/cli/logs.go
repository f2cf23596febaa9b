// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) logsCommand() *cobra.Command {
	var opts lifecycle.LogsOptions
	var network bool
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show what a sandbox's main process wrote, or what its network policy refused",
		Args:  exactly("the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := sandboxID(args[0]); err != nil {
				return err
			}
			if opts.Tail < 0 {
				return usage("--tail %d is less than zero", opts.Tail)
			}
			opts.Output = a.Stdout
			if network {
				opts.Source = sdk.LogNetwork
			}
			return a.use(func(runtime *config.Runtime) error { return runtime.Manager.Logs(cmd.Context(), args[0], opts) })
		},
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	cmd.Flags().BoolVarP(&opts.Follow, "follow", "f", false, "go on until the sandbox ends")
	cmd.Flags().BoolVar(&network, "network", false, "the names and connections that network.allow refused, or that failed, instead")
	cmd.Flags().IntVar(&opts.Tail, "tail", 0, "only the last `LINES` (default: all that is kept)")
	return cmd
}
