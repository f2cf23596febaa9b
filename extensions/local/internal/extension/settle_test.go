// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// killed makes a sandbox and kills its supervisor. It returns its directory
// and the supervisor's name.
func killed(t *testing.T, state string, limits *sdk.Limits) (id, dir string, name record.Process) {
	t.Helper()
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell", Limits: limits}))
	dir = filepath.Dir(recordOf(state, s.ID))
	data, err := os.ReadFile(filepath.Join(dir, "supervisor.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &name); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(name.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for record.SupervisorAlive(dir) {
		time.Sleep(time.Millisecond)
	}
	return s.ID, dir, name
}

func TestAfterARestartOfTheMachine(t *testing.T) {
	state := stateDir(t)
	id, dir, name := killed(t, state, &sdk.Limits{Pids: 100})
	name.Boot = "00000000-0000-0000-0000-000000000000"
	data, err := json.Marshal(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "supervisor.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	e := backendAt(t, state, time.Now)
	list, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].Status != sdk.StatusLost || list.Sandboxes[0].Reason != "the machine was restarted" {
		t.Errorf("%+v, %v", list, err)
	}
	if r, err := record.Read(dir, id); err != nil || r.Status != sdk.StatusLost || r.Reason != "the machine was restarted" {
		t.Errorf("on disk: %s (%s), %v", r.Status, r.Reason, err)
	}
	left, _ := filepath.Glob("/sys/fs/cgroup/*/sandboxer/" + id)
	if len(left) > 0 || there(filepath.Join(dir, "sock")) || there("/sys/fs/cgroup/sandboxer/"+id) {
		t.Errorf("left: groups %v, socket %v", left, there(filepath.Join(dir, "sock")))
	}
}

func TestALimitIsRememberedWhenTheGroupsAreGone(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "small", Limits: &sdk.Limits{Memory: "128MiB"}}))
	_, _, _ = tried(t, e, s.ID, "python3", "-c", "import time; b = bytearray(1 << 30); time.sleep(100)")
	before := until(t, e, s.ID, sdk.StatusLost)
	if before.EndReason != sdk.EndLimit {
		t.Errorf("%+v", before)
	}
	for dir := filepath.Dir(recordOf(state, s.ID)); record.SupervisorAlive(dir); {
		time.Sleep(time.Millisecond)
	}
	if _, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet}); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/sandboxer/" + s.ID); len(left) > 0 {
		t.Errorf("groups of a dead one: %v", left)
	}
	if after, err := e.Get(t.Context(), sdk.GetOptions{Target: target(s.ID)}); err != nil || after.Sandbox.Reason != before.Reason || after.Sandbox.EndReason != sdk.EndLimit {
		t.Errorf("%q (%s), want %q, %v", after.Sandbox.Reason, after.Sandbox.EndReason, before.Reason, err)
	}
}

// A process of a sandbox that has outlived its supervisor can't be made with
// the kernel's help, so one is put there.
func TestAStrayProcessIsKilled(t *testing.T) {
	state := stateDir(t)
	id, dir, _ := killed(t, state, nil)
	info, err := os.Lstat(dir)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	start := func(argv0, about string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "/bin/sh")
		cmd.Args = []string{argv0, "-c", "read line", "runsc", about}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid, NoSetGroups: os.Geteuid() != 0}}
		if _, err := cmd.StdinPipe(); err != nil { // it reads for ever
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	stray := start("runsc-sandbox", id)
	others := []*exec.Cmd{start("runsc-sandbox", newID("sbx-")), start("sh", id)}
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	e := backendAt(t, state, time.Now)
	if _, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the stray still runs")
	}
	for _, other := range others {
		if err := other.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("%q was ended: %v", other.Args, err)
		}
	}
}
