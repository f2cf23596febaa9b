// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// shell returns the host's shell, some programs, and what they need to run, as entries of an
// archive: an image that works wherever the tests do.
func shell(t *testing.T, more ...string) (headers []*tar.Header) {
	t.Helper()
	seen := map[string]bool{}
	var add func(path, as string)
	add = func(path, as string) {
		if seen[as] {
			return
		}
		seen[as] = true
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, file(as, string(data), 0o755))
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				interp := make([]byte, p.Filesz-1)
				_, _ = p.ReadAt(interp, 0)
				add(string(interp), string(interp))
			}
		}
		libs, _ := f.ImportedLibraries()
		for _, lib := range libs {
			for _, dir := range []string{"/lib/x86_64-linux-gnu/", "/lib/aarch64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib64/", "/usr/lib64/", "/lib/", "/usr/lib/"} {
				if _, err := os.Stat(dir + lib); err == nil {
					add(dir+lib, "/lib/"+lib)
					break
				}
			}
		}
	}
	for _, name := range append([]string{"sh", "cat", "stat", "ls", "id"}, more...) {
		for _, dir := range []string{"/bin/", "/usr/bin/"} {
			if _, err := os.Stat(dir + name); err == nil {
				add(dir+name, "/bin/"+name)
				break
			}
		}
	}
	return append(headers,
		file("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/home/app:/bin/sh\n", 0o644),
		&tar.Header{Name: "home/app/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 1234, Gid: 1234},
		&tar.Header{Name: "etc/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		&tar.Header{Name: "etc/hard", Typeflag: tar.TypeLink, Linkname: "etc/passwd"},
	)
}

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// second is a layer over the shell's: it changes, hides and empties.
func second(t *testing.T) []byte {
	return archive(t,
		file("etc/added", "second\n", 0o600),
		file("etc/.wh.link", "", 0o644),
		&tar.Header{Name: "srv/", Typeflag: tar.TypeDir, Mode: 0o755},
		file("srv/.wh..wh..opq", "", 0o644),
		file("srv/new", "", 0o644),
	).Bytes()
}

func imageDocument(t *testing.T) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/bin", "FROM_IMAGE=yes"}, "WorkingDir": "/home/app", "User": "app"}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// layout writes an OCI layout.
func layout(t *testing.T, layers ...[]byte) string {
	t.Helper()
	dir := t.TempDir()
	blob := func(data []byte, mediaType string) map[string]any {
		digest := fmt.Sprintf("%x", sha256.Sum256(data))
		if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", digest), data, 0o644); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(data)}
	}
	var list []any
	for _, l := range layers {
		list = append(list, blob(zipped(t, l), "application/vnd.oci.image.layer.v1.tar+gzip"))
	}
	config := blob(imageDocument(t), "application/vnd.oci.image.config.v1+json")
	manifest, _ := json.Marshal(map[string]any{"schemaVersion": 2, "config": config, "layers": list})
	index, _ := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{blob(manifest, "application/vnd.oci.image.manifest.v1+json")}})
	for name, data := range map[string][]byte{"index.json": index, "oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// saved writes what docker save writes.
func saved(t *testing.T, layers ...[]byte) []byte {
	t.Helper()
	var headers []*tar.Header
	var names []string
	for i, l := range layers {
		names = append(names, fmt.Sprintf("%d/layer.tar", i))
		headers = append(headers, file(names[i], string(l), 0o644))
	}
	manifest, _ := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{"a:b"}, "Layers": names}})
	headers = append(headers, file("config.json", string(imageDocument(t)), 0o644), file("manifest.json", string(manifest), 0o644))
	return archive(t, headers...).Bytes()
}

