// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

// Command guest is the Docker backend's program inside of a Linux container.
package main

import "os"

func main() {
	_, _ = os.Stderr.WriteString("this program runs in Linux containers\n")
	os.Exit(1)
}
