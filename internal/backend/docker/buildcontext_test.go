// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestBasesOfADockerfile(t *testing.T) {
	for text, want := range map[string][]string{
		"FROM a": {"a"},
		"from --platform=linux/amd64 a:1@sha256:0 AS x\nFROM X\n":       {"a:1@sha256:0"},
		"ARG B=c\nFROM $B\nFROM ${B}:1 as y\nFROM y AS z":               nil,
		"FROM scratch\nFROM a\nFROM a AS second\nFROM b\nfrom\n#FROM c": {"a", "b"},
		"FROM --only-a-flag": nil,
	} {
		if got := basesOf(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// The key is of what is built from: names, kinds, modes, content, arguments
// and target; not of times, and not of what is left out.
func TestTheKeyOfABuildContext(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pack := func(b sdk.BuildSource) (string, []string) {
		t.Helper()
		b.Context = dir
		c, err := packContext(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var names []string
		for r := tar.NewReader(c.spool); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				return c.key, names
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, header.Name)
		}
	}
	write("Dockerfile", "FROM scratch\n")
	write(".dockerignore", "left\nDockerfile\n")
	write("left", "1")
	write("kept", "1")
	first, names := pack(sdk.BuildSource{})
	if !slices.Equal(names, []string{".dockerignore", "Dockerfile", "kept"}) {
		t.Errorf("%q", names)
	}
	same := func(what string, b sdk.BuildSource, want bool) {
		t.Helper()
		if key, _ := pack(b); (key == first) != want {
			t.Errorf("%s: the key is the same: %v", what, key == first)
		}
	}
	if err := os.Chtimes(filepath.Join(dir, "kept"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	write("left", "2")
	same("another time, and what is left out", sdk.BuildSource{}, true)
	same("the Dockerfile by its name", sdk.BuildSource{Dockerfile: "./Dockerfile"}, true)
	same("an argument", sdk.BuildSource{Args: map[string]string{"A": "b"}}, false)
	same("a target", sdk.BuildSource{Target: "A"}, false)
	if err := os.Chmod(filepath.Join(dir, "kept"), 0o755); err != nil {
		t.Fatal(err)
	}
	same("a mode", sdk.BuildSource{}, false)
}

// Nothing outside of the context is read, whatever leads there.
func TestABuildContextStaysInside(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(outside, []byte("FROM scratch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Dockerfile", ".dockerignore"} {
		if err := os.Symlink(outside, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := packContext(t.Context(), sdk.BuildSource{Context: dir}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a Dockerfile outside: %v", err)
	}
	if err := os.Rename(outside, filepath.Join(dir, "real")); err != nil {
		t.Fatal(err)
	}
	if _, err := packContext(t.Context(), sdk.BuildSource{Context: dir, Dockerfile: "real"}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a .dockerignore outside: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, ".dockerignore")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := packContext(ctx, sdk.BuildSource{Context: dir, Dockerfile: "real"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
