// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/evidence"
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
	var receipt string
	cmd := &cobra.Command{
		Use:   "destroy ID… | --all",
		Short: "Remove sandboxes",
		Long: "Remove sandboxes, from whatever status, and end when their absence was observed. Removing what is not there succeeds; " +
			"what could not be removed is named, and the exit code is 3.\n\n" +
			"--all removes every sandbox of the fleet, or those that --owner, --profile, --task, --run and --label leave of them.\n\n" +
			receiptHelp + " The look asks every backend, or the one of --backend.",
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
				if dryRun {
					_, err := a.selected(cmd.Context(), runtime, selection, made, func(list []lifecycle.Sandbox) error {
						return a.printSandboxes(list, runtime, false)
					})
					return err
				}
				scope := evidence.Scope{
					Verb: evidence.VerbDestroy, Fleet: runtime.Manager.Fleet(), Kinds: []string{evidence.KindSandbox}, Backend: opts.Backend,
					IDs: args, Owner: selection.Owner, Profile: selection.Profile, Task: made.task, Run: made.run, Labels: selection.Labels,
				}
				return a.witnessed(cmd.Context(), receipt, runtime, scope, func(r *evidence.Receipt) error {
					if !all {
						return a.destroy(cmd.Context(), runtime, args, opts, len(args) == 1, r)
					}
					unreachable, err := a.selected(cmd.Context(), runtime, selection, made, func(list []lifecycle.Sandbox) error {
						ids := make([]string, len(list))
						for i, s := range list {
							ids[i] = s.ID
						}
						return a.destroy(cmd.Context(), runtime, ids, opts, false, r)
					})
					r.Missed(unreachable, nil)
					if err == nil && len(unreachable) > 0 {
						err = left("not every backend could be asked: more may be there")
					}
					return err
				}, func(ctx context.Context, r *evidence.Receipt) error {
					list, err := runtime.Manager.List(ctx, selection)
					r.Missed(list.Unreachable, list.Unreadable)
					remain(r, slices.DeleteFunc(made.of(list.Sandboxes), func(s lifecycle.Sandbox) bool {
						return !all && !slices.Contains(args, s.ID)
					}))
					return err
				})
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
	unreachableFlag(cmd, &opts.OnUnreachable)
	receiptFlag(cmd, &receipt)
	cmd.MarkFlagsMutuallyExclusive("dry-run", "receipt")
	a.printsData(cmd)
	return cmd
}

// selected acts on what the filters leave, and returns the backends that
// could not be asked.
func (a *app) selected(
	ctx context.Context, runtime *config.Runtime, selection lifecycle.ListOptions, made madeFor, act func([]lifecycle.Sandbox) error,
) (map[string]string, error) {
	list, err := runtime.Manager.List(ctx, selection)
	if err != nil {
		return nil, err
	}
	a.noteIncomplete(list.Unreachable, list.Unreadable)
	return list.Unreachable, act(made.of(list.Sandboxes))
}

// destroy removes sandboxes, prints what became of each and notes it for the
// receipt.
func (a *app) destroy(
	ctx context.Context, runtime *config.Runtime, ids []string, opts lifecycle.DestroyOptions, one bool, receipt *evidence.Receipt,
) error {
	results := make([]destroyed, len(ids))
	failures := eachAtOnce(ids, func(i int, id string) error {
		result, err := runtime.Manager.Destroy(ctx, id, opts)
		results[i] = destroyed{DestroyResult: result}
		if err != nil {
			results[i].Error = printable(err.Error(), false)
		}
		return err
	})
	rows := [][]string{{"ID", "BACKEND", "OUTCOME"}}
	for i, r := range results {
		said := outcome(r.Existed, failures[i])
		if r.Forgotten != "" {
			said = "forgotten"
			a.noteForgotten(r.ID, r.Forgotten)
		}
		if r.Unverifiable != "" {
			said = "expired, unverifiable"
			a.note("warning: that %s is gone could not be observed: %s", r.ID, r.Unverifiable)
		}
		rows = append(rows, []string{r.ID, r.Backend, said})
		receipt.Items = append(receipt.Items, witnessedDestroy(r, failures[i]))
	}
	if err := a.print(oneOrAll(results, one), rows); err != nil {
		return err
	}
	return a.leftover(failures)
}

// witnessedDestroy is what a receipt says of one destroy.
func witnessedDestroy(r destroyed, err error) evidence.Item {
	item := evidence.Item{Kind: evidence.KindSandbox, ID: r.ID, Backend: r.Backend, Outcome: evidence.OutcomeGone}
	switch {
	case err != nil:
		item.Outcome, item.Detail = evidence.OutcomeFailed, err.Error()
	case r.Unverifiable != "", r.Forgotten != "":
		item.Outcome, item.Detail = evidence.OutcomeUnverifiable, r.Unverifiable+r.Forgotten
	case r.Existed:
		item.Outcome = evidence.OutcomeRemoved
	}
	return item
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

// unreachableFlag adds the choice for backends that can't be reached.
func unreachableFlag(cmd *cobra.Command, into *lifecycle.OnUnreachable) {
	cmd.Flags().Func("on-unreachable", "when the backend can't be reached: `CHOICE` of fail, or forget, which leaves a record for reap (default: on_unreachable of the configuration)", func(text string) error {
		*into = lifecycle.OnUnreachable(text)
		return into.Check()
	})
}

func (a *app) noteForgotten(id, why string) {
	a.note("warning: %s was given up and may live until its deadline; `sandboxer reap` goes on with it once its backend can be reached: %s", id, why)
}
