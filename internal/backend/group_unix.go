// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package backend

import (
	"os"
	"syscall"
)

// ownGroup puts a process into a group of its own, so that Ctrl-C at the
// terminal reaches the host alone, which then ends its calls in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a process that has not been waited for, and its group.
func killGroup(p *os.Process) {
	if syscall.Kill(-p.Pid, syscall.SIGKILL) != nil {
		_ = p.Kill()
	}
}
