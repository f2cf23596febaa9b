// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"os"
	"syscall"
)

// ownGroup puts a process into a group of its own, so that Ctrl-C at the
// console reaches the host alone, which then ends its calls in order.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// killGroup kills a process. Windows has no group to kill with it.
func killGroup(p *os.Process) { _ = p.Kill() }
