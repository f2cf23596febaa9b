// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"slices"
	"strings"
)

// Type is the type of an attribute.
type Type string

// The types of attributes.
const (
	TypeString    Type = "string"
	TypeDuration  Type = "duration" // a Go duration, as a string
	TypeNumber    Type = "number"   // a whole one, more than zero
	TypeMoney     Type = "amount"   // of US dollars, more than zero
	TypePrices    Type = "map of prices"
	TypeStrings   Type = "list of strings"
	TypeBackends  Type = "map of backends"
	TypeExtension Type = "object" // the configuration of a known extension
)

// Attribute is one attribute of the provider block and of sandboxer.hcl.
type Attribute struct {
	Name        string
	Type        Type
	Description string
	Env         string // the environment variable that sets it; empty when there is none
	// RunsProgram marks what decides which program is executed, directly or
	// by the place where it is searched for. It counts only from a source
	// that the user wrote, never from a file in a checkout.
	RunsProgram bool
	// SpendsMoney marks what decides how much may be spent, which counts from
	// the same sources only.
	SpendsMoney bool
	// SendsCredential marks what decides which credential is used and where it
	// is sent, which counts from the same sources only.
	SendsCredential bool
}

// Attributes returns the schema, in the order of the documentation.
func Attributes() []Attribute {
	attributes := []Attribute{
		{Name: "fleet", Type: TypeString, Env: "SANDBOXER_FLEET", Description: "Scope of ownership: nothing of another fleet is ever listed, reaped or touched. Name one wherever a backend is shared. Default: `" + DefaultFleet + "`."},
		{Name: "backend", Type: TypeString, Env: "SANDBOXER_BACKEND", Description: "Backend of whatever names none. Default: the only one that is configured, else the embedded backend `local` on Linux (amd64, arm64) and `docker`, this machine's Docker Engine, elsewhere."},
		{Name: "default_ttl", Type: TypeDuration, Env: "SANDBOXER_DEFAULT_TTL", Description: "How long a sandbox lives when neither its creator nor its profile says, as a Go duration. Default: `1h`."},
		{Name: "max_ttl", Type: TypeDuration, Env: "SANDBOXER_MAX_TTL", Description: "The longest life of a sandbox, extensions included, as a Go duration. Default: `24h`."},
		{Name: "max_sandboxes", Type: TypeNumber, Env: "SANDBOXER_MAX_SANDBOXES", Description: "How many sandboxes of the fleet may be alive at a time. One more is refused before anything is made; existing ones, and their destruction, are never touched by it. It holds for all who use this state directory, and counts what others have made as far as a backend lists it. Default: no bound."},
		{Name: "max_sandboxes_per_owner", Type: TypeNumber, Env: "SANDBOXER_MAX_SANDBOXES_PER_OWNER", Description: "The same for each `owner`. Default: no bound."},
		{Name: "max_cost_per_hour", Type: TypeMoney, SpendsMoney: true, Env: "SANDBOXER_MAX_COST_PER_HOUR", Description: "What the sandboxes of the fleet that are alive may cost together for each hour, in US dollars by `prices`. A create beyond it is refused before anything is made, with the arithmetic. Exact among all who use this state directory; what others have made counts as far as a backend lists it (`best_effort`). Snapshots and traffic do not count. Default: no bound."},
		{Name: "max_committed", Type: TypeMoney, SpendsMoney: true, Env: "SANDBOXER_MAX_COMMITTED", Description: "What the sandboxes of the fleet that are alive may cost together from their creation to their deadlines, in US dollars. A create or extend beyond it is refused. It counts like `max_cost_per_hour`. Default: no bound."},
		{Name: "prices", Type: TypePrices, SpendsMoney: true, Description: "What a running sandbox costs on a backend, in US dollars, by the backend's name: `cpu_hour` for each CPU, `memory_gib_hour` for each GiB, `sandbox_hour` for being there, and `cpus` and `memory` of a sandbox whose profile sets no such limit. What is left out is zero. Default: the list prices of E2B and Modal with their date, see the guide on the configuration; `local`, `docker` and other places of your own are free."},
		{Name: "on_unreachable", Type: TypeString, Env: "SANDBOXER_ON_UNREACHABLE", Description: "What a destroy does whose backend can't be reached: `fail`, or `forget`, which ends it with a record in the ledger. What was forgotten may live until its deadline, and longer where nothing guards it; `sandboxer reap` goes on with it once the backend is there again. A refresh then warns, and keeps the state. Default: `fail`."},
		{Name: "owner", Type: TypeString, Env: "SANDBOXER_OWNER", Description: "Team or person that sandboxes are made for. Default: from the environment of CI."},
		{Name: "task", Type: TypeString, Env: "SANDBOXER_TASK", Description: "What sandboxes are made for. Default: from the environment of CI."},
		{Name: "run", Type: TypeString, Env: "SANDBOXER_RUN", Description: "URL or id of the run that makes them. Default: from the environment of CI."},
		{Name: "state_dir", Type: TypeString, Env: "SANDBOXER_STATE_DIR", RunsProgram: true, Description: "Directory of the ledger and of the embedded backend's sandboxes. Default: `$XDG_STATE_HOME/sandboxer`, which is `~/.local/state/sandboxer`."},
		{Name: "extension_dirs", Type: TypeStrings, RunsProgram: true, Description: "Directories that hold extension binaries, searched before the places that are always searched: beside this program, the directories of `SANDBOXER_EXTENSION_DIR`, and the user's `$XDG_DATA_HOME/sandboxer/extensions`."},
		{Name: "profile_dirs", Type: TypeStrings, Env: "SANDBOXER_PROFILE_DIR", Description: "Profile libraries: directories of profile files that names are looked up in, first hit wins."},
		{Name: "backends", Type: TypeBackends, Description: "Configured backends by name. Each is an object with one attribute named after a known extension (`{ docker = { … } }`), or with `extension` and `config_json`."},
	}
	for _, extension := range KnownExtensions() {
		attributes = append(attributes, Attribute{
			Name: AttributeOf(extension), Type: TypeExtension,
			Description: "Configuration of the extension `" + extension + "`; short for a backend of the name `" + AttributeOf(extension) + "`.",
		})
	}
	return attributes
}

// BackendAttributes returns the schema of one entry of `backends`, without
// the attributes that are named after known extensions.
func BackendAttributes() []Attribute {
	return []Attribute{
		{Name: "extension", Type: TypeString, Description: "Name of the extension, as in the name of its binary `sandboxer-extension-NAME`."},
		{Name: "config_json", Type: TypeString, Description: "Configuration of the extension, as a JSON object."},
		{Name: "path", Type: TypeString, RunsProgram: true, Description: "Path of the extension's binary. Default: searched for."},
		{Name: "sha256", Type: TypeString, Description: "SHA-256 digest that the extension's binary must have."},
		{Name: "env", Type: TypeStrings, RunsProgram: true, Description: "Names of environment variables that the extension's process is given. Nothing else is handed on."},
	}
}

// AttributeOf returns the attribute that is named after an extension.
func AttributeOf(extension string) string { return strings.ReplaceAll(extension, "-", "_") }

// extensionOf returns the known extension that an attribute is named after.
func extensionOf(attribute string) (string, bool) {
	extension := strings.ReplaceAll(attribute, "_", "-")
	return extension, slices.Contains(KnownExtensions(), extension)
}

// list joins names for a message.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
