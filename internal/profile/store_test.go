// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The five reference profiles are valid, described, end by themselves and
// need no network and no image.
func TestReferenceProfiles(t *testing.T) {
	if diff := cmp.Diff([]string{"go", "node", "postgres", "python", "shell"}, builtinNames()); diff != "" {
		t.Fatal(diff)
	}
	for _, name := range builtinNames() {
		p, err := Store{}.Resolve(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Name != name || p.Description == "" || p.TTL == nil || p.TTL.Max == "" || p.Ready == nil || p.Network != nil || p.Image != "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func TestNamesResolve(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write(t, filepath.Join(first, "app.yaml"), "name: app\ndescription: first\n")
	write(t, filepath.Join(second, "app.json"), `{"name": "app", "description": "second"}`)
	write(t, filepath.Join(second, "shell.hcl"), `name = "shell"`)
	write(t, filepath.Join(second, "liar.yaml"), "name: other\n")
	write(t, filepath.Join(second, "broken.yaml"), "name: broken\nx: 1\n")
	store := Store{Dirs: []string{filepath.Join(first, "missing"), first, second}}
	app, err := store.Resolve("app")
	if err != nil || app.Description != "first" {
		t.Errorf("app: %+v, %v", app, err)
	}
	if shell, err := store.Resolve("shell"); err != nil || shell.Description != "" {
		t.Errorf("a library's profile goes before a built-in one: %+v, %v", shell, err)
	}
	if pinned, err := store.Resolve(sandbox.ProfileID(app)); err != nil || pinned.Name != "app" {
		t.Errorf("pinned: %v", err)
	}
	if fromFile, err := store.Load(filepath.Join(second, "app.json")); err != nil || fromFile.Description != "second" {
		t.Errorf("file: %+v, %v", fromFile, err)
	}
	for name, want := range map[string]string{
		"app@sha256:00": "is at revision", "appp": `did you mean "app"?`, "../app": "no profile", "liar": `is "other"`, "broken": "no such attribute",
	} {
		_, err := store.Resolve(name)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	_, err = store.Resolve("appp")
	if !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("%v is not ErrNotFound", err)
	}
	var names []string
	for _, entry := range store.List() {
		name := entry.Name
		if entry.Err != nil {
			name += "!"
		}
		names = append(names, name)
	}
	if diff := cmp.Diff([]string{"app", "broken!", "go", "liar!", "node", "postgres", "python", "shell"}, names); diff != "" {
		t.Error(diff)
	}
}

// What Terraform publishes can be resolved, and goes with its own revision only.
func TestPublish(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "profiles")
	old := sdk.Profile{Name: "app", Description: "old"}
	young := sdk.Profile{Name: "app", Description: "young"}
	for _, p := range []sdk.Profile{old, young} {
		if err := Publish(dir, p); err != nil {
			t.Fatal(err)
		}
	}
	store := Store{Dirs: []string{dir}}
	if err := Unpublish(dir, "app", sandbox.Revision(old)); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Resolve("app"); err != nil || got.Description != "young" {
		t.Errorf("%+v, %v", got, err)
	}
	for range 2 {
		if err := Unpublish(dir, "app", sandbox.Revision(young)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Resolve("app"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("%v", err)
	}
}
