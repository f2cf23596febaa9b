// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

func (a *app) execCommand() *cobra.Command {
	var opts lifecycle.ExecOptions
	var timeout durationFlag
	var env pairsFlag
	var interactive bool
	cmd := &cobra.Command{
		Use:   "exec ID [flags] -- COMMAND [ARGUMENT…]",
		Short: "Run a command in a sandbox",
		Long: "Run a command in a sandbox, with its output as it comes, and end with its exit code: 128+n when signal n ended it, " +
			"124 when the time-out did, 126 when the command is there and can not be executed, 127 when there is no such command in the sandbox, 1 when it could not be run.\n\n" +
			"stdin is the command's when it is not a terminal, or with -i.",
		Example: "  sandboxer exec sbx-0123456789abcdefghij -- sh -c 'uname -sr'\n  sandboxer exec sbx-0123456789abcdefghij --timeout 5m -- make test",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return usage("exec wants the id of a sandbox and, after --, a command")
			}
			return sandboxID(args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Command, opts.Env, opts.Timeout = args[1:], env.pairs, time.Duration(timeout)
			opts.Stdout, opts.Stderr = a.Stdout, a.Stderr
			if interactive || !isTerminal(a.Stdin) {
				opts.Stdin = a.Stdin
			}
			return a.use(func(runtime *config.Runtime) error {
				result, err := runtime.Manager.Exec(cmd.Context(), args[0], opts)
				switch {
				case err != nil:
					return err
				case result.TimedOut:
					return exitError{code: exitTimedOut, cause: fmt.Errorf("the command was ended in sandbox %s after %s", args[0], opts.Timeout)}
				case result.ExitCode != 0:
					return exitError{code: result.ExitCode}
				}
				return nil
			})
		},
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, whereItIs)
	flags.Var(&timeout, "timeout", "end the command and all that it started after this long")
	flags.StringVar(&opts.User, "user", "", "`USER` to run as: a name, a uid, or uid:gid (default: the profile's)")
	flags.StringVar(&opts.Workdir, "workdir", "", "working `DIR` in the sandbox (default: the profile's)")
	flags.Var(&env, "env", "environment variable, may be given several times")
	flags.BoolVarP(&interactive, "interactive", "i", false, "the terminal's input is the command's")
	return cmd
}
