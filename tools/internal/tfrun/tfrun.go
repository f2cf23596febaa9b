// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package tfrun runs a real Terraform or OpenTofu against the provider of this
// checkout, offline: through a filesystem mirror, as a user's would.
package tfrun

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/toolbin"
)

// mirrored is the version under which the mirror offers the provider.
const mirrored = "0.1.0"

// FindCLI returns the command line to use: the installed terraform, else the
// installed tofu, else a Terraform that is built from Go modules.
func FindCLI(ctx context.Context, root string, log func(string)) (string, error) {
	for _, name := range []string{"terraform", "tofu"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	log("neither terraform nor tofu is on PATH: one is built from Go modules, once for this checkout")
	tool, err := toolbin.Find("terraform-1.8")
	if err != nil {
		return "", err
	}
	return toolbin.Ensure(ctx, root, tool, log)
}

// Workspace is a directory with a configuration, the command line that works
// on it and an environment of its own.
type Workspace struct {
	CLI string
	Dir string   // the configuration is in it
	Env []string // of every command
}

// New lays out a mirror with the binaries in bin/ and returns a workspace in
// scratch, whose sandboxes live in a state directory below it.
func New(cli, bin, scratch string) (*Workspace, error) {
	mirror := filepath.Join(scratch, "mirror")
	for _, host := range []string{"registry.terraform.io", "registry.opentofu.org"} {
		dir := filepath.Join(mirror, host, "sand-boxer", "sandboxer", mirrored, runtime.GOOS+"_"+runtime.GOARCH)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		files := map[string]string{
			repo.Provider.Name:       repo.Provider.Name + "_v" + mirrored,
			repo.ExtensionLocal.Name: repo.ExtensionLocal.Name,
			repo.ExtensionModal.Name: repo.ExtensionModal.Name,
		}
		for _, b := range repo.DockerPrograms {
			name := b.Name + "-linux-" + runtime.GOARCH
			files[name] = name
		}
		for from, to := range files {
			if err := place(filepath.Join(bin, from), filepath.Join(dir, to)); err != nil {
				return nil, err
			}
		}
	}
	rc := filepath.Join(scratch, "terraform.rc")
	config := fmt.Sprintf("disable_checkpoint = true\nprovider_installation {\n  filesystem_mirror {\n    path    = %q\n    include = [\"*/*/*\"]\n  }\n}\n", mirror)
	if err := os.WriteFile(rc, []byte(config), 0o600); err != nil {
		return nil, err
	}
	dir := filepath.Join(scratch, "work")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	state := filepath.Join(scratch, "state")
	return &Workspace{CLI: cli, Dir: dir, Env: append(repo.CleanEnv(),
		"TF_CLI_CONFIG_FILE="+rc,
		"TF_IN_AUTOMATION=1",
		"CHECKPOINT_DISABLE=1",
		"SANDBOXER_STATE_DIR="+state,
		"XDG_CONFIG_HOME="+filepath.Join(scratch, "config"),
	)}, nil
}

// StateDir returns where the workspace's sandboxes live.
func (w *Workspace) StateDir() string { return filepath.Join(filepath.Dir(w.Dir), "state") }

// Command returns a command of the workspace.
func (w *Workspace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := repo.Command(ctx, w.Dir, name, args...)
	cmd.Env = w.Env
	return cmd
}

// Terraform runs one command of the command line, and returns what it wrote.
func (w *Workspace) Terraform(ctx context.Context, args ...string) (string, error) {
	output, err := w.Command(ctx, w.CLI, args...).CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s %v: %w\n%s", filepath.Base(w.CLI), args, err, output)
	}
	return string(output), nil
}

// place links a binary where that works and copies it elsewhere.
func place(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("%w (`make build` makes it)", err)
	}
	return os.WriteFile(to, data, 0o755)
}
