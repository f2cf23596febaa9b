// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func fileDigest(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

func TestTheSearchPathIsInItsOrder(t *testing.T) {
	root := t.TempDir()
	real, link := filepath.Join(root, "opt", "sandboxer"), filepath.Join(root, "bin", "sandboxer")
	for _, path := range []string{real, link} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script(t, filepath.Dir(real), "sandboxer", "", 0o755)
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	other := script(t, root, "other", "", 0o755)
	optPlace, binPlace := Place{filepath.Dir(real), "beside the executable"}, Place{filepath.Dir(link), "beside the executable"}
	home := Place{"/home/me/.local/share/sandboxer/extensions", "per user"}
	for name, test := range map[string]struct {
		executable, argv0, dirs, data string
		want                          []Place
	}{
		"plain":                              {real, real, "", "", []Place{optPlace, home}},
		"started by a link":                  {real, link, "", "", []Place{binPlace, optPlace, home}},
		"a link that the system reports":     {link, link, "", "", []Place{binPlace, optPlace, home}},
		"another program's name":             {real, other, "", "", []Place{optPlace, home}},
		"a name by the working directory":    {real, "./sandboxer", "", "", []Place{optPlace, home}},
		"folders of the variable":            {real, real, "/a:/b::/a/", "", []Place{optPlace, {"/a", dirVariable}, {"/b", dirVariable}, home}},
		"a folder for data":                  {real, real, "", "/data", []Place{optPlace, {"/data/sandboxer/extensions", "per user"}}},
		"a relative folder for data":         {real, real, "", "data", []Place{optPlace, home}},
		"an executable that is not absolute": {"sandboxer", "sandboxer-of-nowhere", "", "", []Place{home}},
	} {
		t.Run(name, func(t *testing.T) {
			have, err := searchPath(host{
				executable: func() (string, error) { return test.executable, nil }, argv0: test.argv0,
				getenv: func(name string) string {
					return map[string]string{dirVariable: test.dirs, "XDG_DATA_HOME": test.data}[name]
				},
				home: func() (string, error) { return "/home/me", nil },
			})
			if diff := cmp.Diff(test.want, have); err != nil || diff != "" {
				t.Errorf("%v (-want +have):\n%s", err, diff)
			}
		})
	}
}

func TestARelativeFolderIsRefused(t *testing.T) {
	t.Setenv(dirVariable, "/a:extensions")
	_, err := New(Options{}).Describe(t.Context(), "fake")
	isA(t, err, sdk.ErrInvalid, dirVariable, "extensions", "working directory")
	_, err = New(Options{}).List()
	isA(t, err, sdk.ErrInvalid, dirVariable)
	r := registry(t, func(_ *Options, c *Config) { c.Path = "bin/x" })
	_, err = r.Open(t.Context(), "b")
	isA(t, err, sdk.ErrInvalid, "path", "bin/x")
}

func TestTheFirstPlaceWins(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	t.Setenv(dirVariable, first+":"+second)
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	script(t, second, binaryName("x"), "", 0o755)
	if path, err := find(Config{Extension: "x"}); err != nil || path != filepath.Join(second, binaryName("x")) {
		t.Errorf("%q %v", path, err)
	}
	script(t, first, binaryName("x"), "", 0o755)
	if path, err := find(Config{Extension: "x"}); err != nil || path != filepath.Join(first, binaryName("x")) {
		t.Errorf("%q %v", path, err)
	}
	// What is there and can't be used is not passed over.
	if err := os.Chmod(filepath.Join(first, binaryName("x")), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := find(Config{Extension: "x"})
	isA(t, err, sdk.ErrUnreachable, first, "not executable")
}

func TestAMissingExtensionSaysWhereItWasLookedFor(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	t.Setenv(dirVariable, dir)
	t.Setenv("XDG_DATA_HOME", data)
	t.Chdir(t.TempDir())
	script(t, ".", binaryName("ghost"), "#!/bin/sh\n", 0o755) // the working directory is never looked at
	r := New(Options{Backends: map[string]Config{"b": {Extension: "ghost"}}})
	_, err := r.Open(t.Context(), "b")
	isA(t, err, ErrExtensionMissing, "ghost", dir, data, "beside the executable", "go install")
	isA(t, err, sdk.ErrUnreachable)
	if errors.Is(err, sdk.ErrNotFound) {
		t.Error("a missing extension looks like a sandbox that is gone")
	}
}

func TestListShowsEveryExtensionOnce(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	t.Setenv(dirVariable, first+":"+second)
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	for _, name := range []string{"sandboxer-extension-b", "sandboxer-extension-a", "sandboxer-extension-BAD", "other"} {
		script(t, first, name, "", 0o755)
	}
	script(t, first, "sandboxer-extension-c", "", 0o644)
	script(t, second, "sandboxer-extension-b", "", 0o755)
	script(t, second, "sandboxer-extension-docker", "", 0o755)
	r := New(Options{Builtins: map[string]func() sdk.Extension{"docker": nil}})
	have, err := r.List()
	want := []Found{
		{"a", filepath.Join(first, "sandboxer-extension-a"), dirVariable, false},
		{"b", filepath.Join(first, "sandboxer-extension-b"), dirVariable, false},
		{"b", filepath.Join(second, "sandboxer-extension-b"), dirVariable, true},
		{"docker", "", "built in", false},
		{"docker", filepath.Join(second, "sandboxer-extension-docker"), dirVariable, true},
	}
	if diff := cmp.Diff(want, have); err != nil || diff != "" {
		t.Errorf("%v (-want +have):\n%s", err, diff)
	}
}
