// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package copytar

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// What goes out and in again is what it was.
func TestOutAndIn(t *testing.T) {
	from := filepath.Join(t.TempDir(), "tree")
	for _, dir := range []string{from, filepath.Join(from, "empty"), filepath.Join(from, "a", "b")} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "a", "b", "file"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../nowhere", filepath.Join(from, "a", "link")); err != nil {
		t.Fatal(err)
	}
	var packed, checked bytes.Buffer
	if err := Pack(&packed, from); err != nil {
		t.Fatal(err)
	}
	if n, err := Check(&checked, &packed, from); err != nil || n != int64(len("content")) {
		t.Fatal(n, err)
	}
	to := t.TempDir()
	if n, err := Unpack(to, &checked); err != nil || n != int64(len("content")) {
		t.Fatal(n, err)
	}
	content, err := os.ReadFile(filepath.Join(to, "tree", "a", "b", "file"))
	link, linkErr := os.Readlink(filepath.Join(to, "tree", "a", "link"))
	empty, emptyErr := os.Stat(filepath.Join(to, "tree", "empty"))
	if err != nil || string(content) != "content" || linkErr != nil || link != "../nowhere" || emptyErr != nil || empty.Mode().Perm() != 0o750 {
		t.Error(string(content), err, link, linkErr, empty, emptyErr)
	}
}

// One entry that is not below the path is refused, on the way in and out.
func TestWhatLeavesIsRefused(t *testing.T) {
	for _, header := range []tar.Header{
		{Name: "/etc/passwd", Typeflag: tar.TypeReg},
		{Name: "../x", Typeflag: tar.TypeReg},
		{Name: "dir/../../x", Typeflag: tar.TypeReg},
		{Name: "dir/device", Typeflag: tar.TypeChar},
		{Name: "dir/pipe", Typeflag: tar.TypeFifo},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(filepath.Join(t.TempDir(), "to"), bytes.NewReader(archive.Bytes())); err == nil {
			t.Errorf("%s was unpacked", header.Name)
		}
		for _, name := range []string{"/dir", "/"} {
			if _, err := Check(io.Discard, bytes.NewReader(archive.Bytes()), name); err == nil {
				t.Errorf("%s was taken for a part of %s", header.Name, name)
			}
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "other/file", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(io.Discard, bytes.NewReader(archive.Bytes()), "/dir"); err == nil {
		t.Error("other/file was taken for a part of /dir")
	}
	if _, err := Check(io.Discard, bytes.NewReader(archive.Bytes()), "/"); err != nil {
		t.Errorf("a part of the root: %s", err)
	}
}
