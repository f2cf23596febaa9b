// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package e2btest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Commands need Linux; everything else works.
const (
	stopSignal = syscall.Signal(19)
	contSignal = syscall.Signal(18)
	killSignal = syscall.Signal(9)
)

type holder struct{}

func (*holder) close() {}

func (j *jail) command(string, string, []string, []string) (*exec.Cmd, error) {
	return nil, errors.New("commands run on Linux only")
}

func (j *jail) signal(syscall.Signal) {}

func kill(int, syscall.Signal) error { return errors.New("commands run on Linux only") }

func signalOf(*os.ProcessState) syscall.Signal { return 0 }
