// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The environment that every extension's process gets. The host's may hold
// the keys of every other provider and CI secret; none of that is an
// extension's business. What one needs beyond this is listed in its backend's
// configuration.
var (
	passedNames = []string{
		"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SANDBOXER_STATE_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
		// Windows does not open a socket without the first two.
		"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA",
	}
	passedPrefixes = []string{"LC_", "XDG_"}
)

// validVariable reports whether a variable may be called so.
func validVariable(name string) bool {
	for i, c := range name {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// environment returns what of the host's environment a process gets, and the
// values of the listed variables, which are likely to be secret.
func environment(host, listed []string) (passed, listedValues []string, err error) {
	for _, name := range listed {
		if !validVariable(name) {
			return nil, nil, sdk.Invalid("env", "%.80q is no name of a variable: names are listed here, not values", name)
		}
	}
	for _, pair := range host {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || name == "":
		case slices.Contains(listed, name):
			passed = append(passed, pair)
			listedValues = append(listedValues, value)
		case slices.Contains(passedNames, name),
			slices.ContainsFunc(passedPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
			passed = append(passed, pair)
		}
	}
	return passed, listedValues, nil
}
