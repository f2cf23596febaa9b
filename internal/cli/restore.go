// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
)

func (a *app) restoreCommand() *cobra.Command {
	var m making
	cmd := &cobra.Command{
		Use:   "restore SNAPSHOT",
		Short: "Make a sandbox from a snapshot and wait until it is ready",
		Long: "Make a new sandbox from a snapshot, as often as wanted, and wait until it is ready.\n\n" +
			"It takes environment and labels from the profile and from here, not from the sandbox that was snapshotted, and owner, " +
			"task and run as a new one does. Secrets have to be given again: a memory snapshot keeps the files, not NAME_FILE.",
		Example: "  sandboxer restore snp-0123456789abcdefghij --ttl 15m",
		Args:    exactly("the id of a snapshot"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := snapshotID(args[0]); err != nil {
				return err
			}
			opts, err := m.options(a)
			if err != nil {
				return err
			}
			opts.Snapshot = args[0]
			return a.use(func(runtime *config.Runtime) error { return a.make(cmd, runtime, opts, m.quiet) })
		},
	}
	a.makes(cmd, &m, "where the snapshot is")
	return cmd
}
