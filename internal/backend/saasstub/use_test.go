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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestCommands(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	if err := c.put(t, target, "/", directory("d/e"), directory("d")); err != nil {
		t.Fatal(err)
	}
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
		"cat /d":                             {1, "cat: /d: is a directory\n"},
		"rm /d; echo x > /d":                 {1, "rm: /d: is a directory\nsh: /d: is a directory\n"},
		"ls /d":                              {0, "e\n"},
		"ls /d/e":                            {0, ""},
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
	if result, err := run(t.Context(), 0, 30*time.Minute); err != nil || result.ExitCode != 137 {
		t.Errorf("box: %+v, %v", result, err)
	}
	if now := c.clock.Now(); now.After(start.Add(90 * time.Minute)) {
		t.Errorf("it went on until %s", now)
	}
}

func TestFilesGoInAndOut(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	if err := c.put(t, target, "/w", regular("a"), regular("d/b"), directory("d"), directory("d/empty")); err != nil {
		t.Fatal(err)
	}
	for name, entries := range map[string][]tar.Header{
		"a directory over a file": {directory("a")}, "a file over a directory": {regular("d/empty")}, "a file below a file": {regular("a/x")},
	} {
		if err := c.put(t, target, "/w", entries...); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var out bytes.Buffer
	if got, err := c.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target, Path: "/w/", Archive: &out}); err != nil || got.Bytes != 2 {
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
	if diff := cmp.Diff([]string{"w/a 640", "w/d/ 700", "w/d/b 640", "w/d/empty/ 700"}, names); diff != "" {
		t.Error(diff)
	}
	if _, err := c.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target, Path: "/nowhere", Archive: &out}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	if err := c.put(t, target, "/w", regular("../x")); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a way out: %v", err)
	}
}

func regular(name string) tar.Header {
	return tar.Header{Name: name, Mode: 0o640, Size: 1, Typeflag: tar.TypeReg}
}

func directory(name string) tar.Header {
	return tar.Header{Name: name + "/", Mode: 0o700, Typeflag: tar.TypeDir}
}

// put copies files of one byte and directories into a box.
func (c cloud) put(t *testing.T, target sdk.Target, dir string, entries ...tar.Header) error {
	t.Helper()
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for _, entry := range entries {
		if err := w.WriteHeader(&entry); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(entry.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := c.CopyIn(t.Context(), sdk.CopyInOptions{Target: target, Path: dir, Archive: &in})
	return err
}

// A main process writes by the vendor's clock, and not while its box is
// paused. Who follows sees it all, until the end.
func TestALogGrowsAndIsFollowed(t *testing.T) {
	c := newCloud(t)
	options := creation(1)
	options.Profile.Command = []string{"sh", "-c", "echo a; sleep 1m; echo b; sleep 1m; echo c; sleep 1h; echo never"}
	if _, err := c.Create(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: options.ID, Fleet: "ci"}
	log := func() string {
		var log bytes.Buffer
		if _, err := c.Logs(t.Context(), sdk.LogsOptions{Target: target, Output: &log}); err != nil {
			t.Error(err)
		}
		return log.String()
	}
	follow := func(ctx context.Context) (*bytes.Buffer, chan error) {
		out, end := &bytes.Buffer{}, make(chan error, 1)
		go func() {
			_, err := c.Logs(ctx, sdk.LogsOptions{Target: target, Follow: true, Tail: 1, Output: out})
			end <- err
		}()
		return out, end
	}
	if _, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	c.clock.Advance(5 * time.Minute)
	if _, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	if got := log(); got != "a\n" {
		t.Errorf("after a pause: %q", got)
	}
	c.clock.Advance(time.Minute)
	if got := log(); got != "a\nb\n" {
		t.Errorf("a minute later: %q", got)
	}
	ended, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, end := follow(ended); !errors.Is(<-end, context.DeadlineExceeded) {
		t.Error("following does not end with its context")
	}
	reads := c.Calls()[CallGetLog]
	out, end := follow(t.Context())
	for c.Calls()[CallGetLog] <= reads+1 { // the first one has ended
		time.Sleep(time.Millisecond)
	}
	c.clock.Advance(time.Hour)
	if err := <-end; err != nil || out.String() != "b\nc\n" {
		t.Errorf("until the deadline: %q, %v", out, err)
	}
	if got := log(); got != "a\nb\nc\n" {
		t.Errorf("after the deadline: %q", got)
	}
	target = c.mustCreateUntil(t, 2, c.clock.Now().Add(time.Hour))
	_, end = follow(t.Context())
	if _, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	// Nothing was there to follow, if it came too late.
	if err := <-end; err != nil && !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("until a destroy: %v", err)
	}
}

// A paused box holds its commands up, and one that is killed ends them.
func TestACommandWaitsWhileItsBoxIsPaused(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	// sleep begins to sleep for a minute.
	sleep := func() chan sdk.ExecResult {
		end := make(chan sdk.ExecResult, 1)
		reader, writer := io.Pipe()
		go func() {
			result, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", "echo up; sleep 1m"}, Stdout: writer})
			_ = writer.CloseWithError(err) // ends the read below, should nothing have come
			end <- result
		}()
		if _, err := reader.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		return end
	}
	// moved moves the clock until a command ends.
	moved := func(end chan sdk.ExecResult) sdk.ExecResult {
		for {
			select {
			case result := <-end:
				return result
			case <-time.After(time.Millisecond):
				c.clock.Advance(10 * time.Second)
			}
		}
	}
	end := sleep()
	if _, err := c.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		c.clock.Advance(time.Minute)
		select {
		case result := <-end:
			t.Fatalf("it ended while paused: %+v", result)
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := c.Resume(t.Context(), sdk.ResumeOptions{Target: target}); err != nil {
		t.Fatal(err)
	}
	if result := moved(end); result.ExitCode != 0 {
		t.Errorf("resumed: %+v", result)
	}
	end = sleep()
	if err := c.Kill(target.Ref); err != nil {
		t.Fatal(err)
	}
	if result := moved(end); result.ExitCode != 137 {
		t.Errorf("killed: %+v", result)
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
