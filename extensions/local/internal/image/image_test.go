// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func archive(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpackBytes(t *testing.T, data []byte) (Cache, Meta, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	cache := Cache{Dir: t.TempDir()}
	i, err := cache.Unpack(t.Context(), path, nil)
	if err != nil {
		return cache, Meta{}, err
	}
	i.Close()
	return cache, i.Meta, nil
}

func TestHostileArchivesAreRefused(t *testing.T) {
	deep := strings.Repeat("d/", maxDepth+1)
	for name, headers := range map[string][]*tar.Header{
		"a name that climbs":              {{Name: "../../etc/passwd", Typeflag: tar.TypeReg}},
		"a name that climbs in between":   {{Name: "a/../../b", Typeflag: tar.TypeReg}},
		"a hard link that climbs":         {{Name: "a", Typeflag: tar.TypeLink, Linkname: "../../etc/shadow"}},
		"a hard link to an absolute name": {{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}},
		"a hard link to nothing":          {{Name: "a", Typeflag: tar.TypeLink, Linkname: "b"}},
		"a hard link to a directory":      {{Name: "b", Typeflag: tar.TypeDir}, {Name: "a", Typeflag: tar.TypeLink, Linkname: "b"}},
		"a loop of links":                 {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "b"}, {Name: "b", Typeflag: tar.TypeSymlink, Linkname: "a"}, {Name: "a/x", Typeflag: tar.TypeReg}},
		"a link that grows":               {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "a/a/a/a"}, {Name: "a/x", Typeflag: tar.TypeReg}},
		"a character device":              {{Name: "mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1}},
		"a block device":                  {{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"a directory without a floor":     {{Name: deep + "x", Typeflag: tar.TypeReg}},
		"a link to nothing":               {{Name: "a", Typeflag: tar.TypeSymlink}},
		"a link longer than a path":       {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("x", 5000)}},
	} {
		if _, _, err := unpackBytes(t, archive(t, headers...)); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func TestLinksAreFollowedInsideOfTheTreeOnly(t *testing.T) {
	data := archive(t,
		&tar.Header{Name: "usr/lib/", Typeflag: tar.TypeDir, Mode: 0o755},
		&tar.Header{Name: "lib", Typeflag: tar.TypeSymlink, Linkname: "/../../usr/lib"},
		&tar.Header{Name: "lib/inside", Typeflag: tar.TypeReg, Size: 3},
	)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	tree := newTree(newDataWriter(out, maxData))
	if err := tree.apply(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	dir, err := tree.dir("usr/lib", false)
	if err != nil || dir.children["inside"] == nil {
		t.Errorf("%v, %v", dir, err)
	}
}

// endless is an archive that never ends, made as it is read.
type endless struct {
	header func(i int) *tar.Header
	body   int64
	buf    bytes.Buffer
	i      int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.buf.Len() == 0 {
		w := tar.NewWriter(&e.buf)
		h := e.header(e.i)
		e.i++
		h.Size = e.body
		if err := w.WriteHeader(h); err != nil {
			return 0, err
		}
		if _, err := w.Write(make([]byte, e.body)); err != nil {
			return 0, err
		}
		_ = w.Flush()
	}
	return e.buf.Read(p)
}

func TestEndlessArchivesEnd(t *testing.T) {
	for name, test := range map[string]struct {
		from  io.Reader
		limit int64
	}{
		"entries": {&endless{header: func(i int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("%d/%d", i%1000, i), Typeflag: tar.TypeReg}
		}}, maxData},
		"names": {&endless{header: func(i int) *tar.Header {
			return &tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("n", 4000)}
		}}, maxData},
		"content": {&endless{body: 1 << 20, header: func(i int) *tar.Header { return &tar.Header{Name: "same", Typeflag: tar.TypeReg} }}, 64 << 20},
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		tree := newTree(newDataWriter(out, test.limit))
		tree.maxEntries, tree.maxNames = 10_000, 1<<20
		if err := tree.apply(test.from); !errors.Is(err, errRefused) {
			t.Errorf("endless %s: %v, want a refusal", name, err)
		}
		out.Close()
	}
}

// zeros is a stream of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAZipBombIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bomb.tar.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	const size = 512 << 20
	if err := w.WriteHeader(&tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: size}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	cache := Cache{Dir: t.TempDir()}
	if _, err := cache.Unpack(t.Context(), path, nil); !errors.Is(err, errRefused) {
		t.Errorf("%v, want a refusal", err)
	}
	if left, _ := os.ReadDir(cache.Dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAnArchiveThatWasCutOffIsAnError(t *testing.T) {
	data := archive(t, &tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 100_000})
	if _, _, err := unpackBytes(t, data[:60_000]); err == nil {
		t.Error("half an archive was taken")
	}
}

func FuzzArchive(f *testing.F) {
	f.Add([]byte{})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir}, {Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../d"}, {Name: "d/l/x", Typeflag: tar.TypeReg},
		{Name: "h", Typeflag: tar.TypeLink, Linkname: "d/x"}, {Name: ".wh.h", Typeflag: tar.TypeReg},
	} {
		_ = w.WriteHeader(h)
	}
	_ = w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		tree := newTree(newDataWriter(out, 1<<20))
		if tree.apply(bytes.NewReader(data)) == nil && tree.addOurs() == nil {
			if err := tree.finish(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
