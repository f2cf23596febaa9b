// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
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
func Serve(ctx context.Context, version string, debug bool) error {
	// Notify and not Ignore: an ignored signal stays ignored in the extension
	// processes that are started from here.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	served := New(Options{Version: version, Logger: hostLogger(os.Getenv)})
	leave := func() {
		cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceAfterParent)
		defer cancel()
		// Nobody is left to be told of an error.
		_ = served.Close(cleaning)
		os.Exit(1)
	}
	if !debug {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		go orphaned(watching, leave)
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
			}
		}()
	}
	err := providerserver.Serve(ctx, func() provider.Provider { return served }, providerserver.ServeOpts{
		Address: Address, ProtocolVersion: 6, Debug: debug,
	})
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceAfterServe)
	defer cancel()
	return errors.Join(err, served.Close(cleaning))
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
