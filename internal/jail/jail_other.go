// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package jail

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

// Command fails: commands run on Linux only.
func (j *Jail) Command(string, []string, []string) (*exec.Cmd, error) {
	return nil, errors.New("commands run on Linux only")
}

func (j *Jail) signal(syscall.Signal) {}

// Signal does nothing: nothing runs here.
func Signal(int, syscall.Signal) {}

// SignalOf returns 0.
func SignalOf(*os.ProcessState) syscall.Signal { return 0 }
