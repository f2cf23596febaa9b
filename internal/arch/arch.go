// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package arch holds the rules of who may import whom, and the test that
// keeps them. Arrows run one way:
//
//	faces → lifecycle, reap → ledger, events, evidence, sdk ← backend/*, extensions/*
//
// A folder that has no rule fails the test: a new package states its place.
package arch

import (
	"fmt"
	"slices"
	"strings"
)

// Module is the root module's path; the folders below it have the same path
// as the packages in them, whichever module they belong to.
const Module = "github.com/sand-boxer/terraform-provider-sandboxer"

// Package is a package of the checkout: its folder relative to the root ("."
// for the root) and everything that its non-test files import, on any platform.
type Package struct {
	Dir     string
	Imports []string
}

// rule says what the packages of one folder may import of ours. A trailing
// "/..." stands for the folder and everything below it.
type rule struct {
	folder string
	may    []string
}

// rules are tried in order; the first whose folder matches decides. A package
// may always import what lies below its own rule's folder.
var rules = []rule{
	// What an extension implements and a host needs: public, so closed.
	{"sdk/...", nil},

	// Values and rules, no I/O.
	{"internal/clock", nil},
	// Nothing at all in a release.
	{"internal/failpoint", nil},
	// Nor this: it is of the servers that play vendors in tests.
	{"internal/jail", nil},
	{"internal/sandbox", []string{"sdk"}},

	// Documents that people write: profiles and configuration.
	{"internal/profile/...", []string{"sdk", "internal/sandbox", "internal/clock", "internal/config/fault", "internal/config/plainhcl"}},

	// What is remembered and told.
	{"internal/ledger/...", []string{"sdk", "internal/sandbox", "internal/clock", "internal/failpoint"}},
	{"internal/events/...", []string{"sdk", "internal/sandbox", "internal/clock", "internal/ledger"}},
	{"internal/evidence/...", []string{"sdk", "sdk/isolation", "internal/sandbox", "internal/clock", "internal/ledger"}},

	// The registry of extensions, and the light ones. One backend knows
	// nothing of another, of the ledger or of any face.
	{"internal/backend", []string{"sdk", "sdk/plugin/...", "internal/clock", "internal/failpoint"}},
	{"internal/sshtransport/...", []string{"sdk", "internal/clock"}},
	// A server that plays a vendor is of the tests, and not of its backend.
	{"internal/backend/e2b/e2btest/...", []string{"internal/clock", "internal/jail"}},
	{"internal/backend/*/...", []string{"sdk", "sdk/copytar", "sdk/isolation", "sdk/portable", "internal/clock", "internal/sshtransport/..."}},

	// The verbs, the only place that orders ledger, backend and events.
	{"internal/lifecycle/...", []string{
		"sdk", "sdk/isolation", "internal/sandbox", "internal/clock", "internal/profile/...",
		"internal/ledger", "internal/events", "internal/evidence", "internal/backend",
	}},
	{"internal/reap/...", []string{
		"sdk", "internal/sandbox", "internal/clock", "internal/lifecycle",
		"internal/ledger", "internal/events", "internal/evidence", "internal/backend",
	}},

	// A configuration, read and put to work: what the faces begin with.
	{"internal/config/fault", nil},
	{"internal/config/plainhcl", []string{"internal/config/fault"}},
	{"internal/config", []string{
		"sdk", "internal/sandbox", "internal/clock", "internal/profile", "internal/config/...",
		"internal/ledger", "internal/lifecycle", "internal/backend",
	}},

	// The faces. They know the registry, never a backend in it, and never
	// one another.
	// The schema of SSH settings is the transport's own.
	{"internal/provider/...", append([]string{"internal/failpoint", "internal/sshtransport"}, faceMay...)},
	{"internal/cli/...", append([]string{"internal/service/..."}, faceMay...)},
	{"internal/service/...", faceMay},

	// The only place that names a backend: the table of the built-in ones.
	{".", []string{"sdk/...", "internal/..."}},

	// Heavy extensions stand outside, as a third party's would: sdk is enough.
	{"extensions/modal/modaltest/...", []string{"internal/clock", "internal/jail"}},
	{"extensions/*/...", []string{"sdk/...", "internal/failpoint"}},

	// Not part of any binary that is shipped.
	{"internal/arch", nil},
	{"internal/crash", nil},
	{"tools/...", []string{"sdk/...", "internal/...", "extensions/..."}},
	{"examples/...", []string{"sdk/..."}},
}

