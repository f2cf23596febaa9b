// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && !((amd64 || arm64) && go1.26 && !go1.27)

package egress

import (
	"errors"
	"io"
)

// Gateway is not in this build.
type Gateway struct{}

// Open reports that gVisor is not in this build.
func Open(Config, io.Writer) (*Gateway, error) {
	return nil, errors.New("the gateway is not compiled in: it needs amd64 or arm64, and Go 1.26")
}

// Run does something that a gateway is needed for.
func (*Gateway) Run(func() error) error { return errors.New("there is no gateway") }

// Names returns the names that have addresses.
func (*Gateway) Names() []string { return nil }
