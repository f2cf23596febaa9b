// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) listCommand() *cobra.Command {
	var opts lifecycle.ListOptions
	var status []string
	var made madeFor
	var labels pairsFlag
	var quiet, wide bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the sandboxes of the fleet",
		Long: "List the sandboxes of the fleet: what every backend holds, joined with the ledger.\n\n" +
			"A backend that can't be asked is named on stderr, and what the ledger knew of it last is marked as unreachable. " +
			"With --backend, a backend that can't be asked is a failure.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opts.Status, err = statuses(status); err != nil {
				return err
			}
			opts.Labels = labels.pairs
			return a.use(func(runtime *config.Runtime) error {
				result, err := runtime.Manager.List(cmd.Context(), opts)
				if err != nil {
					return err
				}
				result.Sandboxes = made.of(result.Sandboxes)
				a.noteIncomplete(result.Unreachable, result.Unreadable)
				if quiet {
					for _, s := range result.Sandboxes {
						if err := writeAll(a.Stdout, s.ID+"\n"); err != nil {
							return err
						}
					}
				} else if err := a.printSandboxes(result.Sandboxes, runtime, wide); err != nil {
					return err
				}
				if opts.Backend != "" && len(result.Unreachable) > 0 {
					return exitError{code: exitFailed}
				}
				return nil
			})
		},
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, allOfThem)
	flags.StringSliceVar(&status, "status", nil, "only of this `STATUS`, may be given several times")
	flags.StringVar(&opts.Owner, "owner", "", "only of the owner `NAME`")
	flags.StringVar(&opts.Profile, "profile", "", "only of the profile `NAME`")
	made.flags(cmd, "")
	flags.Var(&labels, "label", "only with this label, may be given several times")
	flags.BoolVarP(&opts.Closed, "all", "a", false, "also those that are destroyed, as long as their log is kept")
	flags.BoolVarP(&quiet, "quiet", "q", false, "print nothing but the ids")
	flags.BoolVarP(&wide, "wide", "w", false, "the table also shows the run, which is often a long URL")
	a.printsData(cmd)
	return cmd
}

// madeFor selects sandboxes by what they were made for. Empty selects all.
type madeFor struct{ task, run string }

// flags gives a command the flags of the selection.
func (f *madeFor) flags(cmd *cobra.Command, goesWith string) {
	cmd.Flags().StringVar(&f.task, "task", "", goesWith+"only those made for exactly this `TEXT`")
	cmd.Flags().StringVar(&f.run, "run", "", goesWith+"only those made by the run of exactly this `URL` or id")
}

// of returns the sandboxes that the selection leaves.
func (f *madeFor) of(list []lifecycle.Sandbox) []lifecycle.Sandbox {
	return slices.DeleteFunc(list, func(s lifecycle.Sandbox) bool {
		return f.task != "" && s.Task != f.task || f.run != "" && s.Run != f.run
	})
}

func knownStatuses() []sdk.Status {
	return []sdk.Status{
		sdk.StatusCreating, sdk.StatusReady, sdk.StatusPaused, sdk.StatusExpired,
		sdk.StatusDestroying, sdk.StatusDestroyed, sdk.StatusFailed, sdk.StatusLost,
	}
}

func statuses(names []string) ([]sdk.Status, error) {
	known := knownStatuses()
	var wanted []sdk.Status
	for _, name := range names {
		if !slices.Contains(known, sdk.Status(name)) {
			all := make([]string, len(known))
			for i, status := range known {
				all[i] = string(status)
			}
			return nil, usage("--status %q is not one of %s%s", name, strings.Join(all, ", "), sandbox.DidYouMean(name, all))
		}
		wanted = append(wanted, sdk.Status(name))
	}
	return wanted, nil
}
