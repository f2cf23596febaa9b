// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// workDir names the directory of a test run to the process within its
// namespaces.
const workDir = "SANDBOXER_DOCKERTEST_DIR"

// Main runs a package's tests in namespaces of their own and returns the exit
// code; call it from TestMain.
//
// The network namespace keeps an engine's bridge and firewall apart from those
// of any other engine on the machine, and the ports that it publishes are
// those of the tests' own loopback. The process namespace ends everything
// when the tests end, however they do. Tests that leave something of
// sandboxer's on the engine fail.
func Main(m *testing.M) int {
	if kind := os.Getenv(leakKind); kind != "" {
		fmt.Fprintln(os.Stderr, "dockertest:", leak(kind, os.Getenv(workDir)))
		return 1 // it returns only when it fails
	}
	if dir := os.Getenv(workDir); dir != "" {
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, "dockertest:", err)
			return 1
		}
		code := m.Run()
		if left := leftovers(); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "dockertest: the tests left on the engine: %s\n", strings.Join(left, ", "))
			code = max(code, 1)
		}
		stop()
		return code
	}
	code, err := inNamespaces()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dockertest:", err)
		return 1
	}
	return code
}

// inNamespaces runs this very program once more, as the first process of new
// namespaces, and removes what it left in its directory.
func inNamespaces() (code int, err error) {
	dir, err := os.MkdirTemp("", "sandboxer-docker-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(context.Background(), self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), workDir+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The child gets what a terminal or a time limit sends to the group, and
	// this process has to outlive it to clean up.
	signal.Ignore(os.Interrupt, syscall.SIGQUIT)
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if exit.ExitCode() < 0 {
			return 1, nil
		}
		return exit.ExitCode(), nil
	case errors.Is(err, os.ErrPermission):
		return 0, fmt.Errorf("tests with a Docker Engine need root, for namespaces and for the engine: %w", err)
	}
	return 0, err
}

// enter finishes the namespaces from within: mounts stay inside, /proc is the
// new one's, loopback is up.
func enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	loopback.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, loopback); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}
