// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// The program has two faces: it is Terraform's plugin when Terraform starts
// it, and the command line `sandboxer` otherwise.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/provider"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// version is set by the linker in a release.
var version = ""

func main() {
	debugging := slices.Contains(os.Args[1:], "-debug") || slices.Contains(os.Args[1:], "--debug")
	if plugin(os.Args, os.Getenv) {
		if err := provider.Serve(context.Background(), provider.Options{Version: programVersion(), Builtins: builtins()}, debugging); err != nil {
			fmt.Fprintln(os.Stderr, "terraform-provider-sandboxer:", err)
			os.Exit(1)
		}
		return
	}
	// The first signal ends the work in order, which removes what a create
	// has made so far; a second one ends the program.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	code := cli.Run(ctx, os.Args[1:], cli.Options{Version: programVersion(), Builtins: builtins()})
	stop()
	os.Exit(code)
}

// builtins are the extensions within this program: those that are light.
// Nothing of them runs before a backend of theirs is used.
func builtins() map[string]func() sdk.Extension {
	return map[string]func() sdk.Extension{
		docker.Name: func() sdk.Extension { return docker.New(docker.Options{Program: backend.Beside}) },
		e2b.Name:    func() sdk.Extension { return e2b.New(e2b.Options{}) },
	}
}

// cookie is the variable by which Terraform tells a plugin that it is one.
const cookie = "TF_PLUGIN_MAGIC_COOKIE"

// plugin tells whether Terraform, or a person who debugs the plugin, has
// started the program. Without the cookie the server itself says what it is
// for, so the plugin's own name without a command is the plugin's face too.
func plugin(args []string, getenv func(string) string) bool {
	if getenv(cookie) != "" && len(args) == 1 {
		return true
	}
	if !strings.HasPrefix(filepath.Base(args[0]), "terraform-provider-") {
		return false
	}
	return len(args) == 1 || args[1] == "-debug" || args[1] == "--debug"
}

// programVersion returns the version of a release, of a module build, or
// "dev".
func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return strings.TrimPrefix(info.Main.Version, "v")
	}
	return "dev"
}
