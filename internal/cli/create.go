// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// making are the flags of the verbs that make a sandbox.
type making struct {
	backend     string
	ttl         durationFlag
	onExpiry    string
	idle        durationFlag
	keep        durationFlag
	paused      durationFlag
	onFailed    string
	env         pairsFlag
	secrets     secretsFlag
	labels      pairsFlag
	attribution sandbox.Attribution
	quiet       bool
}

func (a *app) makes(cmd *cobra.Command, m *making, otherwise string) {
	flags := cmd.Flags()
	backendFlag(cmd, &m.backend, otherwise)
	flags.Var(&m.ttl, "ttl", "how long it lives (default: the profile's, then the configured one)")
	flags.StringVar(&m.onExpiry, "on-expiry", "", "`CHOICE` of what happens at the end: destroy, snapshot or pause (default: the profile's)")
	flags.Var(&m.idle, "idle-timeout", "it ends earlier when it is not used for this long (default: the profile's)")
	flags.Var(&m.keep, "expiry-snapshot-ttl", "how long the snapshot of --on-expiry snapshot is kept (default: the profile's, then a week)")
	flags.Var(&m.paused, "paused-ttl", "how long it is kept once --on-expiry pause has paused it (default: the profile's, then a day)")
	flags.StringVar(&m.onFailed, "on-failed", lifecycle.OnFailedDestroy, "`CHOICE` of what happens when it does not become ready: destroy or keep")
	flags.Var(&m.env, "env", "environment variable, may be given several times")
	flags.Var(&m.secrets, "secret", "secret file /run/secrets/NAME: its value from the variable NAME, from FILE, or from stdin; may be given several times")
	flags.Var(&m.labels, "label", "label, may be given several times")
	attributionFlags(cmd, &m.attribution)
	flags.BoolVarP(&m.quiet, "quiet", "q", false, "print nothing but the id")
	a.printsData(cmd)
}

// options returns what the flags ask for.
func (m *making) options(a *app) (lifecycle.CreateOptions, error) {
	if m.onFailed != lifecycle.OnFailedDestroy && m.onFailed != lifecycle.OnFailedKeep {
		return lifecycle.CreateOptions{}, usage("--on-failed %q is not one of destroy, keep", m.onFailed)
	}
	switch sdk.OnExpiry(m.onExpiry) {
	case "", sdk.OnExpiryDestroy, sdk.OnExpirySnapshot, sdk.OnExpiryPause:
	default:
		return lifecycle.CreateOptions{}, usage("--on-expiry %q is not one of destroy, snapshot, pause", m.onExpiry)
	}
	secrets, err := m.secrets.read(a)
	return lifecycle.CreateOptions{
		Backend: m.backend, TTL: time.Duration(m.ttl), OnFailed: m.onFailed,
		End: sandbox.End{
			OnExpiry: sdk.OnExpiry(m.onExpiry), IdleTimeout: time.Duration(m.idle),
			ExpirySnapshotTTL: time.Duration(m.keep), PausedTTL: time.Duration(m.paused),
		},
		Env: m.env.pairs, Secrets: secrets, Labels: m.labels.pairs, Attribution: m.attribution,
	}, err
}

func (a *app) createCommand() *cobra.Command {
	var m making
	var from string
	cmd := &cobra.Command{
		Use:   "create --profile NAME|FILE",
		Short: "Make a sandbox and wait until it is ready",
		Long: "Make a sandbox from a profile and wait until it is ready.\n\n" +
			"A profile is a name (`sandboxer profile list`) or a file in YAML, JSON or HCL. One that does not become ready in time is " +
			"removed again, and the exit code is 1.",
		Example: "  sandboxer create --profile shell --ttl 30m\n  sandboxer create --profile ./e2e.yaml --secret TOKEN=@token.txt --label suite=checkout",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := m.options(a)
			if err != nil {
				return err
			}
			return a.use(func(runtime *config.Runtime) error {
				if opts.Profile, err = a.store(runtime.Config).Load(from); err != nil {
					return err
				}
				return a.make(cmd, runtime, opts, m.quiet)
			})
		},
	}
	cmd.Flags().StringVar(&from, "profile", "", "`NAME` or file of the profile")
	_ = cmd.MarkFlagRequired("profile") // fails only for a flag that is not there
	a.makes(cmd, &m, theDefault)
	return cmd
}

// make creates a sandbox and prints it.
func (a *app) make(cmd *cobra.Command, runtime *config.Runtime, opts lifecycle.CreateOptions, quiet bool) error {
	bar := a.progress()
	opts.Progress = bar.told
	opts.Created = func(s lifecycle.Sandbox) { bar.told(sdk.Progress{Phase: "start", Message: s.ID}) }
	s, err := runtime.Manager.Create(cmd.Context(), opts)
	bar.done()
	if err != nil {
		return failedCreate(s, opts, err)
	}
	if len(s.Guards) == 0 {
		a.note("warning: nothing that is known of ends %s at its deadline when nobody is there: run `sandboxer reap`", s.ID)
	}
	if quiet {
		return writeAll(a.Stdout, s.ID+"\n")
	}
	return a.printSandbox(s, runtime.Manager.Now())
}

// failedCreate says what a create that failed has left.
func failedCreate(s lifecycle.Sandbox, opts lifecycle.CreateOptions, err error) error {
	switch {
	case s.ID == "":
		return err
	case opts.OnFailed == lifecycle.OnFailedKeep:
		return errors.Join(err, errors.New("it is kept, as asked: "+s.ID))
	}
	return left("%w\nit could not be removed and is left: %s", err, s.ID)
}
