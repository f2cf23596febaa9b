// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The arrows hold in the whole checkout, nested modules included.
func TestArrows(t *testing.T) {
	packages := read(t, "../..")
	for _, want := range []string{"sdk", "internal/sandbox", "extensions/local"} {
		if !slices.ContainsFunc(packages, func(p Package) bool { return p.Dir == want }) {
			t.Errorf("%s was not read: the test looks at the wrong folder", want)
		}
	}
	for _, fault := range Check(packages) {
		t.Error(fault)
	}
}

// read returns every package below a folder. It reads import clauses instead
// of asking the go command: that sees the files of every platform and needs
// no module to be downloaded.
func read(t *testing.T, root string) []Package {
	t.Helper()
	found := map[string]*Package{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		if found[dir] == nil {
			found[dir] = &Package{Dir: dir}
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(found[dir].Imports, imported) {
				found[dir].Imports = append(found[dir].Imports, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var packages []Package
	for _, p := range found {
		packages = append(packages, *p)
	}
	slices.SortFunc(packages, func(a, b Package) int { return strings.Compare(a.Dir, b.Dir) })
	return packages
}

// The check can fail: each forbidden arrow is seen, each allowed one is not.
func TestCheck(t *testing.T) {
	cases := []struct {
		from, to string
		fault    string // part of the message; empty when allowed
	}{
		{"internal/cli", Module + "/internal/lifecycle", ""},
		{"internal/provider", Module + "/internal/reap", ""},
		{"internal/lifecycle", Module + "/internal/ledger", ""},
		{"internal/reap", Module + "/internal/lifecycle", ""},
		{"internal/backend/docker", Module + "/sdk", ""},
		{"internal/backend/docker/api", Module + "/internal/backend/docker", ""},
		{"extensions/local", Module + "/sdk/plugin", ""},
		{"extensions/local/internal/supervisor", Module + "/extensions/local/internal/record", ""},
		{"extensions/local/internal/runsc", "gvisor.dev/gvisor/runsc/cli", ""},
		{".", Module + "/internal/backend/docker", ""},
		{"sdk", "fmt", ""},
		{"sdk/plugin", Module + "/sdk", ""},

		{"sdk", Module + "/internal/sandbox", "forbid"},
		{"sdk/plugin", Module + "/internal/backend", "forbid"},
		{"internal/sandbox", Module + "/internal/clock", "forbid"},
		{"internal/sandbox", Module + "/sdk/plugin", "forbid"},
		{"internal/ledger", Module + "/internal/lifecycle", "forbid"},
		{"internal/lifecycle", Module + "/internal/reap", "forbid"},
		{"internal/lifecycle", Module + "/internal/cli", "forbid"},
		{"internal/lifecycle", Module + "/internal/backend/docker", "forbid"},
		{"internal/cli", Module + "/internal/backend/docker", "forbid"},
		{"internal/cli", Module + "/internal/provider", "forbid"},
		{"internal/provider", Module + "/internal/cli", "forbid"},
		{"internal/backend", Module + "/internal/backend/docker", "forbid"},
		{"internal/backend/docker", Module + "/internal/backend/e2b", "forbid"},
		{"internal/backend/docker", Module + "/internal/ledger", "forbid"},
		{"internal/backend/docker", Module + "/internal/lifecycle", "forbid"},
		{"extensions/local", Module + "/internal/sandbox", "forbid"},
		{"extensions/local", Module + "/extensions/modal", "forbid"},
		{"internal/clock", Module + "/sdk", "forbid"},
		{"internal/clock/fake", Module + "/sdk", "no rule"},
		{"internal/surprise", "fmt", "no rule"},

		{"internal/cli", "gvisor.dev/gvisor/runsc/cli", "only extensions/local/... may"},
		{"extensions/modal", "gvisor.dev/gvisor/pkg/log", "only extensions/local/... may"},
		{"internal/backend/docker", "github.com/hashicorp/terraform-plugin-framework/diag", "only internal/provider"},
		{"internal/lifecycle", "github.com/hashicorp/terraform-plugin-log/tflog", "only internal/provider"},
		{"internal/provider", "github.com/spf13/cobra", "only internal/cli"},
		{"internal/lifecycle", "github.com/hashicorp/go-plugin", "only sdk/plugin"},
	}
	for _, c := range cases {
		t.Run(c.from+" → "+c.to, func(t *testing.T) {
			faults := Check([]Package{{Dir: c.from, Imports: []string{c.to}}})
			switch {
			case c.fault == "" && len(faults) != 0:
				t.Errorf("forbidden: %v", faults)
			case c.fault != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.fault)):
				t.Errorf("faults %q, want one with %q", faults, c.fault)
			}
		})
	}
}
