// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints && linux

package crash

// A lane: a state directory of its own, in which cases run one after another
// beside things that are not theirs.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	fleet        = "crash"
	foreignFleet = "crash-2"
	// overdue is how long after its deadline something may still be there.
	overdue = 60 * time.Second
	// patience bounds one command. None of them is meant to come near it.
	patience = 3 * time.Minute
)

// The ttls are short, because what a kill leaves behind is waited for.
const configuration = `
terraform {
  required_providers {
    sandboxer = { source = "sand-boxer/sandboxer" }
  }
}
variable "snapshot" { default = false }
resource "sandboxer_sandbox" "s" {
  profile = jsonencode({ name = "crash", setup = [["/bin/sh", "-c", "echo made > /tmp/made"]] })
  ttl     = "30s"
}
resource "sandboxer_snapshot" "s" {
  count      = var.snapshot ? 1 : 0
  sandbox_id = sandboxer_sandbox.s.id
  ttl        = "30s"
}
`

// programs builds the two programs with failpoints.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, from := range map[string]string{"sandboxer": "../..", "sandboxer-extension-local": "../../extensions/local"} {
		build := exec.Command("go", "build", "-tags", "failpoints", "-buildvcs=false", "-o", filepath.Join(dir, name), ".")
		build.Dir = from
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return dir
}

type lane struct {
	root    string // the lane's own directory
	state   string
	work    string
	bin     string
	env     []string
	stage   *stage
	foreign foreign
}

// foreign is what is in a lane's backend and must stay as it is.
type foreign struct {
	sandbox string   // id of the one that lives
	names   []string // in the backend's folders
	content map[string]string
	like    *exec.Cmd // a process that is called like a supervisor
}

func newLane(t *testing.T, bin, terraform string) *lane {
	t.Helper()
	// Not below /tmp, which a supervisor covers before it begins.
	root, err := os.MkdirTemp("/var/tmp", "sbxcrash-") //nolint:usetesting // the path of a socket is short, and this one is open to a supervisor
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o711); err != nil { // a supervisor reaches the socket
		t.Fatal(err)
	}
	l := &lane{root: root, state: filepath.Join(root, "state"), work: filepath.Join(root, "work"), bin: bin}
	l.stage = newStage(t, filepath.Join(root, "points"))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{l.work, filepath.Join(root, "tmp")} {
		must(os.MkdirAll(dir, 0o755))
	}
	rc := filepath.Join(root, "terraform.rc")
	must(os.WriteFile(rc, fmt.Appendf(nil, "disable_checkpoint = true\nprovider_installation {\n  filesystem_mirror {\n    path = %q\n    include = [\"*/*/*\"]\n  }\n}\n", filepath.Join(root, "mirror")), 0o600))
	must(os.WriteFile(filepath.Join(l.work, "main.tf"), []byte(configuration), 0o600))
	place := filepath.Join(root, "mirror", "registry.terraform.io", "sand-boxer", "sandboxer", "0.1.0", runtime.GOOS+"_"+runtime.GOARCH)
	must(os.MkdirAll(place, 0o755))
	for from, to := range map[string]string{"sandboxer": "terraform-provider-sandboxer_v0.1.0", "sandboxer-extension-local": "sandboxer-extension-local"} {
		must(os.Symlink(filepath.Join(bin, from), filepath.Join(place, to)))
	}
	l.env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "TF_") || strings.HasPrefix(v, "SANDBOXER_")
	}), "TF_CLI_CONFIG_FILE="+rc, "TF_IN_AUTOMATION=1", "CHECKPOINT_DISABLE=1", "TMPDIR="+filepath.Join(root, "tmp"),
		"SANDBOXER_STATE_DIR="+l.state, "SANDBOXER_FLEET="+fleet, "XDG_CONFIG_HOME="+filepath.Join(root, "config"))
	if said, err := l.run(t.Context(), terraform, "init", "-no-color"); err != nil {
		t.Fatalf("init: %v\n%s", err, said)
	}
	l.settle(t)
	return l
}

