// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package examples

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/tfrun"
)

// required is what an example of an object leaves to the reader.
const required = `terraform {
  required_providers {
    sandboxer = { source = "sand-boxer/sandboxer" }
  }
}
`

// Every example applies, a second plan is empty, and destroy leaves nothing.
// The command line is the one that TF_ACC_TERRAFORM_PATH names.
func TestAccExamplesApply(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	cli := os.Getenv("TF_ACC_TERRAFORM_PATH")
	if cli == "" {
		if cli, err = tfrun.FindCLI(t.Context(), root, func(line string) { t.Log(line) }); err != nil {
			t.Fatal(err)
		}
	}
	found, err := all(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 10 {
		t.Fatalf("only %d examples were found", len(found))
	}
	for _, e := range found {
		t.Run(e.name, func(t *testing.T) { apply(t, root, cli, e) })
	}
}

func apply(t *testing.T, root, cli string, e example) {
	// The embedded backend's sockets need a short path, shorter than the
	// testing package's own directories.
	scratch, err := os.MkdirTemp("", "sbx-ex-") //nolint:usetesting // t.TempDir holds the test's name, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(scratch); err != nil {
			t.Error(err)
		}
	})
	w, err := tfrun.New(cli, filepath.Join(root, "bin"), scratch)
	if err != nil {
		t.Fatal(err)
	}
	sandboxer := filepath.Join(root, "bin", repo.CLI.Name)
	config := e.config
	if !strings.Contains(config, "required_providers") {
		config = required + config
	}
	if err := os.WriteFile(filepath.Join(w.Dir, "main.tf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var vars []string
	if strings.Contains(config, `variable "id"`) {
		id, err := w.Command(t.Context(), sandboxer, "create", "--profile", "shell", "--ttl", "10m", "-q").Output()
		if err != nil {
			t.Fatal(err)
		}
		vars = []string{"-var=id=" + strings.TrimSpace(string(id))}
	}
	terraform := func(args ...string) {
		t.Helper()
		args = append(append([]string{args[0], "-input=false", "-no-color"}, args[1:]...), vars...)
		if args[0] == "init" {
			args = args[:3]
		}
		if _, err := w.Terraform(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	destroyed := false
	t.Cleanup(func() {
		if destroyed {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if _, err := w.Terraform(ctx, append([]string{"destroy", "-auto-approve", "-input=false", "-no-color"}, vars...)...); err != nil {
			t.Error(err)
		}
	})
	terraform("init")
	terraform("apply", "-auto-approve")
	terraform("plan", "-detailed-exitcode") // fails when there is a change
	terraform("destroy", "-auto-approve")
	destroyed = true
	if len(vars) > 0 {
		if output, err := w.Command(t.Context(), sandboxer, "destroy", "--all").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	// The backend is asked, in every fleet that the examples name.
	for _, fleet := range []string{"default", "ci-main"} {
		for _, listing := range [][]string{{"list"}, {"snapshot", "list"}} {
			out, err := w.Command(t.Context(), sandboxer, append(listing, "-o", "json", "--fleet", fleet)...).Output()
			if err != nil {
				t.Fatalf("sandboxer %v: %v", listing, err)
			}
			var left []map[string]any
			if err := json.Unmarshal(out, &left); err != nil || len(left) > 0 {
				t.Errorf("sandboxer %v in %s shows %s (%v)", listing, fleet, out, err)
			}
		}
	}
}

// The example of a module's own test passes as a reader would run it: mocked,
// with no backend, and it makes nothing.
func TestAccModuleTestPasses(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	cli := os.Getenv("TF_ACC_TERRAFORM_PATH")
	if cli == "" {
		if cli, err = tfrun.FindCLI(t.Context(), root, func(line string) { t.Log(line) }); err != nil {
			t.Fatal(err)
		}
	}
	w, err := tfrun.New(cli, filepath.Join(root, "bin"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(w.Dir, os.DirFS(filepath.Join(root, "examples", "module-test"))); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Terraform(t.Context(), "init", "-input=false", "-no-color"); err != nil {
		t.Fatal(err)
	}
	out, err := w.Terraform(t.Context(), "test", "-no-color")
	if err != nil || !strings.Contains(out, "2 passed, 0 failed") {
		t.Errorf("%v\n%s", err, out)
	}
	listed, err := w.Command(t.Context(), filepath.Join(root, "bin", repo.CLI.Name), "list", "-q").Output()
	if err != nil || len(listed) > 0 {
		t.Errorf("something was made: %s (%v)", listed, err)
	}
}

func TestFirstBlock(t *testing.T) {
	for page, want := range map[string]string{
		"no block":                             "",
		"a\n```terraform\nx = 1\n```\nb":       "x = 1\n",
		"```sh\nls\n```\n```terraform\ny\n```": "y\n",
	} {
		if got := firstBlock(page); got != want {
			t.Errorf("firstBlock(%q) = %q, want %q", page, got, want)
		}
	}
}
