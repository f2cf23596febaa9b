// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package backend

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// gone reports whether no process has this number. One that was reparented
// and is a zombie is gone as well.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestACrashIsAClearErrorAndTheNextOpenStartsAnew(t *testing.T) {
	r := registry(t, nil)
	ext := open(t, r)
	first := pid(t, ext)
	_, err := ext.(sdk.Execer).Exec(t.Context(), sdk.ExecOptions{Command: []string{"crash"}})
	isA(t, err, sdk.ErrCrashed, "fake", binary, "Exec", "signal: killed", `"fake: about to crash"`, "may have acted")
	_, err = ext.Get(t.Context(), sdk.GetOptions{})
	isA(t, err, sdk.ErrCrashed, "Get")
	if again := pid(t, open(t, r)); again == first {
		t.Error("it is the same process")
	}
}

func TestAKillFromOutsideIsACrash(t *testing.T) {
	r := registry(t, nil)
	ext := open(t, r)
	opts := sdk.CreateOptions{ID: "sbx-1", Profile: sdk.Profile{Template: "wait"}}
	victim := pid(t, ext)
	opts.Progress = func(p sdk.Progress) {
		if p.Phase == "boot" {
			_ = syscall.Kill(victim, syscall.SIGKILL)
		}
	}
	_, err := ext.Create(t.Context(), opts)
	isA(t, err, sdk.ErrCrashed, "Create", "signal: killed")
}

