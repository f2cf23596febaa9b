// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

func (a *app) expireCommand() *cobra.Command {
	var opts lifecycle.ExpireOptions
	var in durationFlag
	var at timeFlag
	cmd := &cobra.Command{
		Use:   "expire ID [--in DURATION | --at TIME]",
		Short: "Move a sandbox's deadline earlier, down to now",
		Long:  "Move a sandbox's deadline earlier, down to now, which is the default. It is never moved later.",
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, whereItIs)
	flags.Var(&in, "in", "the deadline becomes this long from now")
	flags.Var(&at, "at", "the deadline becomes this, as in 2030-01-31T18:00:00Z")
	flags.StringVar(&opts.Reason, "reason", "", "`TEXT` for the sandbox's log")
	cmd.MarkFlagsMutuallyExclusive("in", "at")
	return a.onSandbox(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Sandbox, error) {
		opts.At = time.Time(at)
		if in > 0 {
			opts.At = runtime.Manager.Now().Add(time.Duration(in))
		}
		return runtime.Manager.Expire(ctx, id, opts)
	})
}