func TestImages(t *testing.T) {
	e := backend(t)
	first := archive(t, append(shell(t), file("srv/old", "", 0o644))...).Bytes()
	forms := map[string]struct {
		path   string
		config bool
	}{
		"a root filesystem":                {write(t, "root.tar", first), false},
		"a compressed root filesystem":     {write(t, "root.tar.gz", zipped(t, first)), false},
		"an OCI layout":                    {layout(t, first, second(t)), true},
		"a docker save archive":            {write(t, "saved.tar", saved(t, first, second(t))), true},
		"a compressed docker save archive": {write(t, "saved.tar.gz", zipped(t, saved(t, first, second(t)))), true},
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			profile := sdk.Profile{Name: "image", Image: form.path, Files: map[string]sdk.File{"/etc/placed": {Content: "placed\n"}}}
			prepared, err := e.Prepare(t.Context(), sdk.PrepareOptions{Profile: profile})
			if err != nil || prepared.ImageDigest == "" {
				t.Fatalf("prepare: %+v, %v", prepared, err)
			}
			opts := options(profile)
			opts.Profile.Env = map[string]string{"LD_LIBRARY_PATH": "/lib"}
			opts.Secrets = map[string]sdk.Secret{"TOKEN": "s\n"}
			s := create(t, e, opts)
			checks := map[string]string{
				"cat /etc/placed; cat $TOKEN_FILE":  "placed\ns\n",
				"stat -c '%u:%g %a' /home/app":      "1234:1234 750\n",
				"stat -c '%h' /etc/hard":            "2\n",
				"echo new > /etc/new; cat /etc/new": "",
				"stat -c %a /tmp":                   "1777\n",
			}
			if form.config {
				checks["id -u; echo $FROM_IMAGE $PWD"] = "1234\nyes /home/app\n"
				checks["cat /etc/link 2>/dev/null; ls -A /srv"] = "new\n"
				checks["stat -c %a /etc/added"] = "600\n"
				delete(checks, "echo new > /etc/new; cat /etc/new")
			} else {
				checks["id -u; pwd"] = "0\n/\n"
				checks["cat /etc/link"] = "root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/home/app:/bin/sh\n"
				checks["echo new > /etc/new; cat /etc/new"] = "new\n"
				checks["ls -A /srv"] = "old\n"
			}
			for command, want := range checks {
				if got := run(t, e, s.ID, "/bin/sh", "-c", command); got != want {
					t.Errorf("%s: %q, want %q", command, got, want)
				}
			}
			for _, kind := range []sdk.SnapshotKind{sdk.SnapshotFilesystem, sdk.SnapshotMemory} {
				if _, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), User: "root", Command: []string{"/bin/sh", "-c", "echo kept > /etc/kept"}}); err != nil {
					t.Fatal(err)
				}
				fork := restore(t, e, snap(t, e, s.ID, kind).ID, options(opts.Profile))
				if got := run(t, e, fork.ID, "/bin/sh", "-c", "cat /etc/kept"); got != "kept\n" {
					t.Errorf("after a restore from %s: %q", kind, got)
				}
			}
		})
	}
}

func TestAnImageIsUnpackedOnceByManyAtOnce(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, nil)
	profile := sdk.Profile{Name: "image", Image: write(t, "root.tar", archive(t, shell(t)...).Bytes())}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := e.Prepare(t.Context(), sdk.PrepareOptions{Profile: profile}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if files, _ := filepath.Glob(filepath.Join(state, "local", "images", "*.erofs")); len(files) != 1 {
		t.Errorf("images %v, want one", files)
	}
	if files, _ := filepath.Glob(filepath.Join(state, "local", "images", ".new-*")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestImagesThatAreNotTaken(t *testing.T) {
	e := backend(t)
	for name, image := range map[string]string{
		"what is not there":   "/no/such/image.tar",
		"a reference":         "127.0.0.1:1/nobody/listens:1",
		"a directory":         t.TempDir(),
		"a file of something": write(t, "x", bytes.Repeat([]byte("x"), 4096)),
	} {
		_, err := e.Create(t.Context(), options(sdk.Profile{Name: "image", Image: image}))
		var e *sdk.Error
		if !errors.As(err, &e) || e.Path != "image" {
			t.Errorf("%s: %v, want an error on image", name, err)
		}
	}
}
