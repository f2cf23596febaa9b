// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
)

// runInit is the first process of a sandbox. It starts the main process as a
// child once the gate is open, and then only reaps: a sandbox stays usable
// after its command has ended, and is idle without one.
func runInit(args []string) error {
	if len(args) < 1 {
		return errors.New("no gate is named")
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	if args[0] == guestwire.GateSecrets {
		if err := takeSecrets(os.Stdin); err != nil {
			return err
		}
	}
	if command := args[1:]; len(command) > 0 {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		if _, _, err := start(command, "", []*os.File{null, os.Stdout, os.Stderr}); err != nil {
			notStarted(command[0], err)
		}
		_ = null.Close() // the child has its own
	}
	for s := range signals {
		if s != syscall.SIGCHLD {
			os.Exit(0) // the rest of the sandbox ends with its first process
		}
		reap()
	}
	return nil
}

// reap collects every child that has ended.
func reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// takeSecrets writes each secret to its file on the tmpfs. What comes is
// complete or nothing is started.
func takeSecrets(from io.Reader) error {
	var buffer []byte
	for {
		kind, data, err := guestwire.ReadFrame(from, buffer)
		if err != nil {
			return errors.New("the secrets did not arrive: " + err.Error())
		}
		if kind == guestwire.FrameEnd {
			return nil
		}
		buffer = data
		name, value, ok := bytes.Cut(data, []byte{0})
		if !ok || filepath.Base(string(name)) != string(name) {
			return errors.New("a secret has no name")
		}
		f, err := os.OpenFile(filepath.Join(guestwire.Secrets, string(name)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
		if err != nil {
			return err
		}
		_, err = f.Write(value)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}
