// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/toolbin"
)

// runner carries what the parts share.
type runner struct {
	root  string
	out   io.Writer
	built bool // bin/ is up to date
	// clis are the Terraform command lines found or built so far, by tool name.
	clis map[string]string
	// ran has the command lines that the acceptance suite has run on.
	ran map[string]bool
}

// part is one part of the test run.
type part struct {
	name    string
	what    string
	prepare []func(context.Context, *runner) error
	run     func(context.Context, *runner) (tally, string)
}

func parts() []part {
	return []part{
		{
			name:    "core",
			what:    "every package of the root module, without Terraform and without a Docker Engine",
			prepare: []func(context.Context, *runner) error{sshServer, binaries},
			run:     goTest(".", nil, "-skip", withoutOthers, "./..."),
		},
		{
			name:    "race",
			what:    "what several goroutines and processes share, under the race detector",
			prepare: []func(context.Context, *runner) error{sshServer},
			run: goTest(".", []string{"CGO_ENABLED=1"}, "-race", "-skip", withoutOthers,
				"./internal/ledger/...", "./internal/lifecycle/...", "./internal/reap/...", "./internal/backend/...", "./internal/provider/...", "./internal/sshtransport/...", "./sdk/..."),
		},
		{
			name:    "local",
			what:    "the embedded backend: real gVisor sandboxes",
			prepare: []func(context.Context, *runner) error{binaries},
			run:     goTest("extensions/local", nil, "./..."),
		},
		{
			name:    "docker",
			what:    "the Docker backend: a real Docker Engine, under the race detector",
			prepare: []func(context.Context, *runner) error{debianPackages("docker.io", "podman", "busybox-static"), sshServer, binaries},
			run:     goTest(".", []string{"CGO_ENABLED=1"}, "-race", "-run", "^TestDocker", "./internal/backend/docker/...", "./tools/dockeracc"),
		},
		{
			name:    "modal",
			what:    "the extension for Modal, against a server that plays the vendor",
			prepare: nil,
			run:     goTest("extensions/modal", nil, "./..."),
		},
		{
			name:    "clouds",
			what:    "the servers that play clouds, and the vendors' own clients against them",
			prepare: nil,
			run: each(
				goTest(".", nil, "-run", "^TestClouds", "-v", "./tools/sdkcheck/..."),
				goTest("tools/sdkcheck/modal", nil, "-run", "^TestClouds", "-v", "./..."),
			),
		},
		{
			name:    "acc",
			what:    "the acceptance suite on the installed Terraform",
			prepare: []func(context.Context, *runner) error{binaries, installed},
			run:     acceptance("terraform", "registry.terraform.io"),
		},
		{
			name:    "acc-1.8",
			what:    "the acceptance suite on Terraform 1.8.5",
			prepare: []func(context.Context, *runner) error{binaries, tool("terraform-1.8")},
			run:     acceptance("terraform-1.8", "registry.terraform.io"),
		},
		{
			name:    "acc-tofu",
			what:    "the acceptance suite on OpenTofu 1.12.6",
			prepare: []func(context.Context, *runner) error{binaries, tool("tofu")},
			run:     acceptance("tofu", "registry.opentofu.org"),
		},
		{
			name:    "crash",
			what:    "the crash suite: real signals at named points; 50 of each kind and verb with " + fullSize + "=1",
			prepare: []func(context.Context, *runner) error{installed},
			run:     crash,
		},
		{
			name:    "archives",
			what:    "release archives, built and looked into (one platform of each kind, all with " + fullSize + "=1), and this platform's installed with terraform init",
			prepare: nil,
			run:     archives,
		},
		{
			name:    "quickstart",
			what:    "the quickstart with a real Terraform, to the end",
			prepare: []func(context.Context, *runner) error{binaries},
			run:     command("go", "run", "./tools/quickstart"),
		},
		{
			name:    "bench",
			what:    "the promised ratios, from one run",
			prepare: []func(context.Context, *runner) error{debianPackages("docker.io", "busybox-static"), sshServer, binaries},
			run:     bench,
		},
	}
}

// withoutOthers leaves out what the parts for Terraform, for Docker and for the
// vendors' clients run.
const withoutOthers = "^Test(Acc|Docker|Clouds)"

// binaries builds bin/, once a run: the tests start what a user would.
func binaries(ctx context.Context, r *runner) error {
	if r.built {
		return nil
	}
	fmt.Fprintln(r.out, "building bin/: tests start the binaries that a user would")
	cmd := repo.Command(ctx, r.root, "go", "run", "./tools/build")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go run ./tools/build: %w\n%s", err, output)
	}
	fmt.Fprint(r.out, indent(string(output)))
	r.built = true
	return nil
}

// tool makes sure that a command line of toolbin is there.
func tool(name string) func(context.Context, *runner) error {
	return func(ctx context.Context, r *runner) error {
		t, err := toolbin.Find(name)
		if err != nil {
			return err
		}
		path, err := toolbin.Ensure(ctx, r.root, t, func(line string) { fmt.Fprintln(r.out, line) })
		if err != nil {
			return err
		}
		r.cli(name, path)
		return nil
	}
}

