// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && (amd64 || arm64) && go1.26 && !go1.27

// The runsc command table: with the gateway of package egress, which uses its
// TCP/IP stack, the only file that imports gVisor.
//
// gVisor reads goroutine ids at fixed offsets and copies runtime internals, so
// a pin is tied to one Go release: an older one compiled with a newer Go and
// panicked as soon as a sandbox started. Hence the go1.26 build tags above.
// Only runsc/cli, runsc/cmd and sentrycmd are imported: the OCI-shaped command
// line is far more stable than the packages behind it. runsc/cli/maincli is
// left out on purpose, because it embeds a prebuilt 47 MB executable.
package runsc

import (
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// Compiled tells whether this build contains gVisor.
const Compiled = true

// Main runs the runsc command line of this process and does not return.
func Main() {
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Checkpoint):   "",
		new(cmd.Delete):       "",
		new(cmd.Events):       "",
		new(cmd.Exec):         "",
		new(cmd.FSCheckpoint): "",
		new(cmd.Kill):         "",
		new(cmd.Pause):        "",
		new(cmd.PortForward):  "",
		new(cmd.Restore):      "",
		new(cmd.Resume):       "",
		new(cmd.Run):          "",
		new(cmd.Tar):          "",
		new(cmd.Wait):         "",
		new(cmd.WriteControl): "",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Boot):   "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
}
