// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package repo knows the checkout: where its root is, how its binaries are
// built, and how the tools run a command in it.
package repo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Module is the path of the root module.
const Module = "github.com/sand-boxer/terraform-provider-sandboxer"

// DevVersion is what a build from a checkout calls itself.
const DevVersion = "0.1.0-dev"

// Root returns the root of the checkout that the working directory is in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module "+Module+"\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside a checkout of " + Module)
		}
		dir = parent
	}
}

// Command returns a command in dir whose process group ends with the context:
// first with SIGTERM, then, if that is not heard, with SIGKILL.
func Command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// Output runs a command and returns its standard output without the final
// newline. The error carries what the command wrote to standard error.
func Output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := Command(ctx, dir, name, args...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, exit.Stderr)
		}
		return "", err
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// CleanEnv returns the environment without the user's own settings of
// Terraform and of sandboxer, so that nothing of theirs is touched. What tells
// tests how much to do is none.
func CleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		own := strings.HasPrefix(kv, "SANDBOXER_") && !strings.HasPrefix(kv, "SANDBOXER_TEST_")
		if !own && !strings.HasPrefix(kv, "TF_") {
			env = append(env, kv)
		}
	}
	return env
}
