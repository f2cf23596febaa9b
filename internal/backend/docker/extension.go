// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"net/http"
	"os"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Name is the extension's name.
const Name = "docker"

// Extension speaks to one Docker Engine.
type Extension struct {
	opts     Options
	settings settings
	backend  string
	fleet    string

	guarding chan struct{} // is held while a reaper is started

	mu     sync.Mutex
	engine engine // nil until first used
	host   host
	remote *remote // how an engine behind ssh:// is reached; nil for others
	facts  *facts  // what the engine said of itself
}

// Options are the options of [New]. None is needed in tests of what needs no
// engine.
type Options struct {
	Clock  clock.Clock         // nil is the machine's
	Getenv func(string) string // nil is os.Getenv
	// Program returns the path of one of the programs that run in containers,
	// by file name.
	Program func(name string) (string, error)
	// SSH has the connections to hosts behind ssh://; nil is the process's.
	SSH *sshtransport.Pool
	// Observe, when set, sees every request before it is made, and stops it
	// with an error.
	Observe func(*http.Request) error
}

// The compiler checks what the extension says it can do.
var (
	_ sdk.Extension = (*Extension)(nil)
	_ sdk.Execer    = (*Extension)(nil)
	_ sdk.Copier    = (*Extension)(nil)
	_ sdk.Logger    = (*Extension)(nil)
	_ sdk.Pauser    = (*Extension)(nil)
	_ sdk.Preparer  = (*Extension)(nil)
	_ sdk.Forwarder = (*Extension)(nil)
	_ sdk.Inspector = (*Extension)(nil)

	_ sdk.PortableSnapshotter = (*Extension)(nil)
)

// New returns an extension. Nothing is connected until it is used.
func New(opts Options) *Extension {
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.Getenv == nil {
		opts.Getenv = os.Getenv
	}
	if opts.SSH == nil {
		opts.SSH = sshtransport.Shared()
	}
	return &Extension{opts: opts, guarding: make(chan struct{}, 1)}
}

// Describe implements [sdk.Extension].
func (e *Extension) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	return sdk.DescribeResult{
		Name: Name, Version: "0.1.0", Summary: "Containers on a Docker Engine, local or remote",
		ConfigSchema: configKeys(), Capabilities: staticCapabilities(),
	}, nil
}

// Configure implements [sdk.Extension].
func (e *Extension) Configure(_ context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	settings, err := readSettings(opts.Config)
	if err != nil {
		return sdk.ConfigureResult{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settings, e.backend, e.fleet = settings, opts.Backend, opts.Fleet
	return sdk.ConfigureResult{}, nil
}

// Close ends the connections.
func (e *Extension) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.engine == nil {
		return nil
	}
	err := e.engine.Close()
	e.engine, e.facts, e.remote = nil, nil, nil
	return err
}

// fleetOf returns the fleet that a call is for.
func (e *Extension) fleetOf(fleet string) (string, error) {
	if fleet == "" {
		fleet = e.fleet
	}
	if fleet == "" {
		return "", sdk.Invalid("fleet", "no fleet is named")
	}
	return fleet, nil
}
