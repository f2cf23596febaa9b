// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Make, list, show, keep longer, export, import and delete snapshots",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(a.snapshotCreateCommand(), a.snapshotListCommand(), a.snapshotGetCommand(), a.snapshotExtendCommand(), a.snapshotDeleteCommand(),
		a.snapshotExportCommand(), a.snapshotImportCommand())
	return cmd
}

func (a *app) snapshotCreateCommand() *cobra.Command {
	var opts lifecycle.SnapshotOptions
	var kind string
	var ttl durationFlag
	var labels pairsFlag
	var quiet bool
	cmd := &cobra.Command{
		Use:   "create ID",
		Short: "Make a snapshot of a sandbox",
		Long: "Make a snapshot of a sandbox, from which `sandboxer restore` makes new ones. A memory snapshot also holds the " +
			"processes, and with them whatever secrets they know.\n\n" +
			"It has a retention of its own, 168h unless --ttl says otherwise; a later deletion or `sandboxer reap` removes it.",
		Args: exactly("the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := sandboxID(args[0]); err != nil {
				return err
			}
			opts.Kind, opts.TTL, opts.Labels = sdk.SnapshotKind(kind), time.Duration(ttl), labels.pairs
			if opts.Kind != sdk.SnapshotFilesystem && opts.Kind != sdk.SnapshotMemory {
				return usage("--kind %q is not one of filesystem, memory", kind)
			}
			bar := a.progress()
			opts.Progress = bar.told
			return a.use(func(runtime *config.Runtime) error {
				s, err := runtime.Manager.Snapshot(cmd.Context(), args[0], opts)
				bar.done()
				if err != nil {
					return err
				}
				if quiet {
					return writeAll(a.Stdout, s.ID+"\n")
				}
				return a.printSnapshot(s, runtime.Manager.Now())
			})
		},
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, whereItIs)
	flags.StringVar(&kind, "kind", string(sdk.SnapshotFilesystem), "`KIND` of the snapshot: filesystem or memory")
	flags.Var(&ttl, "ttl", "how long it is kept (default: a week)")
	flags.Var(&labels, "label", "label, may be given several times")
	flags.StringVar(&opts.Attribution.Owner, "owner", "", "`NAME` of the team or person that it is for")
	flags.BoolVarP(&quiet, "quiet", "q", false, "print nothing but the id")
	a.printsData(cmd)
	return cmd
}

func (a *app) snapshotListCommand() *cobra.Command {
	var opts lifecycle.ListSnapshotsOptions
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the snapshots of the fleet",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.SandboxID != "" {
				if err := sandboxID(opts.SandboxID); err != nil {
					return err
				}
			}
			return a.use(func(runtime *config.Runtime) error {
				result, err := runtime.Manager.Snapshots(cmd.Context(), opts)
				if err != nil {
					return err
				}
				a.noteIncomplete(result.Unreachable, nil)
				if err := a.printSnapshots(result.Snapshots, runtime); err != nil {
					return err
				}
				if opts.Backend != "" && len(result.Unreachable) > 0 {
					return exitError{code: exitFailed}
				}
				return nil
			})
		},
	}
	backendFlag(cmd, &opts.Backend, allOfThem)
	cmd.Flags().StringVar(&opts.SandboxID, "sandbox", "", "only of the sandbox `ID`")
	a.printsData(cmd)
	return cmd
}

func (a *app) snapshotGetCommand() *cobra.Command {
	var opts lifecycle.GetOptions
	cmd := &cobra.Command{
		Use:   "get SNAPSHOT",
		Short: "Show one snapshot",
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	return a.onSnapshot(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Snapshot, error) {
		return runtime.Manager.GetSnapshot(ctx, id, opts)
	})
}

func (a *app) snapshotExtendCommand() *cobra.Command {
	var opts lifecycle.ExtendSnapshotOptions
	var ttl durationFlag
	var to timeFlag
	cmd := &cobra.Command{
		Use:   "extend SNAPSHOT (--ttl DURATION | --to TIME)",
		Short: "Keep a snapshot longer",
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	cmd.Flags().Var(&ttl, "ttl", "it is kept for this long from now, when that is later")
	cmd.Flags().Var(&to, "to", "it is kept until this, as in 2030-01-31T18:00:00Z")
	cmd.MarkFlagsOneRequired("ttl", "to")
	cmd.MarkFlagsMutuallyExclusive("ttl", "to")
	return a.onSnapshot(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Snapshot, error) {
		opts.To = time.Time(to)
		if ttl > 0 {
			opts.To = runtime.Manager.Now().Add(time.Duration(ttl))
		}
		return runtime.Manager.ExtendSnapshot(ctx, id, opts)
	})
}

// onSnapshot completes a command that takes the id of one snapshot and prints
// the snapshot that it then is.
func (a *app) onSnapshot(cmd *cobra.Command, act func(context.Context, *config.Runtime, string) (lifecycle.Snapshot, error)) *cobra.Command {
	cmd.Args = exactly("the id of a snapshot")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := snapshotID(args[0]); err != nil {
			return err
		}
		return a.use(func(runtime *config.Runtime) error {
			s, err := act(cmd.Context(), runtime, args[0])
			if err != nil {
				return err
			}
			return a.printSnapshot(s, runtime.Manager.Now())
		})
	}
	a.printsData(cmd)
	return cmd
}

// deletedSnapshot is what is printed about one that was deleted.
type deletedSnapshot struct {
	ID      string `json:"id"`
	Existed bool   `json:"existed"`
	// Forgotten is as in [lifecycle.DeleteSnapshotResult].
	Forgotten string `json:"forgotten,omitempty"`
	Error     string `json:"error,omitempty"`
}

func (a *app) snapshotDeleteCommand() *cobra.Command {
	var opts lifecycle.DeleteSnapshotOptions
	cmd := &cobra.Command{
		Use:     "delete SNAPSHOT…",
		Aliases: []string{"rm"},
		Short:   "Delete snapshots",
		Long:    "Delete snapshots. What was restored from them stays. Deleting what is not there succeeds.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("snapshot delete wants ids of snapshots")
			}
			return eachArgument(args, snapshotID)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.use(func(runtime *config.Runtime) error {
				deleted := make([]deletedSnapshot, len(args))
				failures := eachAtOnce(args, func(i int, id string) error {
					result, err := runtime.Manager.DeleteSnapshot(cmd.Context(), id, opts)
					deleted[i] = deletedSnapshot{ID: id, Existed: result.Existed, Forgotten: result.Forgotten}
					if err != nil {
						deleted[i].Error = printable(err.Error(), false)
					}
					return err
				})
				rows := [][]string{{"ID", "OUTCOME"}}
				for i, d := range deleted {
					said := outcome(d.Existed, failures[i])
					if d.Forgotten != "" {
						said = "forgotten"
						a.noteForgotten(d.ID, d.Forgotten)
					}
					rows = append(rows, []string{d.ID, said})
				}
				if err := a.print(oneOrAll(deleted, len(args) == 1), rows); err != nil {
					return err
				}
				return a.leftover(failures)
			})
		},
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	cmd.Flags().StringVar(&opts.Reason, "reason", "", "`TEXT` for the snapshot's log")
	unreachableFlag(cmd, &opts.OnUnreachable)
	a.printsData(cmd)
	return cmd
}
