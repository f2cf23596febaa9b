// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestCompare(t *testing.T) {
	write := func(dir, name, content string) {
		t.Helper()
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	committed, fresh := t.TempDir(), t.TempDir()
	write(committed, "index.md", "same")
	write(fresh, "index.md", "same")
	write(committed, "resources/a.md", "old")
	write(fresh, "resources/a.md", "new")
	write(committed, "guides/gone.md", "x")
	write(fresh, "guides/added.md", "x")
	write(committed, "design/by-hand.md", "not ours")
	got, err := compare(committed, fresh)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"guides/added.md is missing", "guides/gone.md has no source", "resources/a.md differs"}
	if !slices.Equal(got, want) {
		t.Errorf("compare = %q, want %q", got, want)
	}
}