var faceMay = []string{
	"sdk/...", "internal/sandbox", "internal/clock", "internal/profile/...", "internal/config/...",
	"internal/ledger", "internal/events", "internal/evidence", "internal/backend",
	"internal/lifecycle", "internal/reap",
}

// external says who may import a foreign module; what is not listed is free.
var external = []rule{
	// Tied to one Go release and 30 MB heavy.
	{"gvisor.dev/gvisor", []string{"extensions/local/..."}},
	// A backend, the ledger and the verbs know nothing of Terraform.
	{"github.com/hashicorp/terraform-plugin-", []string{"internal/provider/...", ".", "tools/..."}},
	// The command line's library is the command line's.
	{"github.com/spf13/cobra", []string{"internal/cli/...", "."}},
	// The wire is in one place; who starts the processes is in another.
	{"github.com/hashicorp/go-plugin", []string{"sdk/plugin/...", "internal/backend"}},
	{"google.golang.org/grpc", []string{"sdk/plugin/...", "internal/backend", "internal/backend/*/...", "extensions/modal/..."}},
	// Heavy, and a client of one vendor.
	{"github.com/modal-labs/modal-client", []string{"extensions/modal/...", "tools/sdkcheck/modal"}},
}

// Check returns every import that the rules forbid, one sentence each.
func Check(packages []Package) []string {
	var faults []string
	for _, p := range packages {
		i := slices.IndexFunc(rules, func(r rule) bool { return match(r.folder, p.Dir) })
		if i < 0 {
			faults = append(faults, fmt.Sprintf("%s has no rule: state in internal/arch what it may import", p.Dir))
			continue
		}
		for _, path := range p.Imports {
			own, ours := ownFolder(path)
			switch {
			case !ours:
				faults = append(faults, checkExternal(p.Dir, path)...)
			case !allowed(rules[i], p.Dir, own):
				faults = append(faults, fmt.Sprintf("%s imports %s: the arrows of the architecture forbid it", p.Dir, own))
			}
		}
	}
	return faults
}

func checkExternal(dir, path string) []string {
	for _, r := range external {
		if !strings.HasPrefix(path, r.folder) {
			continue
		}
		if !slices.ContainsFunc(r.may, func(folder string) bool { return match(folder, dir) }) {
			return []string{fmt.Sprintf("%s imports %s: only %s may", dir, path, strings.Join(r.may, ", "))}
		}
	}
	return nil
}

// allowed tells whether a package under a rule may import another of ours.
func allowed(r rule, from, to string) bool {
	if slices.ContainsFunc(r.may, func(folder string) bool { return match(folder, to) }) {
		return true
	}
	// Its own folder: for a "*" rule, the one that the package is in.
	home := strings.TrimSuffix(r.folder, "/...")
	if strings.Contains(home, "*") {
		depth := strings.Count(home, "/") + 1
		home = strings.Join(strings.SplitN(from, "/", depth+1)[:depth], "/")
	}
	return match(home+"/...", to) && strings.HasSuffix(r.folder, "/...")
}

// match tells whether a folder is the one that a pattern means: exact, with
// "/..." for everything below it too, and "*" for one path element.
func match(pattern, folder string) bool {
	want := strings.Split(pattern, "/")
	below := want[len(want)-1] == "..."
	if below {
		want = want[:len(want)-1]
	}
	got := strings.Split(folder, "/")
	if len(got) < len(want) || (len(got) > len(want) && !below) {
		return false
	}
	for i, element := range want {
		if element != "*" && element != got[i] {
			return false
		}
	}
	return true
}

// ownFolder returns the folder of an import path that is ours.
func ownFolder(path string) (string, bool) {
	if path == Module {
		return ".", true
	}
	return strings.CutPrefix(path, Module+"/")
}
