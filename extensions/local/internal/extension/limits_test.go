// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// tried runs a command that may fail and returns what it wrote.
func tried(t *testing.T, e *extension.Extension, id string, command ...string) (string, sdk.ExecResult, error) {
	t.Helper()
	var out bytes.Buffer
	result, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(id), Command: command, Stdout: &out, Stderr: &out, Timeout: 2 * time.Minute})
	return out.String(), result, err
}

func TestTheDiskLimitHoldsOnTmpfsToo(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "small", Limits: &sdk.Limits{Disk: "16MiB"}}))
	for _, dir := range []string{"/srv", "/dev/shm", "/run/secrets"} {
		out, result, err := tried(t, e, s.ID, "dd", "if=/dev/zero", "of="+dir+"/big", "bs=1M", "count=64")
		if err != nil || result.ExitCode == 0 || !strings.Contains(out, "No space left") {
			t.Errorf("%s: exit code %d, %v, %s", dir, result.ExitCode, err, out)
		}
		run(t, e, s.ID, "rm", dir+"/big")
	}
}

// classes returns what the backend promises on this machine to this user.
func classes(t *testing.T, e *extension.Extension) sdk.Capabilities {
	t.Helper()
	probed, err := e.Probe(t.Context(), sdk.ProbeOptions{})
	if err != nil || !probed.Usable {
		t.Fatalf("%+v, %v", probed, err)
	}
	return probed.Capabilities
}

