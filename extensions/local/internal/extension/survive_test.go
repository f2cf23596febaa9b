// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

// What a memory snapshot keeps of what exec started, and how a main process
// that can't be started is told.

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// ticker counts in memory and shows its count in a file, whole.
const ticker = `n=0; while :; do n=$((n+1)); echo $n > %[1]s.new; mv %[1]s.new %[1]s; sleep 0.02; done`

// ticks returns the count in a file once it is beyond another.
func ticks(t *testing.T, e *extension.Extension, id, file string, beyond int) (n int) {
	t.Helper()
	got := run(t, e, id, "sh", "-c", fmt.Sprintf("until [ -e %[1]s ] && n=$(cat %[1]s) && [ $n -gt %[2]d ]; do sleep 0.02; done; echo $n", file, beyond))
	if _, err := fmt.Sscan(got, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMemoryForksKeepWhatExecStarted(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	for name, command := range map[string]string{
		"background": "(" + ticker + ") > /dev/null 2>&1 &",
		"daemon":     "setsid sh -c '" + ticker + "' > /dev/null 2>&1 < /dev/null &",
	} {
		run(t, e, s.ID, "sh", "-c", fmt.Sprintf(command, "/srv/"+name))
	}
	// A command whose client waits for it all the time.
	waiting := make(chan error, 1)
	go func() {
		_, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), Command: []string{"sh", "-c", fmt.Sprintf(ticker, "/srv/foreground")}})
		waiting <- err
	}()
	last := map[string]int{}
	for _, name := range []string{"background", "daemon", "foreground"} {
		last[name] = ticks(t, e, s.ID, "/srv/"+name, 3)
	}
	made := snap(t, e, s.ID, sdk.SnapshotMemory)
	if len(made.Lost) != 0 {
		t.Errorf("lost %q", made.Lost)
	}
	for range 2 {
		fork := restore(t, e, made.ID, options(sdk.Profile{Name: "shell"}))
		for name, n := range last {
			ticks(t, e, fork.ID, "/srv/"+name, n+10)
		}
		// What runs there is found and ended like anywhere.
		run(t, e, fork.ID, "sh", "-c", `for p in /proc/[0-9]*; do grep -q "srv/daemo[n]" $p/cmdline 2>/dev/null && kill ${p#/proc/}; done; true`) // not the one that looks
	}
	for name, n := range last {
		ticks(t, e, s.ID, "/srv/"+name, n+10) // the source goes on
	}
	select {
	case err := <-waiting:
		t.Errorf("the client of the command that runs was sent away: %v", err)
	default:
	}
}

func TestAMainProcessThatCanNotStart(t *testing.T) {
	e := backend(t)
	for name, test := range map[string]struct {
		profile sdk.Profile
		path    string
		want    string
	}{
		"no such command":      {sdk.Profile{Command: []string{"no-such-command", "x"}}, "command[0]", `"no-such-command"`},
		"no program":           {sdk.Profile{Command: []string{"/etc/passwd"}}, "command[0]", "permission denied"},
		"a file for a workdir": {sdk.Profile{Command: []string{"true"}, Workdir: "/etc/passwd"}, "workdir", "/etc/passwd"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options(test.profile)
			_, err := e.Create(t.Context(), opts)
			var invalid *sdk.Error
			if !errors.As(err, &invalid) || invalid.Kind != sdk.ErrInvalid || invalid.Path != test.path || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want an error about %s that names %s", err, test.path, test.want)
			}
			if _, err := e.Get(t.Context(), sdk.GetOptions{Target: target(opts.ID)}); !errors.Is(err, sdk.ErrNotFound) {
				t.Errorf("get: %v, want nothing left", err)
			}
		})
	}
}

func TestAMainProcessThatEndsIsTold(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Command: []string{"sh", "-c", "exit 3"}}))
	const want = "the main process ended with exit code 3"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		got, err := e.Get(t.Context(), sdk.GetOptions{Target: target(s.ID)})
		if err != nil {
			t.Fatal(err)
		}
		if got.Sandbox.Status == sdk.StatusReady && got.Sandbox.Reason == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, reason %q; want ready, %q", got.Sandbox.Status, got.Sandbox.Reason, want)
		}
	}
}