// installed finds the terraform on PATH. Where there is none, the part runs
// on the built 1.8.5: the suite then covers two command lines, not three.
func installed(ctx context.Context, r *runner) error {
	path, err := exec.LookPath("terraform")
	if err == nil {
		r.cli("terraform", path)
		version, err := repo.Output(ctx, r.root, path, "version", "-json")
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "installed: %s\n%s", path, indent(version))
		return nil
	}
	fmt.Fprintln(r.out, "no terraform on PATH: this part runs on Terraform 1.8.5, built from Go modules")
	if err := tool("terraform-1.8")(ctx, r); err != nil {
		return err
	}
	r.cli("terraform", r.clis["terraform-1.8"])
	return nil
}

func (r *runner) cli(name, path string) {
	r.clis[name] = path
}

// acceptance runs the acceptance tests of the provider on one command line.
func acceptance(cli, host string) func(context.Context, *runner) (tally, string) {
	return func(ctx context.Context, r *runner) (tally, string) {
		if r.ran[r.clis[cli]] {
			fmt.Fprintln(r.out, "this command line was that of an earlier part: not run twice")
			return tally{}, ""
		}
		r.ran[r.clis[cli]] = true
		env := []string{
			"TF_ACC=1",
			"TF_ACC_TERRAFORM_PATH=" + r.clis[cli],
			"TF_ACC_PROVIDER_HOST=" + host,
			"CHECKPOINT_DISABLE=1",
		}
		return goTest(".", env, "-run", "^TestAcc", "./internal/provider/...", "./tools/examples")(ctx, r)
	}
}

// goTest runs the tests of packages in one module.
func goTest(module string, env []string, args ...string) func(context.Context, *runner) (tally, string) {
	return func(ctx context.Context, r *runner) (tally, string) {
		args := append([]string{"test", "-json", "-count=1", "-timeout=20m"}, args...)
		cmd := repo.Command(ctx, filepath.Join(r.root, module), "go", args...)
		cmd.Env = r.environment(env)
		var said bytes.Buffer
		cmd.Stderr = &said
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return failure(r, "go test", err), ""
		}
		if err := cmd.Start(); err != nil {
			return failure(r, "go test", err), ""
		}
		count, readErr := readEvents(pipe, r.out)
		err = cmd.Wait()
		if said.Len() > 0 {
			fmt.Fprint(r.out, indent(said.String()))
		}
		switch {
		case readErr != nil:
			count.add(failure(r, "go test", readErr))
		case err != nil && count.failed == 0:
			count.add(failure(r, "go "+strings.Join(args, " "), err))
		case err == nil && count.passed+count.failed+count.skipped == 0:
			count.add(failure(r, "go "+strings.Join(args, " "), fmt.Errorf("no test ran")))
		}
		return count, ""
	}
}

// each runs one after the other, whatever came of the one before.
func each(runs ...func(context.Context, *runner) (tally, string)) func(context.Context, *runner) (tally, string) {
	return func(ctx context.Context, r *runner) (tally, string) {
		var total tally
		for _, run := range runs {
			count, _ := run(ctx, r)
			total.add(count)
		}
		return total, ""
	}
}

// command runs a program that is a test as a whole: its exit code is the
// outcome.
func command(name string, args ...string) func(context.Context, *runner) (tally, string) {
	return func(ctx context.Context, r *runner) (tally, string) {
		cmd := repo.Command(ctx, r.root, name, args...)
		cmd.Env = r.environment(nil)
		cmd.Stdout, cmd.Stderr = r.out, r.out
		if err := cmd.Run(); err != nil {
			return failure(r, strings.Join(append([]string{name}, args...), " "), err), ""
		}
		return tally{passed: 1}, ""
	}
}

// fullSize is the environment variable that asks for everything at full size.
const fullSize = "SANDBOXER_TEST_FULL"

// crash runs the crash suite, which builds programs of its own.
func crash(ctx context.Context, r *runner) (tally, string) {
	args := []string{"-tags", "failpoints", "./internal/crash"}
	if os.Getenv(fullSize) != "" {
		args = append([]string{"-timeout=0"}, args...)
	}
	return goTest(".", []string{"TF_ACC_TERRAFORM_PATH=" + r.clis["terraform"]}, args...)(ctx, r)
}

// archives looks into the archives, then installs those of this platform.
func archives(ctx context.Context, r *runner) (tally, string) {
	args := []string{"run", "./tools/archives", "-check"}
	if os.Getenv(fullSize) == "" {
		args = append(args, "-sample")
	}
	count, _ := command("go", args...)(ctx, r)
	installed, _ := command("go", "run", "./tools/releasecheck")(ctx, r)
	count.add(installed)
	return count, ""
}

// bench runs the benchmarks and keeps their table for the end of the run.
func bench(ctx context.Context, r *runner) (tally, string) {
	var table bytes.Buffer
	cmd := repo.Command(ctx, r.root, "go", "run", "./tools/bench")
	cmd.Env = r.environment(nil)
	cmd.Stdout, cmd.Stderr = &table, r.out
	if err := cmd.Run(); err != nil {
		return failure(r, "go run ./tools/bench", err), table.String()
	}
	return tally{passed: 1}, table.String()
}

// environment is the one that tests run in: the built extensions are found,
// and nothing of the user's own fleet, state or configuration is touched.
func (r *runner) environment(extra []string) []string {
	env := append(repo.CleanEnv(), "SANDBOXER_EXTENSION_DIR="+filepath.Join(r.root, "bin"))
	return append(env, extra...)
}

func failure(r *runner, name string, err error) tally {
	fmt.Fprintf(r.out, "FAIL %s: %v\n", name, err)
	return tally{failed: 1, failures: []string{name}}
}
