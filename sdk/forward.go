// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"context"
	"net"
)

// Forwarder is implemented by extensions whose sandboxes have ports that a
// client may not reach by itself, as behind SSH. It has no form on the wire:
// an extension in a process of its own publishes ports that clients reach.
type Forwarder interface {
	// Forward returns the way to one port of a sandbox. It opens nothing at
	// the port.
	Forward(ctx context.Context, opts ForwardOptions) (ForwardResult, error)
}

// ForwardOptions are the options of [Forwarder.Forward].
type ForwardOptions struct {
	Target Target
	Port   string // name of a port, as in the sandbox's endpoints
}

// ForwardResult is the result of [Forwarder.Forward].
type ForwardResult struct {
	// Address is the port's endpoint, host:port.
	Address string
	// Dial opens a connection to the port; its context bounds the opening
	// only. It is nil when the client reaches Address by itself.
	Dial func(ctx context.Context) (net.Conn, error)
}
