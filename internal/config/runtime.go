// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Options are the options of [Open].
type Options struct {
	Clock    clock.Clock                     // nil is the machine's
	Getenv   func(string) string             // nil is os.Getenv
	Builtins map[string]func() sdk.Extension // extensions within this program, by name
	Budgets  lifecycle.Budgets               // zero fields are the defaults
}

// Runtime is a configuration put to work.
type Runtime struct {
	Config  Config // complete
	Manager *lifecycle.Manager
	Ledger  *ledger.Ledger
	Clock   clock.Clock

	backends *interim
}

// Open puts a configuration to work. It does no I/O: no file is made and no
// extension is started before a verb needs it.
func Open(config Config, opts Options) (*Runtime, error) {
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.Getenv == nil {
		opts.Getenv = os.Getenv
	}
	config, err := config.Complete(opts.Getenv)
	if err != nil {
		return nil, err
	}
	l := ledger.New(filepath.Join(config.StateDir, "ledger"), opts.Clock)
	backends := &interim{config: config, builtins: opts.Builtins}
	manager := lifecycle.New(l, backends, opts.Clock, lifecycle.Settings{
		Fleet: config.Fleet, Life: config.Life(), Attribution: config.Attribution(opts.Getenv), Budgets: opts.Budgets,
	})
	return &Runtime{Config: config, Manager: manager, Ledger: l, Clock: opts.Clock, backends: backends}, nil
}

// Close ends what was started.
func (r *Runtime) Close() error { return nil }

// extensionConfig returns what an extension is configured with: the embedded
// backend lives in this configuration's state directory unless it names one.
func extensionConfig(config Config, backend Backend) ([]byte, error) {
	object := map[string]json.RawMessage{}
	if backend.Config != nil {
		if err := json.Unmarshal(backend.Config, &object); err != nil {
			return nil, err
		}
	}
	if _, set := object["state_dir"]; backend.Extension == ExtensionLocal && !set {
		// A string always encodes.
		object["state_dir"], _ = json.Marshal(config.StateDir)
	}
	return json.Marshal(object)
}

type interim struct {
	config   Config
	builtins map[string]func() sdk.Extension
}

func (i *interim) Names() []string { return slices.Sorted(maps.Keys(i.config.Backends)) }
func (i *interim) Default() string { return i.config.Backend }
func (i *interim) Open(ctx context.Context, name string) (sdk.Extension, error) {
	backend := i.config.Backends[name]
	build := i.builtins[backend.Extension]
	if build == nil {
		return nil, fmt.Errorf("no extension %q", backend.Extension)
	}
	raw, err := extensionConfig(i.config, backend)
	if err != nil {
		return nil, err
	}
	extension := build()
	_, err = extension.Configure(ctx, sdk.ConfigureOptions{Backend: name, Fleet: i.config.Fleet, Config: raw})
	return extension, err
}
