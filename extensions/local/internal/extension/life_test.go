// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestASandboxLivesAndDies(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	if s.Status != sdk.StatusReady {
		t.Errorf("status %s (%s), want ready", s.Status, s.Reason)
	}
	if got := run(t, e, s.ID, "sh", "-c", "echo $((6*7))"); strings.TrimSpace(got) != "42" {
		t.Errorf("output %q", got)
	}
	result, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)})
	if err != nil || !result.Existed {
		t.Errorf("destroy: %+v, %v", result, err)
	}
	if _, err := e.Get(t.Context(), sdk.GetOptions{Target: target(s.ID)}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("get after destroy: %v, want ErrNotFound", err)
	}
	if left, _ := os.ReadDir(filepath.Join(state, "local", "sandboxes")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestExec(t *testing.T) {
	e := backend(t)
	profile := sdk.Profile{Name: "shell", Env: map[string]string{"FROM_PROFILE": "p"}, Workdir: "/tmp"}
	s := create(t, e, options(profile))
	tests := []struct {
		name   string
		opts   sdk.ExecOptions
		stdin  string
		code   int
		stdout string
		stderr string
	}{
		{name: "passes the exit code through", opts: sdk.ExecOptions{Command: []string{"sh", "-c", "exit 7"}}, code: 7},
		{name: "passes the runtime's own failure code through", opts: sdk.ExecOptions{Command: []string{"sh", "-c", "exit 128"}}, code: 128},
		{name: "gives 128+n for a signal", opts: sdk.ExecOptions{Command: []string{"sh", "-c", "kill -9 $$"}}, code: 137},
		{name: "keeps the streams apart", opts: sdk.ExecOptions{Command: []string{"sh", "-c", "echo a; echo b >&2"}}, stdout: "a\n", stderr: "b\n"},
		{name: "hands standard input over to its end", opts: sdk.ExecOptions{Command: []string{"cat"}}, stdin: "hello", stdout: "hello"},
		{name: "begins in the profile's directory", opts: sdk.ExecOptions{Command: []string{"pwd"}}, stdout: "/tmp\n"},
		{name: "begins in the directory that is asked for", opts: sdk.ExecOptions{Command: []string{"pwd"}, Workdir: "/usr"}, stdout: "/usr\n"},
		{name: "adds its environment to the profile's", opts: sdk.ExecOptions{Command: []string{"sh", "-c", "echo $FROM_PROFILE $FROM_EXEC"}, Env: map[string]string{"FROM_EXEC": "e"}}, stdout: "p e\n"},
		{name: "takes a user by number", opts: sdk.ExecOptions{Command: []string{"id", "-u"}, User: "1234"}, stdout: "1234\n"},
		{name: "takes a user and a group by number", opts: sdk.ExecOptions{Command: []string{"sh", "-c", "id -u; id -g"}, User: "12:34"}, stdout: "12\n34\n"},
		{name: "takes a user by name", opts: sdk.ExecOptions{Command: []string{"id", "-un"}, User: "daemon"}, stdout: "daemon\n"},
		{name: "says 127 when there is no such command", opts: sdk.ExecOptions{Command: []string{"no-such-command"}}, code: 127, stderr: "sandboxer: no-such-command: command not found or not executable\n"},
		{name: "says 127 when there is no such file", opts: sdk.ExecOptions{Command: []string{"/no/such"}}, code: 127, stderr: "sandboxer: /no/such: command not found or not executable\n"},
		{name: "says 126 when the file is no program", opts: sdk.ExecOptions{Command: []string{"/etc/passwd"}}, code: 126, stderr: "sandboxer: /etc/passwd: command not found or not executable\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			test.opts.Target = target(s.ID)
			test.opts.Stdout, test.opts.Stderr = &out, &errs
			if test.stdin != "" {
				test.opts.Stdin = strings.NewReader(test.stdin)
			}
			result, err := e.Exec(t.Context(), test.opts)
			if err != nil {
				t.Fatal(err)
			}
			if result.ExitCode != test.code || out.String() != test.stdout || test.stderr != errs.String() {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d, %q, %q", result.ExitCode, out.String(), errs.String(), test.code, test.stdout, test.stderr)
			}
		})
	}
}

