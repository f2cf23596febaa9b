// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package config is the configuration of one installation: the provider
// block of Terraform and the file sandboxer.hcl are the same schema, which
// stands here once.
package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Config is a configuration. A zero field is unset.
type Config struct {
	Fleet                string
	Backend              string // of whoever names none
	DefaultTTL           time.Duration
	MaxTTL               time.Duration
	MaxSandboxes         int // alive at a time in the fleet
	MaxSandboxesPerOwner int
	MaxCostPerHour       sandbox.Money    // of all that are alive; zero is no bound
	MaxCommitted         sandbox.Money    // the same, from their creation to their deadlines
	Prices               map[string]Price // by the name of the backend
	OnUnreachable        lifecycle.OnUnreachable
	Owner                string
	Task                 string
	Run                  string
	StateDir             string   // absolute
	ExtensionDirs        []string // absolute; searched before the places that are always searched
	ProfileDirs          []string // absolute; libraries that profile names resolve in, first hit wins
	Backends             map[string]Backend
}

// Backend is one configured instance of an extension.
type Backend struct {
	Extension string          // its name, as in Describe
	Config    json.RawMessage // a JSON object; nil is an empty one
	Path      string          // of the extension's binary; empty is searched for
	SHA256    string          // hex digest that the binary must have
	Env       []string        // names of environment variables that the binary is given
}

// DefaultFleet is the fleet of an installation that names none. Whoever
// shares a backend with others names a fleet.
const DefaultFleet = "default"

// The extensions that sandboxer ships or knows. Their names with underscores
// are attributes: `docker = { … }` is short for a backend of that name.
const (
	ExtensionLocal  = "local"
	ExtensionDocker = "docker"
	ExtensionE2B    = "e2b"
	ExtensionModal  = "modal"
)

// KnownExtensions returns the names of the extensions that have an attribute
// of their own, sorted.
func KnownExtensions() []string {
	return []string{"compose-ssh", ExtensionDocker, ExtensionE2B, "kubernetes", ExtensionLocal, ExtensionModal, "saas-stub", "vm-packer"}
}

// DefaultBackend returns the backend of whoever configures none: the
// embedded one where it can be built, Docker elsewhere. It goes by the
// platform and never by a failed probe: what is used must not change with
// the health of a machine.
func DefaultBackend() string { return defaultBackend(runtime.GOOS, runtime.GOARCH) }

func defaultBackend(goos, goarch string) string {
	if goos == "linux" && (goarch == "amd64" || goarch == "arm64") {
		return ExtensionLocal
	}
	return ExtensionDocker
}

// Default returns the configuration of whoever configures nothing.
func Default() Config {
	return Config{Fleet: DefaultFleet}
}

// Merge returns base with everything that over sets. A backend of over
// replaces the one of the same name as a whole.
func Merge(base, over Config) Config {
	pick := func(into *string, from string) {
		if from != "" {
			*into = from
		}
	}
	pick(&base.Fleet, over.Fleet)
	pick(&base.Backend, over.Backend)
	base.OnUnreachable = cmp.Or(over.OnUnreachable, base.OnUnreachable)
	pick(&base.Owner, over.Owner)
	pick(&base.Task, over.Task)
	pick(&base.Run, over.Run)
	pick(&base.StateDir, over.StateDir)
	if over.DefaultTTL != 0 {
		base.DefaultTTL = over.DefaultTTL
	}
	if over.MaxTTL != 0 {
		base.MaxTTL = over.MaxTTL
	}
	if over.MaxSandboxes != 0 {
		base.MaxSandboxes = over.MaxSandboxes
	}
	if over.MaxSandboxesPerOwner != 0 {
		base.MaxSandboxesPerOwner = over.MaxSandboxesPerOwner
	}
	if over.MaxCostPerHour != 0 {
		base.MaxCostPerHour = over.MaxCostPerHour
	}
	if over.MaxCommitted != 0 {
		base.MaxCommitted = over.MaxCommitted
	}
	base.Prices = overlay(base.Prices, over.Prices)
	if over.ExtensionDirs != nil {
		base.ExtensionDirs = over.ExtensionDirs
	}
	if over.ProfileDirs != nil {
		base.ProfileDirs = over.ProfileDirs
	}
	base.Backends = overlay(base.Backends, over.Backends)
	return base
}

// overlay returns a map with the entries of another put over it.
func overlay[T any](base, over map[string]T) map[string]T {
	if len(over) == 0 {
		return base
	}
	merged := maps.Clone(base)
	if merged == nil {
		merged = map[string]T{}
	}
	maps.Copy(merged, over)
	return merged
}

