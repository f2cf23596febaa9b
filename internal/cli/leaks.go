// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/evidence"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/reap"
)

func (a *app) leaksCommand() *cobra.Command {
	var backend, receipt string
	cmd := &cobra.Command{
		Use:   "leaks",
		Short: "Hold the ledger against the backends' own listings",
		Long: "Hold the ledger against the backends' own listings, in both directions, and change nothing. What differs is shown with how:\n\n" +
			"  unknown     a backend holds it, and this ledger has no record of it\n" +
			"  lost        the ledger holds it open, and the backend does not have it\n" +
			"  reappeared  the ledger says that it was seen gone, and a backend lists it\n" +
			"  overdue     it is past its deadline or retention, or its destroy has not ended\n\n" +
			"The exit code is 3 when anything differs or could not be asked. Reap removes what is overdue, and what reappeared or is " +
			"unknown once its deadline has passed; destroy removes it now.\n\n" + leaksReceiptHelp,
		Example: "  sandboxer leaks\n  sandboxer leaks --receipt clean.json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.use(func(runtime *config.Runtime) error {
				scope := evidence.Scope{
					Verb: evidence.VerbLeaks, Fleet: runtime.Manager.Fleet(), Backend: backend,
					Kinds: []string{evidence.KindSandbox, evidence.KindSnapshot},
				}
				return a.witnessed(cmd.Context(), receipt, runtime, scope, func(r *evidence.Receipt) error {
					return a.leaks(cmd.Context(), runtime, backend, r)
				}, nothingMore)
			})
		},
	}
	backendFlag(cmd, &backend, allOfThem)
	receiptFlag(cmd, &receipt)
	a.printsData(cmd)
	return cmd
}

const leaksReceiptHelp = "--receipt writes a signed statement of what was found and of what could not be enumerated. " +
	"`sandboxer receipt verify` reads it."

// nothingMore is the look after a look.
func nothingMore(context.Context, *evidence.Receipt) error { return nil }

// leaks prints what differs and notes it for the receipt.
func (a *app) leaks(ctx context.Context, runtime *config.Runtime, backend string, receipt *evidence.Receipt) error {
	leaks, err := reap.New(runtime.Manager, runtime.Ledger).Leaks(ctx, backend)
	receipt.Missed(leaks.Unreachable, leaks.Unreadable)
	if err != nil {
		for _, name := range receipt.Asked {
			receipt.Missed(map[string]string{name: err.Error()}, nil)
		}
		return err
	}
	for _, item := range leaks.Items {
		receipt.Remaining = append(receipt.Remaining, evidence.Item{Kind: item.Kind, ID: item.ID, Backend: item.Backend, Status: item.Reason})
	}
	if err := a.printLeaks(leaks, runtime.Manager.Now()); err != nil {
		return err
	}
	if !leaks.Clean() {
		return exitError{code: exitLeft}
	}
	return nil
}

func (a *app) printLeaks(leaks reap.Leaks, now time.Time) error {
	a.noteIncomplete(leaks.Unreachable, leaks.Unreadable)
	for _, name := range sortedKeys(leaks.Untold) {
		a.note("warning: backend %s holds what it can't tell about: %s", name, strings.Join(leaks.Untold[name], ", "))
	}
	if leaks.Clean() && a.format == formatTable {
		a.note("fleet %q: the ledger and the backends agree", leaks.Fleet)
	}
	rows := [][]string{{"ID", "KIND", "LEAK", "PROFILE", "BACKEND", "EXPIRES", "OWNER"}}
	for _, item := range leaks.Items {
		rows = append(rows, []string{item.ID, item.Kind, item.Reason, item.Profile, item.Backend, when(item.ExpiresAt, now), item.Owner})
	}
	return a.print(leaks, rows)
}