func TestATimeoutKillsTheWholeCommand(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	// A child, a grandchild in the background, and one with a parent that
	// ended: none of them may go on.
	script := "sleep 1000 & (sleep 1001 &) ; sleep 1002"
	result, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), Command: []string{"sh", "-c", script}, Timeout: 300 * time.Millisecond})
	if err != nil || !result.TimedOut {
		t.Fatalf("%+v, %v; want a timeout", result, err)
	}
	if left := processes(t, e, s.ID, "sleep"); left != "" {
		t.Errorf("still running: %s", left)
	}

	ctx, cancel := context.WithCancel(t.Context())
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	go func() {
		_, _ = read.Read(make([]byte, 1)) // it runs
		cancel()
	}()
	_, err = e.Exec(ctx, sdk.ExecOptions{Target: target(s.ID), Command: []string{"sh", "-c", "echo started; " + script}, Stdout: write})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled exec: %v", err)
	}
	if left := processes(t, e, s.ID, "sleep"); left != "" {
		t.Errorf("still running after the cancel: %s", left)
	}
}

// processes lists the processes of a name in the sandbox.
func processes(t *testing.T, e interface {
	Exec(context.Context, sdk.ExecOptions) (sdk.ExecResult, error)
}, id, name string) string {
	t.Helper()
	var out bytes.Buffer
	script := `for p in /proc/[0-9]*; do read -r a b c d < $p/stat && [ "$b" = "(` + name + `)" ] && [ "$c" != Z ] && echo "$a $b $c"; done; true`
	if _, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(id), Command: []string{"sh", "-c", script}, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestBackgroundProcessesDoNotHoldExec(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := e.Exec(ctx, sdk.ExecOptions{Target: target(s.ID), Command: []string{"sh", "-c", "sleep 1000 & echo done"}, Stdout: &out})
	if err != nil || out.String() != "done\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestNothingOfTheHostIsVisible(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	for _, path := range []string{"/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/sudoers", "/etc/ssl/private", "/var/run/docker.sock",
		"/run/docker.sock", "/run/containerd", "/var/lib/docker", "/proc/1/root" + "/etc/shadow", "/boot", "/etc/machine-id"} {
		if got := run(t, e, s.ID, "sh", "-c", "ls -d "+path+" 2>/dev/null; true"); got != "" {
			t.Errorf("%s is visible", path)
		}
	}
	for _, path := range []string{"/root", "/home", "/var/lib/misc", "/mnt", "/srv", "/run/secrets"} {
		if got := run(t, e, s.ID, "ls", "-A", path); got != "" {
			t.Errorf("%s holds %q", path, got)
		}
	}
	run(t, e, s.ID, "sh", "-c", "touch /usr/new /etc/new /root/new && chown 5:5 /etc/new && rm /usr/bin/env")
	if _, err := os.Stat("/usr/new"); err == nil {
		t.Error("a write in the sandbox reached the host")
	}
}

func TestTheCommandRunsAndTheSandboxStaysUsable(t *testing.T) {
	e := backend(t)
	profile := sdk.Profile{Name: "job", Command: []string{"sh", "-c", "cat /etc/greeting > /tmp/out; cat $TOKEN_FILE >> /tmp/out; stat -c '%a %u' $TOKEN_FILE >> /tmp/out"},
		Files: map[string]sdk.File{"/etc/greeting": {Content: "hello\n"}, "/srv/deep/er/file": {Content: "x", Mode: "0600"}}}
	opts := options(profile)
	opts.Secrets = map[string]sdk.Secret{"TOKEN": "canary-4711\n"}
	s := create(t, e, opts)
	got := run(t, e, s.ID, "sh", "-c", "until [ $(wc -l < /tmp/out) = 3 ]; do sleep 0.05; done; cat /tmp/out")
	if got != "hello\ncanary-4711\n400 0\n" {
		t.Errorf("output %q", got)
	}
	if got := run(t, e, s.ID, "stat", "-c", "%a", "/srv/deep/er/file"); got != "600\n" {
		t.Errorf("mode %q", got)
	}
	if got := run(t, e, s.ID, "sh", "-c", "tr '\\0' '\\n' < /proc/1/environ; tr '\\0' '\\n' < /proc/1/cmdline; env"); strings.Contains(got, "canary") {
		t.Error("the secret is in an environment or on a command line")
	}
}
