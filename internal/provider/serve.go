// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
)

// Address is the provider's address in a registry.
const Address = "registry.terraform.io/sand-boxer/sandboxer"

const (
	// graceAfterServe bounds the clean-up after Terraform let go of the
	// plugin. go-plugin kills 2 s after it asked; what is not done then is
	// left to the leases.
	graceAfterServe = 1800 * time.Millisecond
	// graceAfterParent bounds the clean-up after Terraform died. Nobody waits.
	graceAfterParent = 10 * time.Second
	// gcPercent is how much the heap may grow between two collections.
	gcPercent = 400
	// graceForAnswers is how long Terraform, told to end as the plugin was, may
	// take to let go of it.
	graceForAnswers = 10 * time.Second
	// parentEvery is the pause between two looks at the parent process.
	parentEvery = 500 * time.Millisecond
)

// Serve runs the plugin until Terraform lets go of it.
//
// Terraform ends a plugin in ways that a plugin alone does not survive well,
// so Serve closes what is open after the server returned; takes no harm from
// SIGPIPE, which the first log line after Terraform's death raises; and
// watches its parent, because an orphaned plugin lives on for ever. With
// debug the plugin is started by a person, and the parent does not matter.
func Serve(ctx context.Context, opts Options, debug bool) error {
	// Notify and not Ignore: an ignored signal stays ignored in the extension
	// processes that are started from here.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	collectLess(os.Getenv)
	if opts.Logger == nil {
		opts.Logger = hostLogger(os.Getenv)
	}
	served := New(opts)
	leave := func() {
		cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceAfterParent)
		defer cancel()
		// Nobody is left to be told of an error.
		_ = served.Close(cleaning)
	}
	if !debug {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		go orphaned(watching, func() {
			leave()
			os.Exit(1)
		})
		// A runner that gives up sends SIGTERM to the whole process group.
		// Terraform then cancels its calls; they roll back before the end.
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		defer signal.Stop(terminated)
		go func() {
			select {
			case <-watching.Done():
			case <-terminated:
				leave()
				// The calls have ended and their answers are on the way: what
				// they made is lost when Terraform does not get them.
				select {
				case <-watching.Done():
				case <-time.After(graceForAnswers):
					os.Exit(1)
				}
			}
		}()
	}
	var serving []tf6server.ServeOpt
	if debug {
		serving = append(serving, tf6server.WithManagedDebug())
	}
	err := tf6server.Serve(Address, served.Server, serving...)
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceAfterServe)
	defer cancel()
	return errors.Join(err, served.Close(cleaning))
}

// collectLess lets the heap grow further between two collections, unless the
// user says how far. The framework leaves much garbage and a plugin lives for
// one run: with Go's default a quarter of the time of a large plan goes into
// collecting it.
func collectLess(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// hostLogger writes the extensions' log lines to standard error, from where
// Terraform takes them into its own log, at the level that the user asked
// Terraform for.
func hostLogger(getenv func(string) string) hclog.Logger {
	level := cmp.Or(getenv("TF_LOG_PROVIDER_SANDBOXER"), getenv("TF_LOG_PROVIDER"), getenv("TF_LOG"))
	if level == "" {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Name: "extension", Level: hclog.LevelFromString(level), Output: os.Stderr, JSONFormat: true})
}
