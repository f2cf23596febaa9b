// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"embed"
	"fmt"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The reference profiles work offline with what the host has.
//
//go:embed reference/*.yaml
var references embed.FS

// builtinNames returns the names of the reference profiles, sorted.
func builtinNames() []string {
	// The embedded directory is always there.
	files, _ := references.ReadDir("reference")
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(file.Name(), ".yaml")
	}
	return names
}

func builtin(name string) (sdk.Profile, bool) {
	file := "reference/" + name + ".yaml"
	content, err := references.ReadFile(file)
	if err != nil {
		return sdk.Profile{}, false
	}
	p, err := Parse(file, YAML, content)
	if err != nil {
		// The files are part of the program, and a test parses each.
		panic(fmt.Sprintf("built-in profile: %s", err))
	}
	return p, true
}