func TestAPanicIsQuoted(t *testing.T) {
	r := registry(t, nil)
	_, err := open(t, r).(sdk.Execer).Exec(t.Context(), sdk.ExecOptions{Command: []string{"panic"}})
	isA(t, err, sdk.ErrCrashed, "exit status 2", `"panic: fake: a bug"`)
	if len(err.Error()) > 2000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func TestAStartThatFailsSaysWhy(t *testing.T) {
	dir := t.TempDir()
	elf := "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\xb7\x00\x01\x00\x00\x00" + strings.Repeat("\x00", 40)
	for name, test := range map[string]struct {
		path, mode string
		kind       error
		words      []string
	}{
		"it exits":                  {binary, "exit", sdk.ErrCrashed, []string{"ended during its start", "exit status 7", "cannot find my configuration"}},
		"it says nothing":           {binary, "mute", sdk.ErrUnreachable, []string{"in time"}},
		"it is no extension":        {binary, "chatty", sdk.ErrUnreachable, []string{"is no extension", "I am not an extension"}},
		"another protocol":          {binary, "future", sdk.ErrUnreachable, []string{"protocol version", "99", "same age"}},
		"it exits without a word":   {script(t, dir, "true", "#!/bin/sh\n", 0o755), "", sdk.ErrCrashed, []string{"exit status 0"}},
		"not executable":            {script(t, dir, "plain", "#!/bin/sh\n", 0o644), "", sdk.ErrUnreachable, []string{"not executable"}},
		"not a program":             {script(t, dir, "text", "hello", 0o755), "", sdk.ErrUnreachable, []string{"can't be executed", "no program that this system knows"}},
		"a program for another cpu": {script(t, dir, "elf", elf, 0o755), "", sdk.ErrUnreachable, []string{"can't be executed", "arm64"}},
		"a folder":                  {dir, "", sdk.ErrUnreachable, []string{"not a regular file"}},
		"not there":                 {filepath.Join(dir, "nothing"), "", sdk.ErrUnreachable, []string{"no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_MODE", test.mode)
			t.Setenv("TMPDIR", t.TempDir())
			r := registry(t, func(o *Options, c *Config) {
				c.Path, c.Env = test.path, []string{"FAKE_MODE"}
				if test.mode == "mute" {
					o.StartTimeout = 100 * time.Millisecond
				}
			})
			_, err := r.Open(t.Context(), "b")
			isA(t, err, test.kind, append(test.words, "fake")...)
			if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestAnExtensionByAnotherNameIsRefused(t *testing.T) {
	r := registry(t, func(_ *Options, c *Config) { c.Extension = "acme" })
	_, err := r.Open(t.Context(), "b")
	isA(t, err, sdk.ErrUnreachable, "acme", `calls itself "fake"`)
}

func TestCloseLetsCallsFinishTheirSaveStep(t *testing.T) {
	saved := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	r := registry(t, func(_ *Options, c *Config) { c.JSON = []byte(`{"save":"` + saved + `"}`) })
	ext := open(t, r)
	process := pid(t, ext)
	begun, done := make(chan struct{}), make(chan error, 1)
	opts := sdk.CreateOptions{ID: "sbx-1", Profile: sdk.Profile{Template: "wait"}, Progress: func(p sdk.Progress) {
		if p.Phase == "boot" {
			close(begun)
		}
	}}
	go func() { _, err := ext.Create(context.Background(), opts); done <- err }()
	<-begun
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "rolled back") {
		t.Errorf("the call in flight ended with %v", err)
	}
	for _, name := range []string{"save-step", "closed"} {
		if _, err := os.Stat(filepath.Join(saved, name)); err != nil {
			t.Error(err)
		}
	}
	if !gone(process) {
		t.Error("the process is still there")
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	_, err := ext.Get(context.Background(), sdk.GetOptions{})
	isA(t, err, sdk.ErrUnreachable, "closed")
}

func TestCloseKillsWhatDoesNotEnd(t *testing.T) {
	r := New(Options{Backends: map[string]Config{"b": {Extension: "fake", Path: binary}}, StopTimeout: 100 * time.Millisecond})
	ext := open(t, r)
	process := pid(t, ext)
	begun := make(chan struct{})
	go func() {
		_, _ = ext.(sdk.Execer).Exec(context.Background(), sdk.ExecOptions{Command: []string{"hang"}, Stdout: closer{begun}})
	}()
	<-begun
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("%v", err)
	}
	if !gone(process) {
		t.Error("the process is still there")
	}
	noGoroutineLeft(t)
}

// closer closes a channel at the first write.
type closer struct{ c chan struct{} }

func (w closer) Write(p []byte) (int, error) { close(w.c); return len(p), nil }

func TestSIGTERMEndsAnExtensionAfterItsSaveStep(t *testing.T) {
	saved := t.TempDir()
	r := registry(t, func(_ *Options, c *Config) { c.JSON = []byte(`{"save":"` + saved + `"}`) })
	ext := open(t, r)
	process := pid(t, ext)
	opts := sdk.CreateOptions{ID: "sbx-1", Profile: sdk.Profile{Template: "wait"}, Progress: func(p sdk.Progress) {
		if p.Phase == "boot" {
			_ = syscall.Kill(process, syscall.SIGTERM)
		}
	}}
	_, err := ext.Create(t.Context(), opts)
	isA(t, err, context.Canceled, "rolled back")
	eventually(t, "the end of the process", func() bool { return gone(process) })
	if _, err := os.Stat(filepath.Join(saved, "closed")); err != nil {
		t.Error(err)
	}
}

func TestTheProcessIsInAGroupOfItsOwn(t *testing.T) {
	r := registry(t, nil)
	process := pid(t, open(t, r))
	group, err := syscall.Getpgid(process)
	if err != nil || group != process {
		t.Errorf("process %d is in group %d: %v", process, group, err)
	}
}

func TestAKilledHostLeavesNoExtension(t *testing.T) {
	saved, tmp := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host := exec.Command(self)
	host.Env = append(os.Environ(), hostEnv+"="+binary, hostEnv+`_CONFIG={"save":"`+saved+`"}`, "TMPDIR="+tmp)
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	_ = host.Process.Kill()
	_ = host.Wait()
	process, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), "pid "))
	if err != nil {
		t.Fatalf("the host said %q", line)
	}
	eventually(t, "the end of the extension", func() bool { return gone(process) })
	for _, name := range []string{"save-step", "closed"} {
		if _, err := os.Stat(filepath.Join(saved, name)); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStartedByHandItExplainsItself(t *testing.T) {
	out, err := exec.Command(binary).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "fake 1.2.3 is an extension of sandboxer") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := exec.Command(binary, "face").CombinedOutput(); err != nil || string(out) != "another face\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
