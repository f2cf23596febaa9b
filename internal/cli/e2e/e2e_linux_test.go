// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build amd64 || arm64

// Package e2e runs the command line's scripts with the real program on the
// embedded backend: real sandboxes, real processes.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli/clitest"
)

// bin holds the programs, built from this checkout.
var bin string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "e2e-bin-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	// The sandboxes' processes run as another user than root, and execute
	// the extension's program.
	if err := os.Chmod(dir, 0o755); err != nil {
		return 0, err
	}
	bin = dir
	for _, program := range []struct{ name, module string }{
		{"sandboxer", "../../.."},
		{"sandboxer-extension-local", "../../../extensions/local"},
	} {
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, program.name), ".")
		build.Dir = program.module
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build %s: %w\n%s", program.name, err, out)
		}
	}
	return m.Run(), nil
}

func TestScripts(t *testing.T) {
	for _, dir := range []string{"both", "local"} {
		t.Run(dir, func(t *testing.T) {
			testscript.Run(t, clitest.Params(filepath.Join("..", "testdata", dir), func(env *testscript.Env) error {
				env.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
				// Whatever a script has left ends with it.
				env.Defer(func() {
					destroy := exec.Command(filepath.Join(bin, "sandboxer"), "destroy", "--all")
					destroy.Dir, destroy.Env = env.WorkDir, env.Vars
					if out, err := destroy.CombinedOutput(); err != nil {
						env.T().Log("destroy --all:", err, string(out))
					}
				})
				return os.WriteFile(filepath.Join(env.Getenv("XDG_CONFIG_HOME"), "sandboxer", "sandboxer.hcl"), []byte("fleet = \"scripts\"\n"), 0o600)
			}))
		})
	}
}
