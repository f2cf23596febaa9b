// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// sandboxer-extension-local is the embedded backend: sandboxes on this
// machine, by gVisor, with nothing installed. One static binary has several
// faces, and the name that it was started under decides which: runsc, the
// supervisor beside each sandbox, a helper inside of one, or the extension
// that sandboxer talks to.
package main

import (
	"fmt"
	"os"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

// version is the extension's version; the release build sets it.
var version = "0.1.0"

func main() {
	// Before anything else: runsc starts this binary again with an empty
	// environment, so the name is all there is to go by.
	switch name := os.Args[0]; {
	case runsc.Dispatched(name):
		runsc.Main()
	case runsc.IsPrewarmer(name):
		fmt.Fprintln(os.Stderr, runsc.Prewarm(os.Args, os.Environ()))
		os.Exit(runsc.FailureCode)
	case name == supervisor.Argv0:
		os.Exit(supervisor.Main())
	case name == guest.Argv0:
		os.Exit(guest.Main(os.Args))
	default:
		plugin.Serve(extension.New(extension.Options{Version: version}))
	}
}
