// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// programOf is what shows that a package is installed, whoever installed it.
var programOf = map[string][]string{
	"docker.io":      {"dockerd"},
	"podman":         {"podman"},
	"busybox-static": {"busybox"},
	"openssh-server": {"sshd"},
	"openssh-client": {"ssh"},
	"tcsh":           {"tcsh"},
	"fish":           {"fish"},
}

// sshServer is a real sshd, and the login shells that commands go through.
var sshServer = debianPackages("openssh-server", "openssh-client", "busybox-static", "tcsh", "fish")

// debianPackages installs what is missing by apt and says so. Nothing that
// comes with a package is left running: tests start what they need.
func debianPackages(names ...string) func(context.Context, *runner) error {
	return func(ctx context.Context, r *runner) error {
		var missing []string
		for _, name := range names {
			for _, program := range programOf[name] {
				if !installedProgram(program) {
					missing = append(missing, name)
				}
			}
		}
		if len(missing) == 0 {
			return nil
		}
		fmt.Fprintf(r.out, "installing %s by apt\n", strings.Join(missing, ", "))
		args := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
		cmd := repo.Command(ctx, r.root, "apt-get", args...)
		// A daemon that the package would start gets in the way of the tests'.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, output)
		}
		return nil
	}
}

// installedProgram looks on PATH and where root's would lead.
func installedProgram(name string) bool {
	if _, err := exec.LookPath(name); err == nil {
		return true
	}
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return true
		}
	}
	return false
}
