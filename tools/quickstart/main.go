// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command quickstart shows the whole life of sandboxes on this machine, with
// a real Terraform (or OpenTofu) and the embedded backend: declare, apply,
// use, snapshot, fork, extend, reap, destroy. It works in a temporary
// directory and leaves nothing behind, not even when it is interrupted.
//
//	go run ./tools/quickstart        # what `make quickstart` does
//	go run ./tools/quickstart -keep  # destroys nothing, and says how to go on by hand
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/tfrun"
)

// fleet is the one that examples/quickstart works in.
const fleet = "quickstart"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	keep := flag.Bool("keep", false, "leave the sandboxes, the snapshot and the directory, to go on by hand")
	flag.Parse()
	if err := run(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, keep bool) (err error) {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the quickstart runs on the embedded backend, which needs Linux; this is %s", runtime.GOOS)
	}
	scratch, err := os.MkdirTemp("", "sandboxer-quickstart-")
	if err != nil {
		return err
	}
	begin := time.Now()
	fmt.Println("Building the provider, the command line and the embedded backend (the first time this takes a while)")
	build := repo.Command(ctx, root, "go", "run", "./tools/build")
	if output, err := build.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("go run ./tools/build: %w\n%s", err, output), os.RemoveAll(scratch))
	}
	fmt.Printf("   (%.1f s)\n", time.Since(begin).Seconds())
	cli, err := tfrun.FindCLI(ctx, root, func(line string) { fmt.Println(line) })
	if err != nil {
		return errors.Join(err, os.RemoveAll(scratch))
	}
	space, err := tfrun.New(cli, filepath.Join(root, "bin"), scratch)
	if err != nil {
		return errors.Join(err, os.RemoveAll(scratch))
	}
	// What the command line does is for the fleet of the configuration.
	space.Env = append(space.Env, "SANDBOXER_FLEET="+fleet)
	t := &tour{Workspace: space, sandboxer: filepath.Join(root, "bin", repo.CLI.Name), out: os.Stdout, begin: begin}
	defer func() {
		if keep {
			t.kept(root, scratch)
			return
		}
		err = errors.Join(err, t.cleanUp(scratch))
	}()
	config, err := os.ReadFile(filepath.Join(root, "examples", "quickstart", "main.tf"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(space.Dir, "main.tf"), config, 0o600); err != nil {
		return err
	}
	if err := t.all(ctx, keep); err != nil {
		switch {
		case ctx.Err() != nil && keep:
			return errors.New("interrupted")
		case ctx.Err() != nil:
			return errors.New("interrupted; what it had made is removed")
		}
		return err
	}
	if !keep {
		t.farewell(root)
	}
	return nil
}

