// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package supervisor is the process beside each sandbox. It is the first
// process of the sandbox's own pid namespace, so when it dies, for whatever
// reason, the kernel ends everything in there with it: no sandbox outlives
// its supervisor.
//
// It makes the sandbox, enforces the deadline from the record on disk, and
// runs commands in the sandbox for clients that reach it over a socket.
package supervisor

import (
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/egress"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/snapshot"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Argv0 is the name that a supervisor runs under, and what sends a start of
// this binary here.
const Argv0 = "sandboxer-supervisor"

// The descriptors that a supervisor is started with, after the standard ones.
const (
	fdConfig = 3 + iota // Config, as JSON; secrets travel here and nowhere else
	fdReady             // where readiness or the error is written
	fdLock              // the supervisor's lock, already held
	fdExtra             // checkpoint directory if there is one, then the listeners
)

// Config is what a supervisor needs to know to make a sandbox.
type Config struct {
	ID      string
	Sandbox string // the sandbox's directory
	Program string // directory with this binary
	Scratch string // directory to mount the private root on
	Image   string // path of the image file; empty is the host's own root

	Network string // of runsc: none, sandbox, host
	Disk    int64  // bound of the writable layer in bytes; 0 is none
	Pids    int64  // bound of processes and threads; 0 is none
	// SoftMemory is a bound in bytes that is measured, because nothing on this
	// machine enforces it; 0 is none.
	SoftMemory int64
	Process    Process
	Files      []guest.File // placed before the command starts
	Ports      []int        // guest ports, one listener each
	Start      Origin
	OwnNet     bool           // the supervisor was started in a network namespace of its own
	Egress     *egress.Config // the way out of a sandbox with an allow-list; not with OwnNet
	Deadline   time.Duration
	End        End
}

// End is how the sandbox ends when nobody ends it. It is fixed when the
// sandbox is made; the deadline is in the record.
type End struct {
	OnExpiry sdk.OnExpiry
	Idle     time.Duration // without use; 0 is no such clock
	Paused   time.Duration // how long one is kept that was paused at its end
	// Snapshot describes the snapshot of the end, as far as that is known
	// before; Keep is how long it is kept from then on.
	Snapshot snapshot.Manifest
	Keep     time.Duration
}

// Process is the sandbox's main process.
type Process = snapshot.Process

// Origin says how the sandbox begins.
type Origin struct {
	// Upper is a tar of the writable layer to begin with, relative to the
	// snapshot directory.
	Upper string
	// Attributes is a file of what Upper leaves out, likewise.
	Attributes string
	// Memory is set for a memory snapshot, with the OCI spec of its source:
	// the runtime refuses another one.
	Memory bool
	Spec   []byte
}

// Snapshot reports whether the sandbox starts from one.
func (s Origin) Snapshot() bool { return s.Upper != "" || s.Memory }

// ready is the one message from a supervisor to whoever started it.
type ready struct {
	Error string `json:",omitempty"`
	Path  string `json:",omitempty"` // the attribute that Error is about
}
