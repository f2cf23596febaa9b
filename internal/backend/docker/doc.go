// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package docker is the extension for a Docker Engine, and for whatever
// speaks its API (1.40 and up) on a socket.
//
// A sandbox is one container that carries our labels, with a lease in
// labelled volumes that are never mounted, and, where it has ports and no
// way out, a network and a second container that carries connections in.
// Everything is found by label: nothing is remembered here.
//
// To read it, begin with extension.go; engine.go is all that is asked of the
// engine, object.go turns what it lists into sandboxes, lease.go holds the
// protocol of the lease. The program that runs inside of each container is in
// the folder guest, the reaper's in reaper.
package docker