// all is the tour; without its end when what it makes is kept.
func (t *tour) all(ctx context.Context, keep bool) error {
	steps := []func(context.Context) error{t.declare, t.use, t.fork, t.extend, t.expire}
	if !keep {
		steps = append(steps, t.destroy)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *tour) declare(ctx context.Context) error {
	done := t.step("Declare and apply: a profile, and a sandbox made from it (examples/quickstart/main.tf)")
	defer done()
	if err := t.terraform(ctx, "init"); err != nil {
		return err
	}
	if err := t.terraform(ctx, "apply"); err != nil {
		return err
	}
	t.say("$ export SANDBOXER_FLEET=%s", fleet)
	_, err := t.run(ctx, "list")
	return err
}

func (t *tour) use(ctx context.Context) error {
	done := t.step("Use it: run commands inside; the counter runs as its main process")
	defer done()
	warm, _, _, err := t.outputs(ctx)
	if err != nil {
		return err
	}
	for _, command := range [][]string{
		{"sh", "-c", "uname -sr; id -un; cat /tmp/count"},
		{"sh", "-c", "echo only here > /tmp/note"},
	} {
		if _, err := t.run(ctx, append([]string{"exec", warm, "--"}, command...)...); err != nil {
			return err
		}
	}
	return nil
}

func (t *tour) fork(ctx context.Context) error {
	done := t.step("Snapshot its memory while it runs, and make three copies that go on from there")
	defer done()
	if err := t.terraform(ctx, "apply", "-var=forks=3"); err != nil {
		return err
	}
	warm, forks, _, err := t.outputs(ctx)
	if err != nil {
		return err
	}
	if len(forks) != 3 {
		return fmt.Errorf("%d forks were made, not 3", len(forks))
	}
	for _, id := range append([]string{warm}, forks...) {
		out, err := t.run(ctx, "exec", id, "--", "sh", "-c", "cat /tmp/count; cat /tmp/note")
		if err != nil {
			return err
		}
		count, _, _ := strings.Cut(out, "\n")
		if n, err := strconv.Atoi(strings.TrimSpace(count)); err != nil || n < 1 || !strings.Contains(out, "only here") {
			return fmt.Errorf("%s does not go on from the snapshot: %q", id, out)
		}
	}
	return nil
}

func (t *tour) extend(ctx context.Context) error {
	done := t.step("Extend one from the command line: Terraform sees no drift in it")
	defer done()
	warm, _, _, err := t.outputs(ctx)
	if err != nil {
		return err
	}
	if _, err := t.run(ctx, "extend", warm, "--by", "30m"); err != nil {
		return err
	}
	return t.terraform(ctx, "plan", "-detailed-exitcode", "-var=forks=3")
}

func (t *tour) expire(ctx context.Context) error {
	done := t.step("One that lives for four seconds: it ends by itself, is swept up, and the next apply replaces it and what follows it")
	defer done()
	if err := t.terraform(ctx, "apply", "-var=forks=3", "-var=short=true"); err != nil {
		return err
	}
	_, _, before, err := t.outputs(ctx)
	if err != nil {
		return err
	}
	t.say("waiting for the deadline of %s", before)
	select {
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := t.run(ctx, "reap"); err != nil {
		return err
	}
	if err := t.terraform(ctx, "apply", "-var=forks=3", "-var=short=true"); err != nil {
		return err
	}
	_, _, after, err := t.outputs(ctx)
	if err != nil {
		return err
	}
	if after == before || after == "" {
		return fmt.Errorf("the expired sandbox %s was not replaced: now %q", before, after)
	}
	t.say("%s was replaced by %s", before, after)
	return nil
}

func (t *tour) destroy(ctx context.Context) error {
	done := t.step("Destroy: nothing is left, neither a sandbox nor a snapshot nor a process")
	defer done()
	if err := t.terraform(ctx, "destroy", "-var=forks=3", "-var=short=true"); err != nil {
		return err
	}
	return t.nothingLeft(ctx)
}

// nothingLeft asks the backend, not Terraform, and then the kernel.
func (t *tour) nothingLeft(ctx context.Context) error {
	for _, listing := range [][]string{{"list"}, {"snapshot", "list"}} {
		left, err := t.ids(ctx, listing...)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("sandboxer %s still shows %s", strings.Join(listing, " "), strings.Join(left, ", "))
		}
		t.say("$ sandboxer %s: empty", strings.Join(listing, " "))
	}
	// A process that has just been told to end is given a moment.
	for range 50 {
		if len(t.processes()) == 0 {
			t.say("no process is left")
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("processes are left:\n%s", strings.Join(t.processes(), "\n"))
}

// cleanUp removes whatever an interrupted tour left. It runs to its end
// whatever happened to the tour, within a bound of its own.
func (t *tour) cleanUp(scratch string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if ids, err := t.ids(ctx, "list"); err == nil {
		for _, id := range ids {
			t.say("cleaning up %s", id)
			if _, err := t.quiet(ctx, "destroy", id); err != nil {
				t.say("%v", err)
			}
		}
	}
	if err := os.RemoveAll(scratch); err != nil {
		return fmt.Errorf("%s is left behind: %w", scratch, err)
	}
	return nil
}

// farewell says how to go on.
func (t *tour) farewell(root string) {
	fmt.Fprintf(t.out, `
Done in %.0f s. How to go on:
   export PATH=%s:$PATH
   sandboxer create --profile shell --ttl 10m     # without Terraform
   sandboxer profile list                         # what ships in the binary
   go run ./tools/quickstart -keep                # the same without the destroy, to go on by hand
   docs/guides/                                   # command line, configuration, CI, profiles, security
`, time.Since(t.begin).Seconds(), filepath.Join(root, "bin"))
}

// kept says how to go on with what was left.
func (t *tour) kept(root, scratch string) {
	terraform := t.CLI
	if found, err := exec.LookPath(filepath.Base(t.CLI)); err == nil && found == t.CLI {
		terraform = filepath.Base(t.CLI)
	}
	fmt.Fprintf(t.out, `
Kept: the sandboxes until their deadlines, the snapshot for an hour, and the directory %[1]s. How to go on:
   export PATH=%[2]s:$PATH
   export TF_CLI_CONFIG_FILE=%[3]s
   export SANDBOXER_STATE_DIR=%[4]s
   export SANDBOXER_FLEET=%[5]s
   cd %[6]s
   sandboxer list
   %[7]s apply -var=forks=3      # removes the short-lived one
   %[7]s destroy -var=forks=3    # removes all of it; then: rm -rf %[1]s
`, scratch, filepath.Join(root, "bin"), filepath.Join(scratch, "terraform.rc"), t.StateDir(), fleet, t.Dir, terraform)
}
