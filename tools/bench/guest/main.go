// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command guest is the whole root filesystem of the sandboxes that the
// benches make: a main process that waits, and a command that does nothing.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "true" {
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
