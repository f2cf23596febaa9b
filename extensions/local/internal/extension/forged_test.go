// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestAForgedRecordRemovesNothingOfTheHost(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	victims := filepath.Join(t.TempDir(), "sandboxer")
	file, folder := filepath.Join(victims, "file"), filepath.Join(victims, s.ID)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(recordOf(state, s.ID))
	_, err := record.Update(dir, s.ID, func(r *record.Record) error {
		r.Cgroups = []string{"/sys/fs/cgroup/../../.." + file, "/sys/fs/cgroup/../../.." + folder, file, folder, "/sys/fs/cgroup/x/sandboxer/" + s.ID}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
		t.Error(err)
	}
	if !there(file) || !there(folder) {
		t.Errorf("file there %v, folder there %v", there(file), there(folder))
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/sandboxer/" + s.ID); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAForgedNameKillsNobodyElse(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	for name, forge := range map[string]func(record.Process) any{
		"another process": func(p record.Process) any { return p },
		"garbage":         func(record.Process) any { return "x" },
	} {
		s := create(t, e, options(sdk.Profile{Name: "shell"}))
		victim := exec.Command("sleep", "1000")
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		dead := make(chan error, 1)
		go func() { dead <- victim.Wait() }()
		pid := strconv.Itoa(victim.Process.Pid)
		start, err := record.StartTime(pid)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(forge(record.Process{Pid: victim.Process.Pid, Start: start, Boot: record.BootID()}))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(recordOf(state, s.ID)), "supervisor.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
			t.Errorf("%s: destroy: %v", name, err)
		}
		if left := hostProcesses(t, s.ID); len(left) > 0 {
			t.Errorf("%s: the sandbox still runs: %v", name, left)
		}
		if err := victim.Process.Kill(); err != nil {
			t.Errorf("%s: the other process: %v", name, err)
		}
		var exit *exec.ExitError
		if err := <-dead; !errors.As(err, &exit) {
			t.Error(err)
		}
	}
}
