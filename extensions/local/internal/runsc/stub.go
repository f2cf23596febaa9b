// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !(linux && (amd64 || arm64) && go1.26 && !go1.27)

package runsc

import (
	"fmt"
	"os"
)

// Compiled tells whether this build contains gVisor.
const Compiled = false

// Main reports that gVisor is not in this build.
func Main() {
	fmt.Fprintln(os.Stderr, "sandboxer: gVisor is not compiled in: it needs linux on amd64 or arm64, and Go 1.26")
	os.Exit(128)
}
