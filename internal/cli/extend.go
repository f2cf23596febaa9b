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

func (a *app) extendCommand() *cobra.Command {
	var opts lifecycle.ExtendOptions
	var ttl, by durationFlag
	var to timeFlag
	cmd := &cobra.Command{
		Use:   "extend ID (--ttl DURATION | --by DURATION | --to TIME)",
		Short: "Move a sandbox's deadline later",
		Long: "Move a sandbox's deadline later; it is never moved earlier. What was granted is printed, and less than asked is a " +
			"failure without --allow-less. A sandbox that has expired, or whose lease was claimed for destruction, can't be extended.",
		Example: "  sandboxer extend sbx-0123456789abcdefghij --by 30m",
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, whereItIs)
	flags.Var(&ttl, "ttl", "the deadline becomes this long from now, when that is later")
	flags.Var(&by, "by", "the deadline moves by this much")
	flags.Var(&to, "to", "the deadline becomes this, as in 2030-01-31T18:00:00Z")
	flags.BoolVar(&opts.AllowLess, "allow-less", false, "accept less than asked, where a maximum is in the way")
	flags.StringVar(&opts.Reason, "reason", "", "`TEXT` for the sandbox's log")
	cmd.MarkFlagsOneRequired("ttl", "by", "to")
	cmd.MarkFlagsMutuallyExclusive("ttl", "by", "to")
	return a.onSandbox(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Sandbox, error) {
		opts.TTL, opts.By, opts.To = time.Duration(ttl), time.Duration(by), time.Time(to)
		return runtime.Manager.Extend(ctx, id, opts)
	})
}