// settle puts into the backend what is not ours: a sandbox and a snapshot of
// another fleet, folders with a name like a sandbox's that prove nothing, and
// a process that is called like a supervisor.
func (l *lane) settle(t *testing.T) {
	t.Helper()
	said, err := l.run(t.Context(), filepath.Join(l.bin, "sandboxer"), "--fleet", foreignFleet, "create", "--profile", "shell", "--ttl", "7h", "--owner", fleet, "--quiet")
	if err != nil {
		t.Fatalf("the foreign sandbox: %v\n%s", err, said)
	}
	id := strings.TrimSpace(said)
	l.foreign.sandbox = id
	t.Cleanup(func() {
		if said, err := l.run(context.Background(), filepath.Join(l.bin, "sandboxer"), "--fleet", foreignFleet, "destroy", id); err != nil {
			t.Errorf("the foreign sandbox can't be destroyed: %v\n%s", err, said)
		}
	})
	if said, err := l.run(t.Context(), filepath.Join(l.bin, "sandboxer"), "--fleet", foreignFleet, "snapshot", "create", id, "--ttl", "7h"); err != nil {
		t.Fatalf("the foreign snapshot: %v\n%s", err, said)
	}
	for _, name := range []string{"sandboxes/sbx-00000000000000000000", "sandboxes/sbx-crash", "snapshots/snp-00000000000000000000"} {
		if err := os.Mkdir(filepath.Join(l.state, "local", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l.foreign.like = &exec.Cmd{Path: "/bin/sleep", Args: []string{"sandboxer-supervisor", "100000"}}
	if err := l.foreign.like.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.foreign.like.Process.Kill()
		_ = l.foreign.like.Wait()
	})
	found, _, err := objects(l.state)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range found {
		l.foreign.names = append(l.foreign.names, o.id)
	}
	slices.Sort(l.foreign.names)
	l.foreign.content = l.foreignContent(t)
}

// foreignContent returns the files of what is not ours, but for the logs,
// which grow.
func (l *lane) foreignContent(t *testing.T) map[string]string {
	t.Helper()
	content := map[string]string{}
	for _, name := range l.foreign.names {
		for _, folder := range []string{"sandboxes", "snapshots"} {
			dir := filepath.Join(l.state, "local", folder, name)
			err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) {
					return nil // it is in the other folder
				}
				if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, ".log") || strings.Contains(d.Name(), "filestore") {
					return err
				}
				text, err := os.ReadFile(path)
				content[path] = string(text)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return content
}

// command is a command of the lane, in a process group of its own.
func (l *lane) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = l.work
	c.Env = append(slices.Clone(l.env), "SANDBOXER_FAILPOINTS="+l.stage.path)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.WaitDelay = 5 * time.Second
	return c
}

// run runs a command to its end and returns what it said.
func (l *lane) run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var said bytes.Buffer
	c := l.command(ctx, name, args...)
	c.Stdout = &said
	var wrong bytes.Buffer
	c.Stderr = &wrong
	err := c.Run()
	return said.String() + wrong.String(), err
}

// ours returns the living programs of the lane: those that were started with
// its socket. Supervisors of the foreign fleet are among them.
func (l *lane) ours() []process {
	key := "SANDBOXER_FAILPOINTS=" + l.stage.path
	return slices.DeleteFunc(processes(func(_, environ string) bool { return slices.Contains(strings.Split(environ, "\x00"), key) }), func(p process) bool {
		return slices.ContainsFunc(l.foreign.names, func(name string) bool { return strings.Contains(p.line, name) })
	})
}

// find returns a living program of a role; 0 when there is none.
func (l *lane) find(role string) int {
	for _, p := range l.ours() {
		if p.role == role {
			return p.pid
		}
	}
	return 0
}

// held returns the objects of our fleet.
func (l *lane) held() (held []object, unfinished []string, err error) {
	found, unfinished, err := objects(l.state)
	for _, o := range found {
		if !slices.Contains(l.foreign.names, o.id) {
			held = append(held, o)
		}
	}
	return held, unfinished, err
}

// listed returns what the command line lists, of sandboxes and snapshots.
func (l *lane) listed(ctx context.Context) ([]string, error) {
	var ids []string
	for _, args := range [][]string{{"list", "--json"}, {"snapshot", "list", "--json"}} {
		c := l.command(ctx, filepath.Join(l.bin, "sandboxer"), args...)
		var wrong bytes.Buffer
		c.Stderr = &wrong
		out, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("sandboxer %s: %w: %s", strings.Join(args, " "), err, wrong.String())
		}
		var list []struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(out, &list); err != nil {
			return nil, err
		}
		for _, o := range list {
			ids = append(ids, o.ID)
		}
	}
	return ids, nil
}

// busy bounds how many lanes work at a time; one that waits for a deadline
// gives its place to another.
type busy chan struct{}

func (b busy) enter() { b <- struct{}{} }
func (b busy) leave() { <-b }

// terraformPath finds Terraform: as the acceptance suite does, else on PATH.
var terraformPath = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("TF_ACC_TERRAFORM_PATH"); path != "" {
		return path, nil
	}
	return exec.LookPath("terraform")
})
