// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func archiveOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, header := range headers {
		content := ""
		if header.Typeflag == tar.TypeReg {
			content = "evil"
			header.Size = int64(len(content))
		}
		if header.Mode == 0 {
			header.Mode = 0o644
		}
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// Nothing that comes out of a sandbox is written outside of the destination,
// and no link that leads out of it is left behind.
func TestUnpackStaysInside(t *testing.T) {
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	hard := func(name, to string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to} }
	cases := []struct {
		name    string
		entries []tar.Header
		want    string // part of the error
	}{
		{"parent in the name", []tar.Header{dir("out"), file("out/../../evil")}, "leads out"},
		{"absolute name", []tar.Header{file("/evil")}, "leads out"},
		{"parent at the start", []tar.Header{file("../evil")}, "leads out"},
		{"another name", []tar.Header{dir("out"), file("other/evil")}, "not within"},
		{"absolute link", []tar.Header{dir("out"), link("out/l", "/etc")}, "leads out"},
		{"link to the parent", []tar.Header{dir("out"), link("out/l", "..")}, "leads out"},
		{"link to the parent from below", []tar.Header{dir("out"), link("out/a/b/l", "../../../evil")}, "leads out"},
		{"write through a link", []tar.Header{dir("out"), dir("out/d"), link("out/l", "d"), file("out/l/evil")}, "not a directory"},
		{"link whose parent is a link", []tar.Header{dir("out"), dir("out/a/b"), link("out/a/b/s", "../.."), link("out/a/b/s/l", "../..")}, "not a directory"},
		{"hard link to elsewhere", []tar.Header{dir("out"), hard("out/l", "/etc/passwd")}, "leads out"},
		{"hard link to a sibling", []tar.Header{dir("out"), hard("out/l", "out/../victim")}, "leads out"},
		{"device", []tar.Header{dir("out"), {Name: "out/d", Typeflag: tar.TypeBlock}}, "neither"},
		{"fifo", []tar.Header{{Name: "out", Typeflag: tar.TypeFifo}}, "neither"},
		{"two files", []tar.Header{file("out"), file("out/more")}, "follows"},
		{"a link for a file", []tar.Header{link("out", "/etc/passwd")}, "copy what it leads to"},
		{"sparse", []tar.Header{{Name: "out", Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr.x": "1"}}}, ""},
		{"nothing", nil, "empty"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.WriteFile(filepath.Join(root, "victim"), []byte("good"), 0o600); err != nil {
				t.Fatal(err)
			}
			err := unpack(archiveOf(t, c.entries...), filepath.Join(root, "deep", "out"))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if walkErr := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
				if entry.Name() == "evil" {
					t.Errorf("%s was written", file)
				}
				if entry.Type() == fs.ModeSymlink {
					if led, err := filepath.EvalSymlinks(file); err == nil && !strings.HasPrefix(led, filepath.Join(root, "deep", "out")) {
						t.Errorf("the link %s leads to %s", file, led)
					}
				}
				return err
			}); walkErr != nil {
				t.Fatal(walkErr)
			}
		})
	}
}

// A GNU sparse file stands for more bytes than it has: refused by what the
// reader keeps of its headers.
func TestUnpackRefusesSparseFiles(t *testing.T) {
	header := &tar.Header{PAXRecords: map[string]string{"GNU.sparse.major": "1"}}
	if !sparse(header) {
		t.Error("not seen")
	}
	if sparse(&tar.Header{PAXRecords: map[string]string{"SCHILY.xattr.user.a": "1"}}) {
		t.Error("seen where there is none")
	}
}

// What is packed is unpacked: content, modes but for special bits, links.
func TestPackAndUnpack(t *testing.T) {
	root := t.TempDir()
	source := filepath.Join(root, "src")
	for _, dir := range []string{"src/sub", "src/closed"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]fs.FileMode{"a": 0o640, "sub/b": 0o755 | fs.ModeSetuid, "closed/c": 0o600} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(source, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../a", filepath.Join(source, "sub", "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(source, "closed"), 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(source, "closed"), 0o700) })
	info, err := os.Stat(source)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if skipped, err := pack(&archive, source, "new", info); err != nil || len(skipped) > 0 {
		t.Fatal(skipped, err)
	}
	target := filepath.Join(root, "dst")
	// A file that is there is replaced, also when it is a link.
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(root, "victim")
	if err := os.WriteFile(victim, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(target, "a")); err != nil {
		t.Fatal(err)
	}
	if err := unpack(&archive, target); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"a": 0o640, "sub/b": 0o755, "closed/c": 0o600} {
		content, err := os.ReadFile(filepath.Join(target, name))
		if err != nil || string(content) != name {
			t.Errorf("%s: %q, %v", name, content, err)
		}
		if info, err := os.Lstat(filepath.Join(target, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if to, err := os.Readlink(filepath.Join(target, "sub", "link")); err != nil || to != "../a" {
		t.Errorf("link: %q, %v", to, err)
	}
	if content, err := os.ReadFile(victim); err != nil || string(content) != "good" {
		t.Errorf("the victim of the link: %q, %v", content, err)
	}
}

func FuzzUnpack(f *testing.F) {
	seed := func(entries ...tar.Header) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, header := range entries {
			_ = w.WriteHeader(&header)
		}
		_ = w.Close()
		f.Add(out.Bytes())
	}
	seed(tar.Header{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "a/l", Typeflag: tar.TypeSymlink, Linkname: "b"})
	seed(tar.Header{Name: "../a", Typeflag: tar.TypeReg})
	f.Fuzz(func(t *testing.T, archive []byte) {
		root := t.TempDir()
		_ = unpack(bytes.NewReader(archive), filepath.Join(root, "out"))
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Name() != "out" {
				t.Fatalf("%q was written beside the destination", entry.Name())
			}
		}
	})
}
