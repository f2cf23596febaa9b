// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/evidence"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) profileVerifyCommand() *cobra.Command {
	var opts lifecycle.VerifyOptions
	var validFor durationFlag
	var receipt string
	cmd := &cobra.Command{
		Use:   "verify NAME|FILE",
		Short: "Find out whether a profile's sandboxes are shut off from credentials",
		Long: "Find out whether a profile's sandboxes are shut off from credentials.\n\n" +
			"It makes a sandbox of the profile, looks at it from outside (what the backend says of it) and from inside (what a command of " +
			"its user finds), and removes it again. Each check is passed, failed or unknown; one that could not be made is never passed. " +
			"What is shown as evidence holds names and places, and no secret value. From inside, connections to the addresses where clouds " +
			"and container engines answer are tried, and nothing is sent over them.\n\n" +
			"The verdict is kept in the state directory for exactly this revision of the profile, this version of the extension and this " +
			"engine, machine or account. A profile with `requires = { credential_isolation = \"enforced\" }` is refused where there is no " +
			"verdict that has passed and has not expired. An image that is named by a tag can change under a verdict: name it by its digest.\n\n" +
			"The exit code is 0 when every check has passed, 3 when one has failed or could not be told, 1 when no verdict was reached.\n\n" +
			receiptHelp,
		Example: "  sandboxer profile verify ./agent.yaml --backend docker\n  sandboxer profile verify agent --valid-for 168h --receipt verified.json",
		Args:    exactly("the name or the file of a profile"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Life = time.Duration(validFor); opts.Life > evidence.MaxIsolationLife {
				return usage("--valid-for %s is longer than %s", opts.Life, evidence.MaxIsolationLife)
			}
			return a.use(func(runtime *config.Runtime) error {
				var err error
				if opts.Profile, err = a.store(runtime.Config).Load(args[0]); err != nil {
					return err
				}
				if opts.Backend, err = runtime.Manager.BackendName(opts.Backend); err != nil {
					return err
				}
				scope := evidence.Scope{
					Verb: evidence.VerbVerify, Fleet: runtime.Manager.Fleet(), Kinds: []string{evidence.KindSandbox}, Backend: opts.Backend,
					Profile: opts.Profile.Name, Task: lifecycle.VerifyTask,
				}
				return a.witnessed(cmd.Context(), receipt, runtime, scope, func(r *evidence.Receipt) error {
					return a.verify(cmd.Context(), runtime, opts, r)
				}, func(ctx context.Context, r *evidence.Receipt) error {
					list, err := runtime.Manager.List(ctx, lifecycle.ListOptions{Backend: scope.Backend, Profile: scope.Profile})
					r.Missed(list.Unreachable, list.Unreadable)
					remain(r, slices.DeleteFunc(list.Sandboxes, func(s lifecycle.Sandbox) bool { return s.Task != scope.Task }))
					return err
				})
			})
		},
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, theDefault)
	flags.Var(&validFor, "valid-for", "how long the verdict holds, at most 720h (default 24h)")
	receiptFlag(cmd, &receipt)
	a.printsData(cmd)
	return cmd
}

// verify verifies a profile, prints the verdict and notes it for the receipt.
func (a *app) verify(ctx context.Context, runtime *config.Runtime, opts lifecycle.VerifyOptions, receipt *evidence.Receipt) error {
	bar := a.progress()
	opts.Progress = bar.told
	made := ""
	opts.Created = func(s lifecycle.Sandbox) {
		made = s.ID
		bar.told(sdk.Progress{Phase: "verify", Message: s.ID})
	}
	result, err := runtime.Manager.Verify(ctx, opts)
	bar.done()
	if made != "" {
		item := evidence.Item{Kind: evidence.KindSandbox, ID: made, Backend: opts.Backend, Outcome: evidence.OutcomeRemoved}
		if result.Sandbox.ID != "" && err != nil {
			item.Outcome, item.Detail = evidence.OutcomeFailed, err.Error()
		}
		receipt.Items = append(receipt.Items, item)
	}
	if err != nil {
		if result.Sandbox.ID != "" && !errors.Is(err, context.Canceled) {
			return left("%w", err)
		}
		return err
	}
	receipt.Isolation = &result.Isolation
	if err := a.printVerdict(result.Isolation, runtime.Manager.Now()); err != nil {
		return err
	}
	if result.Verdict != sdk.VerdictPassed {
		return exitError{code: exitLeft}
	}
	return nil
}

func (a *app) printVerdict(v evidence.Isolation, now time.Time) error {
	said := facts(
		"VERDICT", string(v.Verdict),
		"PROFILE", v.Profile+"@"+shortRevision(v.Revision),
		"BACKEND", v.Backend+" ("+v.Instance+")",
		"VALID UNTIL", moment(v.ExpiresAt, now),
	)
	rows := [][]string{{"CHECK", "VERDICT", "FROM", "EVIDENCE"}}
	for _, check := range v.Checks {
		for _, f := range check.Findings {
			rows = append(rows, []string{string(check.Check), string(f.Verdict), string(f.Side), strings.Join(f.Evidence, "; ")})
		}
	}
	return a.print(v, said, rows)
}
