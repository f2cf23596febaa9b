// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// The driver: runsc's command line, run by re-executing this binary.
//
// Every call has a deadline, because a stuck sandbox holds the lock that every
// later runsc call waits for. Only exit codes are interpreted; messages are
// passed on to people, bounded.
package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

// argv0 sends a start of this binary to runsc: see Dispatched.
const argv0 = "runsc-cli"

// FailureCode is what runsc exits with when it, not the program in the
// sandbox, failed.
const FailureCode = 128

// Dispatched reports whether a process with this argv[0] is runsc's. runsc
// re-executes /proc/self/exe with an empty environment, so argv[0] is the only
// mark: runsc-sandbox, runsc-gofer, runsc-exec, and for two helpers literally
// /proc/self/exe.
func Dispatched(arg0 string) bool {
	return strings.HasPrefix(arg0, "runsc-") || arg0 == "/proc/self/exe"
}

// SidecarNames are the files that runsc wants beside it when the sidecar
// policy is strict; both are this binary. The strict policy is used from day
// one because upstream is leaving the single-binary layout.
func SidecarNames() []string { return []string{"gvisor_sentry", "gvisor-sentry-prewarmer"} }

// IsPrewarmer reports whether a process started under this name is the
// prewarmer: a program that only executes its argv[1] with argv[2:].
func IsPrewarmer(arg0 string) bool { return filepath.Base(arg0) == "gvisor-sentry-prewarmer" }

// Prewarm does the prewarmer's work. It returns only on failure.
func Prewarm(args, env []string) error {
	if len(args) < 3 {
		return errors.New("prewarmer: want a program and its arguments")
	}
	return syscall.Exec(args[1], args[2:], env)
}

// Version returns the version of the gVisor module in this binary.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "gvisor.dev/gvisor" {
				return dep.Version
			}
		}
	}
	return "unknown"
}

// Driver runs runsc for one sandbox.
type Driver struct {
	Root     string // runsc's state directory; short, sockets live in it
	Log      string // file that runsc writes its errors to
	DebugLog string // directory of the boot log
	Sidecars string // directory of the sidecar names
	Network  string // none, sandbox or host
	Overlay  string // value of --overlay2
	Cgroup   bool   // the sandbox has a control group of its own kernel
}

// Command returns a runsc process that is not started yet. Its environment
// holds nothing of ours.
func (d *Driver) Command(ctx context.Context, args ...string) *exec.Cmd {
	global := []string{
		"--root=" + d.Root,
		"--log=" + d.Log, "--log-format=json",
		"--network=" + d.Network,
		"--platform=systrap", // never kvm: it can spin for ever without an error
		"--ignore-cgroups",
		"--sidecar-usage-policy=STRICT",
		"--allow-rootfs-tar-annotation",
	}
	if d.Overlay != "" {
		global = append(global, "--overlay2="+d.Overlay)
	}
	if d.Cgroup {
		// Version 2, because with version 1 what exec starts is in no group.
		global = append(global, "--in-sandbox-cgroup=v2")
	}
	if d.DebugLog != "" {
		global = append(global, "--debug-log="+d.DebugLog+"/%COMMAND%.log")
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append(append([]string{argv0}, global...), args...)
	cmd.Env = []string{"GVISOR_SIDECAR_BINARIES_DIR=" + d.Sidecars, "PATH=/usr/bin:/bin", "TMPDIR=/tmp"}
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Run runs one runsc command to its end within a deadline.
func (d *Driver) Run(ctx context.Context, deadline time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	cmd := d.Command(ctx, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return d.Explain(ctx, args[0], cmd.Run(), out.Bytes())
}

// Explain turns the end of a runsc command into an error that says why.
func (d *Driver) Explain(ctx context.Context, verb string, err error, output []byte) error {
	if err == nil {
		return nil
	}
	if i := bytes.Index(output, []byte("\ngoroutine ")); i >= 0 {
		output = output[:i] // what comes before the stacks says why
	}
	why := strings.TrimSpace(tail(output, 1024))
	if why == "" {
		why = d.LastErrors()
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if why == "" {
		return fmt.Errorf("runsc %s: %w", verb, err)
	}
	return fmt.Errorf("runsc %s: %w: %s", verb, err, why)
}

// LastErrors returns the end of runsc's own error log.
func (d *Driver) LastErrors() string {
	data, err := readTail(d.Log, 1024)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(tail(data, 1024))
}

// BootLog returns the end of the sandbox's boot log, where the cause of a
// start that failed is.
func (d *Driver) BootLog() string {
	data, err := readTail(filepath.Join(d.DebugLog, "boot.log"), 256<<10)
	if err != nil {
		return ""
	}
	// A panic says what it is at its beginning, before all the stacks.
	for _, mark := range []string{"panic: ", "fatal error: ", "FATAL"} {
		if i := bytes.Index(data, []byte(mark)); i >= 0 {
			return strings.TrimSpace(tail(data[i:min(len(data), i+2048)], 2048))
		}
	}
	return strings.TrimSpace(tail(data, 2048))
}

func readTail(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	start := max(0, info.Size()-limit)
	data := make([]byte, info.Size()-start)
	n, err := f.ReadAt(data, start)
	if n == len(data) {
		err = nil
	}
	return data[:n], err
}

// tail returns the end of a text as printable characters.
func tail(data []byte, limit int) string {
	if len(data) > limit {
		data = data[len(data)-limit:]
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= ' ' && r != 0x7f {
			return r
		}
		return -1
	}, string(data))
}
