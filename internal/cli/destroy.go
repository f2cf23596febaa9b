// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

// atOnce is how many objects a command works on at a time.
const atOnce = 8

// destroyed is what is printed about one sandbox.
type destroyed struct {
	lifecycle.DestroyResult
	Error string `json:"error,omitempty"`
}

func (a *app) destroyCommand() *cobra.Command {
	var opts lifecycle.DestroyOptions
	var selection lifecycle.ListOptions
	var made madeFor
	var all, dryRun bool
	var labels pairsFlag
	cmd := &cobra.Command{
		Use:   "destroy ID… | --all",
		Short: "Remove sandboxes",
		Long: "Remove sandboxes, from whatever status, and end when their absence was observed. Removing what is not there succeeds; " +
			"what could not be removed is named, and the exit code is 3.\n\n" +
			"--all removes every sandbox of the fleet, or those that --owner, --profile, --task, --run and --label leave of them.",
		Example: "  sandboxer destroy sbx-0123456789abcdefghij\n  sandboxer destroy --all --owner payments --dry-run",
		Args: func(cmd *cobra.Command, args []string) error {
			for _, filter := range []string{"owner", "profile", "task", "run", "label", "dry-run"} {
				if !all && cmd.Flags().Changed(filter) {
					return usage("--%s goes with --all", filter)
				}
			}
			if (len(args) == 0) != all {
				return usage("destroy wants ids of sandboxes, or --all")
			}
			return eachArgument(args, sandboxID)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			selection.Backend, selection.Labels = opts.Backend, labels.pairs
			return a.use(func(runtime *config.Runtime) error {
				if !all {
					return a.destroy(cmd, runtime, args, opts, len(args) == 1)
				}
				list, err := runtime.Manager.List(cmd.Context(), selection)
				if err != nil {
					return err
				}
				list.Sandboxes = made.of(list.Sandboxes)
				a.noteIncomplete(list.Unreachable, list.Unreadable)
				if dryRun {
					return a.printSandboxes(list.Sandboxes, runtime, false)
				}
				ids := make([]string, len(list.Sandboxes))
				for i, s := range list.Sandboxes {
					ids[i] = s.ID
				}
				if err := a.destroy(cmd, runtime, ids, opts, false); err != nil {
					return err
				}
				if len(list.Unreachable) > 0 {
					return left("not every backend could be asked: more may be there")
				}
				return nil
			})
		},
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, whereItIs)
	flags.BoolVar(&all, "all", false, "every sandbox of the fleet that the filters leave")
	flags.BoolVar(&dryRun, "dry-run", false, "with --all: only show what would be removed")
	flags.StringVar(&selection.Owner, "owner", "", "with --all: only of the owner `NAME`")
	flags.StringVar(&selection.Profile, "profile", "", "with --all: only of the profile `NAME`")
	made.flags(cmd, "with --all: ")
	flags.Var(&labels, "label", "with --all: only with this label, may be given several times")
	flags.StringVar(&opts.Reason, "reason", "", "`TEXT` for the sandbox's log")
	a.printsData(cmd)
	return cmd
}

// destroy removes sandboxes and prints what became of each.
func (a *app) destroy(cmd *cobra.Command, runtime *config.Runtime, ids []string, opts lifecycle.DestroyOptions, one bool) error {
	results := make([]destroyed, len(ids))
	failures := eachAtOnce(ids, func(i int, id string) error {
		result, err := runtime.Manager.Destroy(cmd.Context(), id, opts)
		results[i] = destroyed{DestroyResult: result}
		if err != nil {
			results[i].Error = printable(err.Error(), false)
		}
		return err
	})
	rows := [][]string{{"ID", "BACKEND", "OUTCOME"}}
	for i, r := range results {
		said := outcome(r.Existed, failures[i])
		if r.Unverifiable != "" {
			said = "expired, unverifiable"
			a.note("warning: that %s is gone could not be observed: %s", r.ID, r.Unverifiable)
		}
		rows = append(rows, []string{r.ID, r.Backend, said})
	}
	if err := a.print(oneOrAll(results, one), rows); err != nil {
		return err
	}
	return a.leftover(failures)
}

// leftover says which objects are left, each with its reason.
func (a *app) leftover(failures []error) error {
	if err := errors.Join(failures...); err != nil {
		return left("%w", err)
	}
	return nil
}

func outcome(existed bool, err error) string {
	switch {
	case err != nil:
		return "left"
	case existed:
		return "removed"
	}
	return "was gone"
}

// oneOrAll returns what JSON shows: one object for one thing, else an array.
func oneOrAll[T any](list []T, one bool) any {
	if one {
		return list[0]
	}
	return list
}

func eachArgument(args []string, check func(string) error) error {
	for _, arg := range args {
		if err := check(arg); err != nil {
			return err
		}
	}
	return nil
}

// eachAtOnce works on several objects at a time. One that fails stops no
// other; the errors are in the order of the objects.
func eachAtOnce(ids []string, act func(int, string) error) []error {
	failures := make([]error, len(ids))
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, id := range ids {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			failures[i] = act(i, id)
		})
	}
	wg.Wait()
	return failures
}