func TestTheMemoryLimitHolds(t *testing.T) {
	e := backend(t)
	class := classes(t, e).Of(sdk.FeatureMemoryLimit).Class
	for name, command := range map[string][]string{
		"processes": {"python3", "-c", "import time; b = bytearray(1 << 30); time.sleep(100); print(len(b))"},
		"tmpfs":     {"sh", "-c", "head -c 1G /dev/zero > /dev/shm/big; exec sleep 100"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options(sdk.Profile{Name: "small", Limits: &sdk.Limits{Memory: "256MiB"}, Requires: map[sdk.Feature]sdk.Class{sdk.FeatureMemoryLimit: class}})
			s := create(t, e, opts)
			run(t, e, s.ID, "true")
			exceeded := regexp.MustCompile(`limits\.memory of 256\.0 MiB exceeded: [0-9.]+ MiB measured`)
			out, result, err := tried(t, e, s.ID, command...)
			if err == nil || !exceeded.MatchString(err.Error()) || strings.Contains(err.Error(), "urpc") {
				t.Errorf("exec: exit code %d, %v, %s", result.ExitCode, err, out)
			}
			if lost := until(t, e, s.ID, sdk.StatusLost); !exceeded.MatchString(lost.Reason) {
				t.Errorf("reason %q", lost.Reason)
			}
			if _, _, err := tried(t, e, s.ID, "true"); err == nil || !exceeded.MatchString(err.Error()) {
				t.Errorf("exec afterwards: %v", err)
			}
			if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
				t.Fatal(err)
			}
			if left, _ := filepath.Glob("/sys/fs/cgroup/*/sandboxer/" + s.ID); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestTheProcessorLimitHoldsOrIsRefused(t *testing.T) {
	e := backend(t)
	opts := options(sdk.Profile{Name: "slow", Limits: &sdk.Limits{CPUs: 0.5}})
	if classes(t, e).Of(sdk.FeatureCPULimit).Class == sdk.ClassEnforced {
		create(t, e, opts)
		if quota, _ := filepath.Glob("/sys/fs/cgroup/cpu/sandboxer/" + opts.ID + "/cpu.cfs_quota_us"); len(quota) != 1 && !there("/sys/fs/cgroup/sandboxer/"+opts.ID+"/cpu.max") {
			t.Error("it has no group")
		}
		return
	}
	_, err := e.Create(t.Context(), opts)
	var refusal *sdk.Error
	if !errors.Is(err, sdk.ErrUnsupported) || !errors.As(err, &refusal) || refusal.Path != "limits.cpus" {
		t.Errorf("%v, want ErrUnsupported on limits.cpus", err)
	}
}

func TestARequiredClassIsCheckedWhereTheSandboxIsMade(t *testing.T) {
	e := backend(t)
	// Nobody has it enforced: see limitGuarantees.
	opts := options(sdk.Profile{Name: "strict", Limits: &sdk.Limits{Pids: 50}, Requires: map[sdk.Feature]sdk.Class{sdk.FeaturePidsLimit: sdk.ClassEnforced}})
	_, err := e.Create(t.Context(), opts)
	var refusal *sdk.Error
	if !errors.Is(err, sdk.ErrUnsupported) || !errors.As(err, &refusal) || refusal.Path != "requires.pids_limit" {
		t.Errorf("%v, want ErrUnsupported on requires.pids_limit", err)
	}
}

const (
	// fill starts as many processes as it can, and holds them.
	fill = `
import os, time
n = 0
try:
    while n < 100 and os.fork():
        n += 1
except OSError: pass
time.sleep(1000)`
	// threads starts as many in one process, and says how many it could.
	threads = `
import threading, time
n = 0
try:
    while n < 100:
        threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
        n += 1
except RuntimeError: pass
print(n)`
)

func TestTheProcessLimitHolds(t *testing.T) {
	e := backend(t)
	opts := options(sdk.Profile{Name: "few", Limits: &sdk.Limits{Pids: 40}})
	s := create(t, e, opts)
	if out, result, err := tried(t, e, s.ID, "python3", "-c", threads); err != nil || out != "39\n" {
		t.Errorf("threads: %q, %+v, %v; want 39 beside the process", out, result, err)
	}
	// A command that is at the limit is ended in its time, with all of it.
	result, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), Command: []string{"python3", "-c", fill}, Timeout: 3 * time.Second})
	if err != nil || !result.TimedOut {
		t.Errorf("%+v, %v; want a timeout", result, err)
	}
	if left := processes(t, e, s.ID, "python3"); left != "" {
		t.Errorf("still running: %s", left)
	}
	snapshot := snap(t, e, s.ID, sdk.SnapshotMemory)
	for _, pids := range []int64{40, 20, 60} {
		profile := opts.Profile
		profile.Limits = &sdk.Limits{Pids: pids}
		fork := restore(t, e, snapshot.ID, options(profile))
		want := map[int64]string{40: "39\n", 20: "19\n", 60: "59\n"}[pids]
		if out, result, err := tried(t, e, fork.ID, "python3", "-c", threads); err != nil || out != want {
			t.Errorf("restored with %d: threads %q, %+v, %v; want %q", pids, out, result, err, want)
		}
	}
}

func TestTheWallLimitEndsIt(t *testing.T) {
	e := backend(t)
	opts := options(sdk.Profile{Name: "short", Limits: &sdk.Limits{Wall: "2s"}})
	s := create(t, e, opts)
	if expired := until(t, e, s.ID, sdk.StatusExpired); !strings.HasPrefix(expired.Reason, "limits.wall of 2s reached at ") {
		t.Errorf("reason %q", expired.Reason)
	}
}

// Root in a sandbox can mount its kernel's control groups from a user
// namespace and lift its limit.
func TestWhoGetsRoundTheProcessLimitIsEnded(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "few", Limits: &sdk.Limits{Pids: 10}}))
	out, result, err := tried(t, e, s.ID, "unshare", "-Urm", "sh", "-c", `mount -t cgroup2 none /mnt; f=$(echo /mnt/sbx*/pids.max); echo max > $f; exec python3 -c "$0"`, fill)
	exceeded := regexp.MustCompile(`limits\.pids of 10 exceeded: [0-9]+ processes and threads measured`)
	if err == nil || !exceeded.MatchString(err.Error()) {
		t.Errorf("exec: %+v, %v, %s", result, err, out)
	}
	if lost := until(t, e, s.ID, sdk.StatusLost); !exceeded.MatchString(lost.Reason) {
		t.Errorf("reason %q", lost.Reason)
	}
}
