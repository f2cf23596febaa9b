// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend"
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
	Logger   hclog.Logger                    // gets the extensions' log lines; nil drops them
}

// Runtime is a configuration put to work.
type Runtime struct {
	Config   Config // complete
	Manager  *lifecycle.Manager
	Registry *backend.Registry
	Ledger   *ledger.Ledger
	Clock    clock.Clock
}

// Open puts a configuration to work. No file is made and no extension is
// started before a verb needs it. Only where the configuration names
// directories of extensions, they are looked into.
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
	backends := make(map[string]backend.Config, len(config.Backends))
	for name, configured := range config.Backends {
		if backends[name], err = config.backend(configured, opts.Builtins); err != nil {
			return nil, sdk.Invalid("backends."+name, "%s", err)
		}
	}
	registry := backend.New(backend.Options{
		Fleet: config.Fleet, Default: config.Backend, Backends: backends, Builtins: opts.Builtins, Logger: opts.Logger,
	})
	l := ledger.New(filepath.Join(config.StateDir, "ledger"), opts.Clock)
	manager := lifecycle.New(l, registry, opts.Clock, lifecycle.Settings{
		Fleet: config.Fleet, Life: config.Life(), Attribution: config.Attribution(opts.Getenv), Budgets: opts.Budgets,
		Bounds: lifecycle.Bounds{
			Fleet: config.MaxSandboxes, Owner: config.MaxSandboxesPerOwner,
			Cost: lifecycle.CostBound{PerHour: config.MaxCostPerHour, Committed: config.MaxCommitted},
		},
		OnUnreachable: config.OnUnreachable,
		Prices:        config.prices(),
		Verdicts:      filepath.Join(config.StateDir, "verdicts"),
	})
	return &Runtime{Config: config, Manager: manager, Registry: registry, Ledger: l, Clock: opts.Clock}, nil
}

// backend returns what the registry is told about a backend.
func (c Config) backend(b Backend, builtins map[string]func() sdk.Extension) (backend.Config, error) {
	path := b.Path
	if builtins[b.Extension] == nil && path == "" {
		path = inDirs(c.ExtensionDirs, b.Extension)
	}
	raw, err := extensionConfig(c, b)
	return backend.Config{Extension: b.Extension, JSON: raw, Path: path, SHA256: b.SHA256, Env: b.variables()}, err
}

// variables are the environment variables that an extension is given: those that
// are listed, and those that Modal's own clients go by, so that its extension
// finds the token where they do although it is a process of its own.
func (b Backend) variables() []string {
	if b.Extension != ExtensionModal {
		return b.Env
	}
	return slices.Concat(b.Env, []string{"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_PROFILE", "MODAL_CONFIG_PATH", "MODAL_ENVIRONMENT", "MODAL_SERVER_URL"})
}

// Close ends the extensions that were started.
func (r *Runtime) Close() error { return r.Registry.Close() }

// extensionConfig returns what an extension is configured with: those that keep
// something on this machine do so in this configuration's state directory unless
// they name one.
func extensionConfig(config Config, backend Backend) ([]byte, error) {
	object := map[string]json.RawMessage{}
	if backend.Config != nil {
		if err := json.Unmarshal(backend.Config, &object); err != nil {
			return nil, err
		}
	}
	keeps := slices.Contains([]string{ExtensionLocal, ExtensionE2B, ExtensionModal}, backend.Extension)
	if _, set := object["state_dir"]; keeps && !set {
		// A string always encodes.
		object["state_dir"], _ = json.Marshal(config.StateDir)
	}
	return json.Marshal(object)
}

// inDirs returns the program of an extension in the configured directories;
// empty when none has it.
func inDirs(dirs []string, extension string) string {
	name := "sandboxer-extension-" + extension
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	for _, dir := range dirs {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file
		}
	}
	return ""
}
