// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli/clitest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// TestMain makes the test binary the program of the scripts: each command in
// them is a process of its own, and they share only what is on disk.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sandboxer": func() {
		os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Options{
			Version: "1.2.3",
			Builtins: map[string]func() sdk.Extension{
				saasstub.Name: func() sdk.Extension { return saasstub.New(saasstub.Options{}) },
			},
		}))
	}})
}

// The scripts of testdata/both hold on every backend, those of testdata/stub
// need the stub.
func TestScripts(t *testing.T) {
	for _, dir := range []string{"both", "stub"} {
		t.Run(dir, func(t *testing.T) {
			testscript.Run(t, clitest.Params(filepath.Join("testdata", dir), func(env *testscript.Env) error {
				return os.WriteFile(filepath.Join(env.Getenv("XDG_CONFIG_HOME"), "sandboxer", "sandboxer.hcl"), []byte(
					"fleet = \"scripts\"\nbackends = { stub = { saas_stub = { file = \""+filepath.Join(env.WorkDir, "cloud.json")+"\" } } }\n"), 0o600)
			}))
		})
	}
}
