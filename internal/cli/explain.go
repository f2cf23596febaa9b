// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

func (a *app) explainCommand() *cobra.Command {
	var opts lifecycle.GetOptions
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "Tell why a sandbox is alive, or why it died",
		Long: "Tell why a sandbox is alive, or why it died: which of its clocks ends it and when, what guards it, what ended it, and the events of " +
			"its log. It works for as long as the log is kept, a week after the end. Looking at a sandbox never renews it.",
		Example: "  sandboxer explain sbx-0dfbp5n9h3l6v8e2k1qa",
		Args:    exactly("the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := sandboxID(args[0]); err != nil {
				return err
			}
			return a.use(func(runtime *config.Runtime) error {
				e, err := runtime.Manager.Explain(cmd.Context(), args[0], opts)
				if err != nil {
					return err
				}
				return a.printExplanation(e, runtime.Manager.Now())
			})
		},
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	a.printsData(cmd)
	return cmd
}

// printExplanation prints the answer, and then what it rests on.
func (a *app) printExplanation(e lifecycle.Explanation, now time.Time) error {
	if a.format == formatTable {
		if err := writeAll(a.Stdout, printable(e.Summary, false)+"\n\n"); err != nil {
			return err
		}
	}
	rows := [][]string{{"TIME", "EVENT", "REASON", "ACTOR", "MESSAGE"}}
	for _, event := range e.Events {
		rows = append(rows, []string{event.Time.UTC().Format(time.RFC3339), string(event.Type), cmp.Or(event.Reason, "-"), cmp.Or(event.Actor, "-"), event.Message})
	}
	if err := a.print(e, rows); err != nil || a.format != formatTable || !e.Alive {
		return err
	}
	return writeAll(a.Stdout, "\nENDS  "+moment(e.EndsAt, now)+" by "+string(e.EndsBy)+", then "+string(e.OnExpiry)+"; guards: "+guards(e.Guards)+"\n")
}