// Complete returns the configuration with what follows from the rest: the
// state directory and the default backend.
//
// The default backend is the one that is named; else the only one that is
// configured; else the platform's. Where several are configured and none is
// named, it is the platform's when that is among them, and none otherwise.
//
// One that is named and not configured is a fault. The platform's is none
// before somebody uses it: what needs no backend works without.
func (c Config) Complete(getenv func(string) string) (Config, error) {
	if c.Fleet == "" {
		c.Fleet = DefaultFleet
	}
	if c.StateDir == "" {
		dir, err := defaultStateDir(getenv)
		if err != nil {
			return c, err
		}
		c.StateDir = dir
	}
	named := c.Backend != ""
	if !named {
		names := slices.Sorted(maps.Keys(c.Backends))
		switch platform := DefaultBackend(); {
		case len(names) == 1:
			c.Backend = names[0]
		case len(names) == 0 || slices.Contains(names, platform):
			c.Backend = platform
		}
	}
	c = c.With(c.Backend)
	if _, found := c.Backends[c.Backend]; named && !found {
		return c, sdk.Invalid("backend", "there is no backend %.80q (configured: %s)", c.Backend, list(slices.Sorted(maps.Keys(c.Backends))))
	}
	return c, c.Validate()
}

// With returns the configuration with a backend of the given name. The
// embedded one and the platform's own need no settings and are there when they
// are named; another has to be configured, and its name changes nothing.
func (c Config) With(name string) Config {
	if _, found := c.Backends[name]; found || (name != ExtensionLocal && name != DefaultBackend()) {
		return c
	}
	return Merge(c, Config{Backends: map[string]Backend{name: {Extension: name}}})
}

// The patterns are compiled when first used: Terraform starts the program
// several times in each run.
var (
	fleetPattern   = pattern("^[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?$")
	backendPattern = pattern("^[A-Za-z][A-Za-z0-9_-]{0,62}$")
	extPattern     = pattern("^[a-z][a-z0-9_-]{0,62}$")
	sha256Pattern  = pattern("^[0-9a-f]{64}$")
	envPattern     = pattern("^[A-Za-z_][A-Za-z0-9_]*$")
)

func pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// Validate returns the first fault of a configuration that may lie over
// another, an [*sdk.Error] on its attribute.
func (c Config) Validate() error {
	if c.Fleet != "" && !fleetPattern().MatchString(c.Fleet) {
		return sdk.Invalid("fleet", "%.80q is not a fleet name (letters, digits, dots, dashes, underscores, slashes)", c.Fleet)
	}
	if c.DefaultTTL < 0 {
		return sdk.Invalid("default_ttl", "%s is not longer than zero", c.DefaultTTL)
	}
	if c.MaxTTL < 0 {
		return sdk.Invalid("max_ttl", "%s is not longer than zero", c.MaxTTL)
	}
	if c.MaxSandboxes < 0 {
		return sdk.Invalid("max_sandboxes", "%d is not more than zero", c.MaxSandboxes)
	}
	if c.MaxSandboxesPerOwner < 0 {
		return sdk.Invalid("max_sandboxes_per_owner", "%d is not more than zero", c.MaxSandboxesPerOwner)
	}
	if err := c.OnUnreachable.Check(); err != nil {
		return err
	}
	if c.MaxTTL > 0 && c.DefaultTTL > c.MaxTTL {
		return sdk.Invalid("default_ttl", "%s is longer than max_ttl = %s", c.DefaultTTL, c.MaxTTL)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Prices)) {
		if _, err := c.Prices[name].parse("prices." + name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Backends)) {
		if err := c.Backends[name].validate(name); err != nil {
			return err
		}
	}
	return nil
}

func (b Backend) validate(name string) error {
	at := "backends." + name
	if !backendPattern().MatchString(name) {
		return sdk.Invalid("backends", "%.80q is not a backend name (a letter, then letters, digits, dashes, underscores; at most 63)", name)
	}
	if !extPattern().MatchString(b.Extension) {
		return sdk.Invalid(at+".extension", "%.80q is not an extension name (a lower case letter, then lower case letters, digits, dashes and underscores)", b.Extension)
	}
	if b.SHA256 != "" && !sha256Pattern().MatchString(b.SHA256) {
		return sdk.Invalid(at+".sha256", "not a SHA-256 digest of 64 lower case hexadecimal digits")
	}
	for i, variable := range b.Env {
		if !envPattern().MatchString(variable) {
			return sdk.Invalid(fmt.Sprintf("%s.env[%d]", at, i), "%.80q is not the name of an environment variable", variable)
		}
	}
	if b.Config != nil {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(b.Config, &object); err != nil {
			return sdk.Invalid(at+".config_json", "not a JSON object")
		}
	}
	return nil
}

// Life returns the default and the maximum ttl.
func (c Config) Life() sandbox.Life { return sandbox.Life{TTL: c.DefaultTTL, Max: c.MaxTTL} }

// Attribution returns who sandboxes are made for, completed from CI's
// environment.
func (c Config) Attribution(getenv func(string) string) sandbox.Attribution {
	return sandbox.Attribution{Owner: c.Owner, Task: c.Task, Run: c.Run}.Fill(getenv)
}
