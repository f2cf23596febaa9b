// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

// The whole thing, as a user has it: the binaries of this checkout in a
// filesystem mirror, a real Terraform, and the embedded backend. Only here
// the provider is a process of its own, so only here its end can be tested.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// binaries builds the two programs of this checkout, once.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sandboxer-acceptance-")
	if err != nil {
		return "", err
	}
	for name, from := range map[string]string{"sandboxer": "../..", "sandboxer-extension-local": "../../extensions/local"} {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), ".")
		build.Dir = from
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	// Built by the tests that need them; a second call only returns.
	if built {
		if dir, err := binaries(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

var built bool

// workspace is a directory where Terraform runs with the real provider.
type workspace struct {
	t   *testing.T
	dir string
	bin string
	cli commandLine
	env []string
}

func newWorkspace(t *testing.T, configuration string) *workspace {
	t.Helper()
	w := &workspace{t: t, cli: findCommandLine(t)}
	built = true
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	w.bin = bin
	root, err := os.MkdirTemp("", "sbx") //nolint:usetesting // t.TempDir holds the test's name, and the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	w.dir = filepath.Join(root, "work")
	files := map[string]string{
		filepath.Join(w.dir, "main.tf"):     configuration,
		filepath.Join(root, "terraform.rc"): fmt.Sprintf("disable_checkpoint = true\nprovider_installation {\n  filesystem_mirror {\n    path = %q\n    include = [\"*/*/*\"]\n  }\n}\n", filepath.Join(root, "mirror")),
	}
	for file, content := range files {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, host := range []string{"registry.terraform.io", "registry.opentofu.org"} {
		place := filepath.Join(root, "mirror", host, "sand-boxer", "sandboxer", "0.1.0", runtime.GOOS+"_"+runtime.GOARCH)
		if err := os.MkdirAll(place, 0o755); err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{"sandboxer": "terraform-provider-sandboxer_v0.1.0", "sandboxer-extension-local": "sandboxer-extension-local"} {
			if err := os.Link(filepath.Join(bin, from), filepath.Join(place, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "TF_") || strings.HasPrefix(v, "SANDBOXER_")
	}), "TF_CLI_CONFIG_FILE="+filepath.Join(root, "terraform.rc"), "TF_IN_AUTOMATION=1", "CHECKPOINT_DISABLE=1",
		"SANDBOXER_STATE_DIR="+filepath.Join(root, "state"), "XDG_CONFIG_HOME="+filepath.Join(root, "config"))
	w.terraform("init")
	t.Cleanup(func() { w.terraform("destroy", "-auto-approve") })
	return w
}

func (w *workspace) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir, c.Env = w.dir, w.env
	return c
}

// terraform runs Terraform and returns what it said.
func (w *workspace) terraform(args ...string) string {
	w.t.Helper()
	out, err := w.command(w.cli.path, append(args, "-no-color")...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("terraform %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// sandboxer runs the command line.
func (w *workspace) sandboxer(args ...string) string {
	w.t.Helper()
	c := w.command(filepath.Join(w.bin, "sandboxer"), args...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		w.t.Fatalf("sandboxer %v: %v\n%s%s", args, err, out, said.String())
	}
	return string(out)
}

// ids returns what the command line lists with a status.
func (w *workspace) ids(statuses ...string) []string {
	w.t.Helper()
	var list []struct {
		ID     string `json:"id"`
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(w.sandboxer("list", "--json")), &list); err != nil {
		w.t.Fatal(err)
	}
	var ids []string
	for _, s := range list {
		if slices.Contains(statuses, s.Status) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// until waits for a condition of the outside world.
func (w *workspace) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(90 * time.Second); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: not within 90 s", what)
		}
	}
}

const localHeader = `
terraform {
  required_providers {
    sandboxer = { source = "sand-boxer/sandboxer" }
  }
}
`

func TestAccLocal(t *testing.T) {
	w := newWorkspace(t, localHeader+`
provider "sandboxer" {
  fleet = "acceptance"
}
variable "ttl" { default = "15m" }
resource "sandboxer_profile" "counter" {
  name    = "counter"
  command = ["/bin/sh", "-c", "n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 1; done"]
  ready   = { exec = ["/bin/sh", "-c", "test -s /tmp/count"], timeout = "30s" }
}
resource "sandboxer_sandbox" "warm" {
  profile = sandboxer_profile.counter.document
  ttl     = var.ttl
  env     = { STAGE = "e2e" }
}
resource "sandboxer_snapshot" "warm" {
  sandbox_id = sandboxer_sandbox.warm.id
  kind       = "memory"
  ttl        = "1h"
}
resource "sandboxer_sandbox" "fork" {
  snapshot = sandboxer_snapshot.warm.id
  ttl      = "10m"
}
resource "terraform_data" "follower" {
  triggers_replace = sandboxer_sandbox.warm.id
}
data "sandboxer_backend" "local" {
  probe = true
}
output "warm" { value = sandboxer_sandbox.warm.id }
output "fork" { value = sandboxer_sandbox.fork.id }
output "usable" { value = data.sandboxer_backend.local.usable }
`)
	w.env = append(w.env, "SANDBOXER_FLEET=acceptance")
	output := func(name string) string { return strings.TrimSpace(w.terraform("output", "-raw", name)) }
	w.terraform("apply", "-auto-approve")
	warm, fork := output("warm"), output("fork")
	if output("usable") != "true" {
		t.Error("the backend is not usable")
	}
	for _, id := range []string{warm, fork} {
		if got := strings.TrimSpace(w.sandboxer("exec", id, "--", "/bin/sh", "-c", "test -s /tmp/count && echo counted")); got != "counted" {
			t.Errorf("%s: %q", id, got)
		}
	}
	empty := func() {
		t.Helper()
		if said := w.terraform("plan"); !strings.Contains(said, "No changes") {
			t.Errorf("the plan is not empty:\n%s", said)
		}
	}
	empty()
	if said := w.terraform("apply", "-auto-approve", "-var", "ttl=30m"); !strings.Contains(said, "1 changed") || output("warm") != warm {
		t.Errorf("not extended in place:\n%s", said)
	}
	// Reaped without any Terraform, seen and replaced by the next plan; the
	// snapshot and its fork stay.
	w.sandboxer("expire", warm)
	w.sandboxer("reap")
	said := w.terraform("apply", "-auto-approve", "-var", "ttl=30m")
	if !strings.Contains(said, "2 added, 0 changed, 2 destroyed") || output("warm") == warm || output("fork") != fork {
		t.Errorf("not replaced with what follows it:\n%s", said)
	}
	w.terraform("destroy", "-auto-approve")
	if left := w.ids("creating", "ready", "paused", "failed", "lost"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Each kind of end, with nobody there: what it leaves, what a plan makes of
// it, and a bound that refuses an apply and never a destroy.
func TestAccLocalEnds(t *testing.T) {
	w := newWorkspace(t, localHeader+`
provider "sandboxer" {
  fleet         = "acceptance"
  max_sandboxes = 3
}
variable "extra" { default = 0 }
locals {
  profile = jsonencode({ name = "plain" })
}
resource "sandboxer_sandbox" "kept" {
  profile             = local.profile
  ttl                 = "15m"
  on_expiry           = "snapshot"
  expiry_snapshot_ttl = "1h"
  on_expired          = "forget"
}
resource "sandboxer_sandbox" "idle" {
  profile      = local.profile
  ttl          = "15m"
  idle_timeout = "5s"
}
resource "sandboxer_sandbox" "paused" {
  profile   = local.profile
  ttl       = "15m"
  on_expiry = "pause"
}
resource "sandboxer_sandbox" "extra" {
  count   = var.extra
  profile = local.profile
}
output "kept" { value = sandboxer_sandbox.kept.id }
output "kept_status" { value = sandboxer_sandbox.kept.status }
output "snapshot" { value = sandboxer_sandbox.kept.expiry_snapshot_id }
output "idle" { value = sandboxer_sandbox.idle.id }
output "idle_reason" { value = sandboxer_sandbox.idle.end_reason }
output "paused" { value = sandboxer_sandbox.paused.id }
output "paused_status" { value = sandboxer_sandbox.paused.status }
`)
	w.env = append(w.env, "SANDBOXER_FLEET=acceptance")
	output := func(name string) string { return strings.TrimSpace(w.terraform("output", "-raw", name)) }
	w.terraform("apply", "-auto-approve")
	kept, idle, paused := output("kept"), output("idle"), output("paused")
	// There is room for no more, unless one ends: the plan warns and the apply
	// refuses, before anything is made.
	w.sandboxer("exec", idle, "--", "/bin/true") // a use, or it would make room
	said, err := w.command(w.cli.path, "apply", "-auto-approve", "-no-color", "-refresh=false", "-target=sandboxer_sandbox.extra", "-var", "extra=4").CombinedOutput()
	if err == nil || !strings.Contains(string(said), "max_sandboxes: the fleet has ") || !strings.Contains(string(said), "Warning: Exhausted quota") {
		t.Errorf("four more: %v\n%s", err, said)
	}
	w.sandboxer("exec", kept, "--", "/bin/sh", "-c", "echo remembered > /srv/note || echo remembered > /tmp/note")
	w.sandboxer("expire", kept, "--in", "20s")
	w.sandboxer("expire", paused)
	w.until("all have ended", func() bool {
		return slices.Contains(w.ids("expired"), kept) && slices.Contains(w.ids("expired"), idle) && slices.Contains(w.ids("paused"), paused)
	})
	w.terraform("apply", "-refresh-only", "-auto-approve")
	for name, want := range map[string]string{"kept_status": "expired", "idle_reason": "idle", "paused_status": "paused"} {
		if got := output(name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	fork := strings.TrimSpace(w.sandboxer("restore", output("snapshot"), "-q"))
	if got := w.sandboxer("exec", fork, "--", "/bin/sh", "-c", "cat /srv/note /tmp/note 2>/dev/null || true"); got != "remembered\n" {
		t.Errorf("the snapshot of its end holds %q", got)
	}
	w.sandboxer("destroy", fork)
	w.sandboxer("extend", paused, "--ttl", "10m")
	w.sandboxer("resume", paused)
	if got := w.sandboxer("exec", paused, "--", "/bin/echo", "awake"); got != "awake\n" {
		t.Errorf("resumed: %q", got)
	}
	// The idle one is made anew, the forgotten one is not, the resumed one stays.
	w.terraform("apply", "-auto-approve")
	if output("idle") == idle || output("kept") != kept || output("paused") != paused {
		t.Error("another plan was carried out")
	}
	w.terraform("destroy", "-auto-approve")
	if left := w.ids("creating", "ready", "paused", "failed", "lost"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	w.sandboxer("snapshot", "delete", sdk.ExpirySnapshotID(kept))
}

// slow is a create that hangs in its setup.
const slow = localHeader + `
resource "sandboxer_sandbox" "slow" {
  profile = jsonencode({ name = "slow", setup = [["/bin/sh", "-c", "sleep 120"]] })
  ttl     = "10m"
}
`

// Whatever ends Terraform in the middle of a create, nothing is left, and no
// process either.
func TestAccLocalInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		signal syscall.Signal
		group  bool // Terraform's whole process group gets it, the plugin too
	}{
		"SIGINT to Terraform":  {syscall.SIGINT, false},
		"SIGINT to the group":  {syscall.SIGINT, true},
		"SIGTERM to Terraform": {syscall.SIGTERM, false},
		"SIGTERM to the group": {syscall.SIGTERM, true},
		"SIGKILL to Terraform": {syscall.SIGKILL, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t, slow)
			apply := w.command(w.cli.path, "apply", "-auto-approve", "-no-color")
			apply.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			var said bytes.Buffer
			apply.Stdout, apply.Stderr = &said, &said
			if err := apply.Start(); err != nil {
				t.Fatal(err)
			}
			w.until("the sandbox is there", func() bool { return len(w.ids("creating", "ready")) == 1 })
			plugins := children(t, apply.Process.Pid)
			begin := time.Now()
			target := apply.Process.Pid
			if c.group {
				target = -target
			}
			if err := syscall.Kill(target, c.signal); err != nil {
				t.Fatal(err)
			}
			_ = apply.Wait()
			w.until("the sandbox is gone", func() bool { return len(w.ids("creating", "ready", "failed")) == 0 })
			took := time.Since(begin)
			if took > 20*time.Second {
				t.Errorf("the rollback took %s:\n%s", took, said.String())
			}
			w.until("the plugin is gone", func() bool { return !slices.ContainsFunc(plugins, alive) })
			if _, err := os.Stat(filepath.Join(w.dir, "terraform.tfstate")); err == nil && c.signal != syscall.SIGKILL {
				if listed := w.terraform("state", "list"); strings.TrimSpace(listed) != "" {
					t.Errorf("the state holds %s", listed)
				}
			}
			// A killed Terraform leaves its lock.
			_ = os.Remove(filepath.Join(w.dir, ".terraform.tfstate.lock.info"))
		})
	}
}

// children returns the processes that a process has started.
func children(t *testing.T, pid int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue // it ended meanwhile
		}
		// The name in parentheses may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			found = append(found, child)
		}
	}
	if len(found) == 0 {
		t.Fatal("Terraform has started no plugin")
	}
	return found
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(stat[bytes.LastIndexByte(stat, ')')+1:])), "Z")
}
