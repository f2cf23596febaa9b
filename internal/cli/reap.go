// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/evidence"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/reap"
)

func (a *app) reapCommand() *cobra.Command {
	var opts reap.Options
	var every durationFlag
	var dryRun bool
	var receipt string
	cmd := &cobra.Command{
		Use:   "reap",
		Short: "Remove what is past its time",
		Long: "Remove the sandboxes of the fleet that are past their deadline, destroys that did not end, and snapshots past their " +
			"retention. What is extended meanwhile stays. One that fails stops no other; the exit code is then 3, as it is when " +
			"a backend could not be asked. With --dry-run, what was found is no failure: the code is 0.\n\n" +
			"With --every it goes on until it is told to end; with JSON it prints one line for each sweep.\n\n" + receiptHelp,
		Example: "  sandboxer reap --dry-run\n  sandboxer reap --receipt reaped.json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Max < 0 {
				return usage("--max %d is less than zero", opts.Max)
			}
			return a.use(func(runtime *config.Runtime) error {
				reaper := reap.New(runtime.Manager, runtime.Ledger)
				switch {
				case dryRun:
					selection, err := reaper.Plan(cmd.Context(), opts)
					if err != nil {
						return err
					}
					return a.printSelection(selection, runtime.Manager.Now())
				case every > 0:
					return a.reapEvery(cmd.Context(), reaper, time.Duration(every), opts, runtime)
				}
				scope := evidence.Scope{
					Verb: evidence.VerbReap, Fleet: runtime.Manager.Fleet(), Backend: opts.Backend, Due: true,
					Kinds: []string{evidence.KindSandbox, evidence.KindSnapshot},
				}
				return a.witnessed(cmd.Context(), receipt, runtime, scope, func(r *evidence.Receipt) error {
					return a.reapOnce(cmd.Context(), reaper, opts, runtime, r)
				}, func(ctx context.Context, r *evidence.Receipt) error {
					return stillDue(ctx, reaper, opts, r)
				})
			})
		},
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, allOfThem)
	flags.BoolVar(&dryRun, "dry-run", false, "only show what would be removed")
	flags.Var(&every, "every", "sweep again after this long, until told to end")
	flags.IntVar(&opts.Max, "max", 0, "at most this `NUMBER` in one sweep, the longest overdue first (default: all)")
	receiptFlag(cmd, &receipt)
	cmd.MarkFlagsMutuallyExclusive("dry-run", "every", "receipt")
	a.printsData(cmd)
	return cmd
}

// reapOnce sweeps once and notes for the receipt what became of what was due.
func (a *app) reapOnce(ctx context.Context, reaper *reap.Reaper, opts reap.Options, runtime *config.Runtime, receipt *evidence.Receipt) error {
	report, err := reaper.Sweep(ctx, opts)
	receipt.Missed(report.Unreachable, report.Unreadable)
	for _, result := range report.Results {
		receipt.Items = append(receipt.Items, evidence.Item{
			Kind: result.Kind, ID: result.ID, Backend: result.Backend, Outcome: result.Outcome, Detail: result.Detail,
		})
	}
	if printing := a.printReport(report, runtime.Manager.Now()); printing != nil {
		return printing
	}
	if err != nil {
		return err
	}
	return unclean(report)
}

// stillDue notes what is due after a sweep, also what was over its bound.
func stillDue(ctx context.Context, reaper *reap.Reaper, opts reap.Options, receipt *evidence.Receipt) error {
	selection, err := reaper.Plan(ctx, reap.Options{Backend: opts.Backend})
	receipt.Missed(selection.Unreachable, selection.Unreadable)
	for _, item := range selection.Items {
		receipt.Remaining = append(receipt.Remaining, evidence.Item{Kind: item.Kind, ID: item.ID, Backend: item.Backend, Status: item.Reason})
	}
	return err
}

// reapEvery sweeps until it is told to end, which is no failure.
func (a *app) reapEvery(ctx context.Context, reaper *reap.Reaper, every time.Duration, opts reap.Options, runtime *config.Runtime) error {
	var printing error
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err := reaper.Every(ctx, every, opts, func(report reap.Report, err error) {
		if err != nil {
			a.note("error: %s", explain(err, runtime.Manager.Now()))
		}
		if a.format == formatJSON {
			// One line for each sweep, so that a reader needs no end.
			printing = json.NewEncoder(a.Stdout).Encode(report)
		} else if len(report.Results) > 0 || !report.Clean() {
			printing = a.printReport(report, runtime.Manager.Now())
		}
		if printing != nil {
			stop()
		}
	})
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(printing, err)
}

func (a *app) printSelection(selection reap.Selection, now time.Time) error {
	a.noteIncomplete(selection.Unreachable, selection.Unreadable)
	rows := [][]string{{"ID", "KIND", "REASON", "PROFILE", "BACKEND", "EXPIRED", "OWNER"}}
	for _, item := range selection.Items {
		rows = append(rows, []string{item.ID, item.Kind, item.Reason, item.Profile, item.Backend, when(item.ExpiresAt, now), item.Owner})
	}
	if selection.Postponed > 0 {
		a.note("%d more are due and over the bound", selection.Postponed)
	}
	if err := a.print(selection, rows); err != nil {
		return err
	}
	if len(selection.Unreachable)+len(selection.Unreadable) > 0 {
		return exitError{code: exitLeft}
	}
	return nil
}

func (a *app) printReport(report reap.Report, now time.Time) error {
	a.noteIncomplete(report.Unreachable, report.Unreadable)
	rows := [][]string{{"ID", "KIND", "REASON", "PROFILE", "BACKEND", "EXPIRED", "OUTCOME"}}
	for _, result := range report.Results {
		rows = append(rows, []string{result.ID, result.Kind, result.Reason, result.Profile, result.Backend, when(result.ExpiresAt, now), result.Outcome})
		if result.Detail != "" {
			a.note("%s: %s: %s", result.ID, result.Outcome, result.Detail)
		}
	}
	if report.PruneError != "" {
		a.note("warning: old logs could not be removed: %s", report.PruneError)
	}
	if report.Postponed > 0 {
		a.note("%d more are due and over the bound", report.Postponed)
	}
	summary := fmt.Sprintf("%d removed, %d were gone, %d skipped, %d failed", report.Removed, report.Gone, report.Skipped, report.Failed)
	if report.Unverifiable > 0 {
		summary += fmt.Sprintf(", %d could not be seen gone", report.Unverifiable)
	}
	a.note("%s", summary)
	return a.print(report, rows)
}

// unclean is the exit code of a sweep that left something; it has been said.
func unclean(report reap.Report) error {
	if report.Clean() {
		return nil
	}
	return exitError{code: exitLeft}
}
