// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// configured returns a backend with settings of its own.
func configured(t *testing.T, state string, settings map[string]string) *extension.Extension {
	t.Helper()
	config := fmt.Sprintf("{%q: %q", "state_dir", state)
	for name, value := range settings {
		config += fmt.Sprintf(", %q: %q", name, value)
	}
	e := extension.New(extension.Options{Program: program})
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "local", Fleet: fleet, Config: []byte(config + "}")}); err != nil {
		t.Fatal(err)
	}
	return e
}

// images returns the keys of the unpacked images.
func images(t *testing.T, state string) (keys []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(state, "local", "images", "*.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		keys = append(keys, strings.TrimSuffix(filepath.Base(file), ".erofs"))
	}
	return keys
}

func TestTheImageCacheIsBounded(t *testing.T) {
	state := stateDir(t)
	e := configured(t, state, map[string]string{"image_cache_size": "1MiB"})
	image := func(name string) sdk.Profile {
		headers := append(shell(t), file("etc/name", name, 0o644))
		return sdk.Profile{Name: "image", Image: write(t, "root.tar", archive(t, headers...).Bytes()), Env: map[string]string{"LD_LIBRARY_PATH": "/lib"}}
	}
	prepare := func(p sdk.Profile) {
		t.Helper()
		if _, err := e.Prepare(t.Context(), sdk.PrepareOptions{Profile: p}); err != nil {
			t.Fatal(err)
		}
	}
	running := create(t, e, options(image("runs")))
	source := image("snapshot")
	lain := create(t, e, options(source))
	snapshot := snap(t, e, lain.ID, sdk.SnapshotFilesystem)
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(lain.ID)}); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		prepare(image(fmt.Sprint("unused ", n)))
	}
	if keys := images(t, state); len(keys) != 3 {
		t.Errorf("images %v, want the one that runs, the one that the snapshot lies on and the newest", keys)
	}
	if got := run(t, e, running.ID, "/bin/cat", "/etc/name"); got != "runs" {
		t.Errorf("it is %q", got)
	}
	fork := restore(t, e, snapshot.ID, options(source))
	if got := run(t, e, fork.ID, "/bin/cat", "/etc/name"); got != "snapshot" {
		t.Errorf("the fork is %q", got)
	}
	// What is damaged may need anything, so nothing is removed beside it.
	damaged := filepath.Join(state, "local", "snapshots", newID("snp-"))
	if err := os.Mkdir(damaged, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(damaged, "manifest.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	prepare(image("beside damage"))
	prepare(image("and another"))
	if keys := images(t, state); len(keys) != 4 {
		t.Errorf("images %v, want all of them", keys)
	}
}

func TestCopiesOfOlderProgramsGo(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	bin := filepath.Join(state, "local", "bin")
	old := func(n int) string { return filepath.Join(bin, fmt.Sprintf("%064x", n)) }
	for n := range 4 {
		if err := os.Mkdir(old(n), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(old(n), "sandboxer-extension-local"), make([]byte, 100<<20), 0o755); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Duration(10-n) * time.Hour)
		if err := os.Chtimes(old(n), at, at); err != nil {
			t.Fatal(err)
		}
	}
	create(t, e, options(sdk.Profile{Name: "shell"}))
	for n, want := range []bool{false, false, true, true} {
		if there(old(n)) != want {
			t.Errorf("copy %d, the oldest first: there %v, want %v", n, !want, want)
		}
	}
	run(t, e, s.ID, "true")
}

// An image with nothing but a directory works as a source of sandboxes that
// run nothing; several backends at once make and remove them.
func TestCreatingRacesWithMakingRoom(t *testing.T) {
	state := stateDir(t)
	done := make(chan error)
	const backends, rounds = 4, 4
	for n := range backends {
		e := configured(t, state, map[string]string{"image_cache_size": "1B"})
		var paths []string
		for r := range rounds {
			paths = append(paths, write(t, "root.tar", archive(t, &tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, file("etc/n", fmt.Sprint(n/2, r), 0o644)).Bytes()))
		}
		go func() {
			for _, path := range paths {
				opts := options(sdk.Profile{Name: "image", Image: path})
				if _, err := e.Create(t.Context(), opts); err != nil {
					done <- err
					return
				}
				if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(opts.ID)}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range backends {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
