// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command guest is the Docker backend's program inside of a sandbox: its first
// process, and what runs commands and moves files there. So an image needs no
// shell, no init and no tar, and nothing of a sandbox is ever resolved outside
// of it. It is static and small, for it is copied into every container.
package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/copytar"
)

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("this program is for sandboxer's own use"))
	}
	var err error
	switch verb, args := os.Args[1], os.Args[2:]; verb {
	case guestwire.VerbInit:
		err = runInit(args)
	case guestwire.VerbExec:
		err = runExec(args)
	case guestwire.VerbKill:
		err = kill(args)
	case guestwire.VerbTarIn:
		err = withOne(args, unpack)
	case guestwire.VerbTarOut:
		err = withOne(args, func(name string) error { return copytar.Pack(os.Stdout, name) })
	case guestwire.VerbLook:
		err = look(args)
	case guestwire.VerbForward:
		err = forward(args)
	default:
		err = errors.New("no verb " + verb)
	}
	if err != nil {
		fail(err)
	}
}

// unpack says how many bytes it wrote.
func unpack(dir string) error {
	n, err := copytar.Unpack(dir, os.Stdin)
	if err == nil {
		_, err = os.Stdout.WriteString(strconv.FormatInt(n, 10) + "\n")
	}
	return err
}

func withOne(args []string, run func(string) error) error {
	if len(args) != 1 {
		return errors.New("one argument is wanted")
	}
	return run(args[0])
}

func fail(err error) {
	say(err.Error())
	os.Exit(guestwire.FailureCode)
}

func say(text string) { _, _ = os.Stderr.WriteString("sandboxer: " + text + "\n") }

// The exit codes that a shell gives to a command that can't be started.
const (
	exitNotFound      = 127
	exitNotExecutable = 126
)

// start starts a command in a session of its own.
func start(command []string, dir string, files []*os.File) (*os.Process, int, error) {
	program, err := exec.LookPath(command[0])
	if errors.Is(err, exec.ErrDot) {
		err = nil // a relative name is relative to the directory
	}
	if err == nil && !filepath.IsAbs(program) && dir != "" {
		program = filepath.Join(dir, program)
	}
	var process *os.Process
	if err == nil {
		process, err = os.StartProcess(program, command, &os.ProcAttr{
			Dir: dir, Env: os.Environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
		})
	}
	switch {
	case err == nil:
		return process, 0, nil
	case errors.Is(err, os.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return nil, exitNotFound, err
	}
	return nil, exitNotExecutable, err
}

// notStarted says what a shell would.
func notStarted(command string, err error) {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		say(command + ": command not found or not executable")
		return
	}
	say(command + ": " + strings.TrimPrefix(err.Error(), "fork/exec "))
}

// exitCode is what a shell makes of the end of a process.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
