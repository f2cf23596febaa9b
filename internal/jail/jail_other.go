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

// Kill has nothing to end.
func Kill(int) {}

// SignalOf returns 0: nothing runs here.
func SignalOf(*os.ProcessState) syscall.Signal { return 0 }
