// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/profile"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Options are what the command line stands on. Zero fields are the process's own.
type Options struct {
	Version  string
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Getenv   func(string) string
	Clock    clock.Clock
	Builtins map[string]func() sdk.Extension // extensions within this program, by name
}

// app is one run of the command line.
type app struct {
	Options
	file     string // --config
	fleet    string // --fleet
	stateDir string // --state-dir
	format   string // --output
	json     bool   // --json

	named string // backend that the command line names
	path  string // of the command that was meant: "sandboxer exec"
	began bool   // a verb has its arguments; what fails now is no misuse
}

// Run runs one command line and returns the exit code.
func Run(ctx context.Context, args []string, opts Options) int {
	if opts.Stdin == nil {
		opts.Stdin = os.Stdin
	}
	if opts.Stdout == nil {
		opts.Stdout = os.Stdout
	}
	if opts.Stderr == nil {
		opts.Stderr = os.Stderr
	}
	if opts.Getenv == nil {
		opts.Getenv = os.Getenv
	}
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	a := &app{Options: opts}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(opts.Stdin)
	root.SetOut(opts.Stdout)
	root.SetErr(opts.Stderr)
	meant, err := root.ExecuteContextC(ctx)
	a.path = meant.CommandPath()
	if err != nil && !a.began && !errors.As(err, new(exitError)) {
		err = usage("%w", err)
	}
	return a.report(err)
}

const exitCodes = `Exit codes:
  0    done
  1    failed
  2    the command line is not right
  3    something was left: a destroy that left things, a sweep with failures (what reap --dry-run finds is no failure),
       leaks, a valid receipt of a scope that was not empty, a profile whose checks have not all passed
  124  timed out: exec and wait with --timeout
exec passes the exit code of its command through.`

// environment describes the variables, from the schema of the configuration.
func environment() string {
	text := "Settings come from /etc/sandboxer/sandboxer.hcl, $XDG_CONFIG_HOME/sandboxer/sandboxer.hcl, ./sandboxer.hcl, the\n" +
		"environment, --config and the flags; the later ones win.\n\nEnvironment:\n"
	for _, attribute := range config.Attributes() {
		if attribute.Env != "" {
			text += fmt.Sprintf("  %-23s %s\n", attribute.Env, attribute.Name)
		}
	}
	for _, variable := range [][2]string{
		{"SANDBOXER_CONFIG", "configuration file"}, {"SANDBOXER_EXTENSION_DIR", "directories of extensions"}, {"SANDBOXER_LOG", "level of the log on stderr: debug, info, warn"},
	} {
		text += fmt.Sprintf("  %-23s %s\n", variable[0], variable[1])
	}
	return strings.TrimSuffix(text, "\n")
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sandboxer",
		Short: "Sandboxes that end by themselves",
		Long: "sandboxer makes isolated, bounded, attributable environments, and makes sure that they end.\n\n" +
			"The same sandboxes are resources of the Terraform provider of the same name.\n\n" + exitCodes + "\n\n" + environment(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: a.begin,
		RunE:              group,
		Args:              cobra.ArbitraryArgs,
	}
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&a.file, "config", "", "configuration `FILE` that overrides all others")
	flags.StringVar(&a.fleet, "fleet", "", "`NAME` of the fleet: nothing of another is listed or touched")
	flags.StringVar(&a.stateDir, "state-dir", "", "`DIR` of the ledger and of the embedded backend's sandboxes")
	root.AddCommand(
		a.createCommand(), a.listCommand(), a.getCommand(), a.explainCommand(), a.execCommand(), a.cpCommand(), a.logsCommand(), a.forwardCommand(), a.waitCommand(),
		a.extendCommand(), a.expireCommand(), a.pauseCommand(), a.resumeCommand(), a.snapshotCommand(), a.restoreCommand(),
		a.destroyCommand(), a.reapCommand(), a.leaksCommand(), a.receiptCommand(), a.profileCommand(), a.backendCommand(), a.extensionCommand(), a.versionCommand(),
	)
	a.mark(root)
	a.completes(root)
	return root
}

// flagError says which flag was meant. It leaves the value out of what is said about a secret: it may be
// the secret itself.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if !flag.Hidden {
				known = append(known, "--"+flag.Name)
			}
		})
		return usage("%w%s", err, sandbox.DidYouMean("--"+unknown.GetSpecifiedName(), known))
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if flag := invalid.GetFlag(); flag.Value.Type() == secretsType {
			return usage("--%s: %w", flag.Name, errors.Unwrap(invalid))
		}
	}
	return usage("%w", err)
}

// mark notes when a verb begins: the command line's library checks flags up to
// that point, and what it finds is misuse.
func (a *app) mark(cmd *cobra.Command) {
	if verb := cmd.RunE; verb != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.began = true
			return verb(cmd, args)
		}
	}
	for _, child := range cmd.Commands() {
		a.mark(child)
	}
}

// begin checks what holds for every verb.
func (a *app) begin(cmd *cobra.Command, _ []string) error {
	if a.json {
		if cmd.Flags().Changed("output") && a.format != formatJSON {
			return usage("--json and --output %s contradict each other", a.format)
		}
		a.format = formatJSON
	}
	if flag := cmd.Flags().Lookup("backend"); flag != nil {
		a.named = flag.Value.String()
	}
	if flag := cmd.Flags().Lookup("output"); flag != nil && a.format != formatJSON && a.format != formatTable {
		return usage("--output %q is not one of table, json", a.format)
	}
	return nil
}

// group is what a command does that only has commands below it.
func group(cmd *cobra.Command, args []string) error {
	var names []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	if len(args) > 0 {
		return usage("unknown command %q of %s%s", args[0], cmd.CommandPath(), sandbox.DidYouMean(args[0], names))
	}
	return usage("%s wants one of the commands %s", cmd.CommandPath(), strings.Join(names, ", "))
}

// config reads the configuration, flags on top.
func (a *app) config() (config.Config, error) {
	loaded, err := config.Load(config.LoadOptions{File: a.file, Getenv: a.Getenv})
	if err != nil {
		return config.Config{}, err
	}
	flags := config.Config{Fleet: a.fleet}
	if a.stateDir != "" {
		if flags.StateDir, err = absolute(a.stateDir); err != nil {
			return config.Config{}, err
		}
	}
	return config.Merge(loaded, flags).With(a.named), nil
}

// open puts the configuration to work; the caller closes it with [app.close].
func (a *app) open() (*config.Runtime, error) {
	loaded, err := a.config()
	if err != nil {
		return nil, err
	}
	return config.Open(loaded, config.Options{Clock: a.Clock, Getenv: a.Getenv, Builtins: a.Builtins, Logger: a.logger()})
}

// use runs a verb with the configuration at work.
func (a *app) use(act func(*config.Runtime) error) error {
	runtime, err := a.open()
	if err != nil {
		return err
	}
	err = act(runtime)
	if closing := runtime.Close(); err == nil {
		err = closing
	} else if closing != nil {
		a.note("warning: %s", closing)
	}
	return err
}

// store returns where profile names resolve.
func (a *app) store(c config.Config) profile.Store {
	return profile.Store{Dirs: c.ProfileStore(a.Getenv)}
}
