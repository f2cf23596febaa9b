// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestCommands(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	for script, want := range map[string]struct {
		code int
		out  string
	}{
		"true":                               {0, ""},
		"false":                              {1, ""},
		"exit 7":                             {7, ""},
		"false && echo no":                   {1, ""},
		"false; echo yes":                    {0, "yes\n"},
		"exit 3; echo no":                    {3, ""},
		`echo "a  b" 'c $A' $A x$A`:          {0, "a  b c $A 1 x1\n"},
		"echo a > /t/f; echo b >> /t/f":      {0, ""},
		"echo a > /u; cat /u; rm /u; cat /u": {1, "a\ncat: /u: no such file\n"},
		"ls /etc; ls /nowhere":               {1, "motd\nls: /nowhere: no such directory\n"},
		"printenv A; printenv B":             {1, "1\n"},
		"pwd":                                {0, "/\n"},
		"reboot":                             {127, "reboot: not found\n"},
		"echo -n x":                          {0, "x"},
		"":                                   {0, ""},
	} {
		if code, out := c.sh(t, target, script); code != want.code || out != want.out {
			t.Errorf("%s: %d, %q; want %d, %q", script, code, out, want.code, want.out)
		}
	}
}

func TestACommandEndsWithItsTimeoutItsCallerOrItsBox(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	// run begins a sleep of two hours and moves the clock until it ends.
	run := func(ctx context.Context, timeout, step time.Duration) (sdk.ExecResult, error) {
		type ended struct {
			result sdk.ExecResult
			err    error
		}
		end := make(chan ended, 1)
		go func() {
			result, err := c.Exec(ctx, sdk.ExecOptions{Target: target, Command: []string{"sleep", "2h"}, Timeout: timeout})
			end <- ended{result, err}
		}()
		for {
			select {
			case e := <-end:
				return e.result, e.err
			case <-time.After(time.Millisecond):
				c.clock.Advance(step)
			}
		}
	}
	if result, err := run(t.Context(), time.Second, time.Second); err != nil || !result.TimedOut {
		t.Errorf("timeout: %+v, %v", result, err)
	}
	cancelled, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := run(cancelled, 0, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("caller: %v", err)
	}
	if result, err := run(t.Context(), 0, 30*time.Minute); err == nil && result.ExitCode != 137 {
		t.Errorf("box: %+v", result)
	}
}

func TestFilesGoInAndOut(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for name, content := range map[string]string{"a": "1", "d/b": "22"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o750, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if put, err := c.CopyIn(t.Context(), sdk.CopyInOptions{Target: target, Path: "/w", Archive: &in}); err != nil || put.Bytes != 3 {
		t.Fatalf("%+v, %v", put, err)
	}
	var out bytes.Buffer
	if got, err := c.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target, Path: "/w/", Archive: &out}); err != nil || got.Bytes != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	var names []string
	for r := tar.NewReader(&out); ; {
		header, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, fmt.Sprintf("%s %o", header.Name, header.Mode))
	}
	if diff := cmp.Diff([]string{"w/a 750", "w/d/b 750"}, names); diff != "" {
		t.Error(diff)
	}
	if _, err := c.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target, Path: "/nowhere", Archive: &out}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	var hostile bytes.Buffer
	w = tar.NewWriter(&hostile)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "../x", Typeflag: tar.TypeReg}), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CopyIn(t.Context(), sdk.CopyInOptions{Target: target, Path: "/w", Archive: &hostile}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a way out: %v", err)
	}
}

func TestPauseAndLogs(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	for range 2 {
		if paused, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil || paused.Sandbox.Status != sdk.StatusPaused {
			t.Errorf("%+v, %v", paused, err)
		}
	}
	if _, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"true"}}); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("exec while paused: %v", err)
	}
	if resumed, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target}); err != nil || resumed.Sandbox.Status != sdk.StatusReady {
		t.Errorf("%+v, %v", resumed, err)
	}
	var log bytes.Buffer
	if got, err := c.Logs(t.Context(), sdk.LogsOptions{Target: target, Tail: 1, Output: &log}); err != nil || got.Bytes != 3 || log.String() != "up\n" {
		t.Errorf("%q, %v", log.String(), err)
	}
}
