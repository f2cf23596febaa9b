// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// unpackEnv makes this test binary unpack an image, to be killed at it.
const unpackEnv = "SANDBOXER_TEST_UNPACK"

func TestMain(m *testing.M) {
	if dir, path, ok := strings.Cut(os.Getenv(unpackEnv), "\x1f"); ok {
		for {
			cache := Cache{Dir: dir}
			i, err := cache.Unpack(context.Background(), path, nil)
			if err != nil {
				panic(err)
			}
			i.Close()
			if _, err := cache.Remove(i.Key); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

// imageFile writes an image that is unlike any other.
func imageFile(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: "content", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	noise := rand.NewChaCha8([32]byte{byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())})
	if _, err := io.CopyN(w, noise, size); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func unpacked(t *testing.T, c Cache, path string) *Image {
	t.Helper()
	i, err := c.Unpack(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestAnImageThatIsHeldStays(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	i := unpacked(t, c, imageFile(t, 1<<16))
	again := unpacked(t, c, imageFile(t, 1<<16))
	again.Close()
	if gone, err := c.Remove(i.Key); gone || err != nil {
		t.Errorf("held: removed %v, %v", gone, err)
	}
	i.Close()
	if gone, err := c.Remove(i.Key); !gone || err != nil {
		t.Errorf("free: removed %v, %v", gone, err)
	}
	if gone, err := c.Remove(i.Key); gone || err != nil {
		t.Errorf("gone: removed %v, %v", gone, err)
	}
	if _, err := c.Lookup(i.Key); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lookup of a removed one: %v", err)
	}
	list, err := c.List()
	if err != nil || len(list) != 1 || list[0].Key != again.Key || list[0].Size < 1<<16 {
		t.Errorf("%+v, %v", list, err)
	}
	c.Tidy()
	if names, _ := filepath.Glob(filepath.Join(c.Dir, "of-*")); len(names) != 1 {
		t.Errorf("names %v, want the one of the image that is left", names)
	}
}

func TestListBeginsWithWhatWasNotUsedForLongest(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	var keys []string
	for range 3 {
		i := unpacked(t, c, imageFile(t, 1024))
		i.Close()
		keys = append(keys, i.Key)
	}
	for n, age := range []time.Duration{time.Hour, 3 * time.Hour, 2 * time.Hour} {
		at := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(c.Dir, keys[n]+metaSuffix), at, at); err != nil {
			t.Fatal(err)
		}
	}
	used, err := c.Lookup(keys[1])
	if err != nil {
		t.Fatal(err)
	}
	used.Close()
	list, err := c.List()
	if err != nil || len(list) != 3 || list[0].Key != keys[2] || list[1].Key != keys[0] || list[2].Key != keys[1] {
		t.Errorf("%+v, %v", list, err)
	}
}

// Several unpack, use and remove the same images at once, and whoever got one
// has it.
func TestNobodyLosesAnImageToARemoval(t *testing.T) {
	dir := t.TempDir()
	paths := []string{imageFile(t, 1<<14), imageFile(t, 1<<14)}
	var group sync.WaitGroup
	for n := range 6 {
		group.Go(func() {
			c := Cache{Dir: dir}
			for range 30 {
				i, err := c.Unpack(t.Context(), paths[n%2], nil)
				if err != nil {
					t.Error(err)
					return
				}
				if f, err := os.Open(i.Path); err != nil {
					t.Errorf("held and not there: %v", err)
				} else {
					f.Close()
				}
				i.Close()
				if _, err := c.Remove(i.Key); err != nil {
					t.Error(err)
				}
				c.Tidy()
			}
		})
	}
	group.Wait()
}

func TestWhatAKilledOneLeavesIsCollected(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	path := imageFile(t, 4<<20)
	for range 12 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), unpackEnv+"="+c.Dir+"\x1f"+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(120 * time.Millisecond))))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	// Each place between two steps as well, whatever the kills hit.
	old := time.Now().Add(-time.Minute)
	for _, name := range []string{strings.Repeat("a", 64) + dataSuffix, strings.Repeat("b", 64) + metaSuffix, newPrefix + "1"} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(c.Dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(strings.Repeat("c", 64), filepath.Join(c.Dir, ofPrefix+"c")); err != nil {
		t.Fatal(err)
	}
	// Young ones without content may be about to get their lock.
	begun, _ := filepath.Glob(filepath.Join(c.Dir, newPrefix+"*"))
	for _, name := range begun {
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	c.Tidy()
	for _, pattern := range []string{newPrefix + "*", "*" + dataSuffix, "*" + metaSuffix} {
		names, _ := filepath.Glob(filepath.Join(c.Dir, pattern))
		// The last one may have been killed when its image was whole.
		if len(names) > 1 || strings.HasPrefix(pattern, newPrefix) && len(names) > 0 {
			t.Errorf("left behind: %v", names)
		}
	}
	i := unpacked(t, c, path)
	defer i.Close()
	if list, err := c.List(); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestWhatIsBeingWrittenStays(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	f, err := c.temp()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprint(f, "half")
	c.Tidy()
	if missing(f.Name()) {
		t.Error("it was removed under its writer")
	}
	f.Close()
	c.Tidy()
	if !missing(f.Name()) {
		t.Error("its writer is gone and it is there")
	}
}
