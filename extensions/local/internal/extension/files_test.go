// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func archive(t *testing.T, headers ...*tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.PAXRecords["SANDBOXER.content"]
		h.PAXRecords = nil
		h.Size = int64(len(content))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func file(name, content string, mode int64) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, PAXRecords: map[string]string{"SANDBOXER.content": content}}
}

func TestCopyInAndOut(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	in := archive(t,
		&tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o750},
		file("dir/script", "#!/bin/sh\necho copied\n", 0o755),
		&tar.Header{Name: "dir/link", Typeflag: tar.TypeSymlink, Linkname: "script"},
	)
	result, err := e.CopyIn(t.Context(), sdk.CopyInOptions{Target: target(s.ID), Path: "/srv/new/place", Archive: in})
	if err != nil || result.Bytes != 22 {
		t.Fatalf("%+v, %v", result, err)
	}
	if got := run(t, e, s.ID, "/srv/new/place/dir/link"); got != "copied\n" {
		t.Errorf("output %q", got)
	}
	if got := run(t, e, s.ID, "stat", "-c", "%a", "/srv/new/place/dir"); got != "750\n" {
		t.Errorf("mode %q", got)
	}
	var out bytes.Buffer
	if _, err := e.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target(s.ID), Path: "/srv/new/place", Archive: &out}); err != nil {
		t.Fatal(err)
	}
	var names []string
	r := tar.NewReader(&out)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if got := strings.Join(names, " "); got != "place/ place/dir/ place/dir/link place/dir/script" {
		t.Errorf("names %q", got)
	}
}

func TestCopyRefuses(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	for name, in := range map[string]*bytes.Buffer{
		"a name that leaves the directory":           archive(t, file("../out", "x", 0o644)),
		"an absolute name":                           archive(t, file("/out", "x", 0o644)),
		"a file through a link out of the directory": archive(t, &tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, file("l/out", "x", 0o644)),
		"a hard link to outside":                     archive(t, &tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../etc/passwd"}),
		"a device":                                   archive(t, &tar.Header{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}),
		"what is no archive":                         bytes.NewBufferString(strings.Repeat("no archive ", 100)),
	} {
		if _, err := e.CopyIn(t.Context(), sdk.CopyInOptions{Target: target(s.ID), Path: "/srv/in", Archive: in}); err == nil {
			t.Errorf("%s was copied", name)
		}
	}
	if got := run(t, e, s.ID, "sh", "-c", "ls /srv/out /out /etc/out 2>/dev/null; true"); got != "" {
		t.Errorf("%q was made", got)
	}
	if _, err := e.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target(s.ID), Path: "/no/such/thing", Archive: io.Discard}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("copy out of nothing: %v", err)
	}
}

func TestLogs(t *testing.T) {
	e := backend(t)
	profile := sdk.Profile{Name: "talker", Command: []string{"sh", "-c", "echo one; echo two >&2; echo three; until [ -e /tmp/go ]; do sleep 0.05; done; echo four"}}
	s := create(t, e, options(profile))
	read, write := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	followed := make(chan error, 1)
	go func() {
		_, err := e.Logs(ctx, sdk.LogsOptions{Target: target(s.ID), Follow: true, Output: write})
		write.CloseWithError(err)
		followed <- err
	}()
	got := make([]byte, len("one\ntwo\nthree\n"))
	if _, err := io.ReadFull(read, got); err != nil || string(got) != "one\ntwo\nthree\n" {
		t.Fatalf("%q, %v", got, err)
	}
	run(t, e, s.ID, "touch", "/tmp/go")
	got = make([]byte, len("four\n"))
	if _, err := io.ReadFull(read, got); err != nil || string(got) != "four\n" {
		t.Fatalf("%q, %v", got, err)
	}
	var tail bytes.Buffer
	if _, err := e.Logs(t.Context(), sdk.LogsOptions{Target: target(s.ID), Tail: 2, Output: &tail}); err != nil || tail.String() != "three\nfour\n" {
		t.Errorf("tail %q, %v", tail.String(), err)
	}
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, read) }()
	if err := <-followed; err != nil {
		t.Errorf("follow did not end with the sandbox: %v", err)
	}
}

func TestCopyOutOfTheRoot(t *testing.T) {
	e := backend(t)
	name := write(t, "small.tar", archive(t, append(shell(t), file("srv/here", "x", 0o644))...).Bytes())
	s := create(t, e, options(sdk.Profile{Name: "small", Image: name}))
	var out bytes.Buffer
	if _, err := e.CopyOut(t.Context(), sdk.CopyOutOptions{Target: target(s.ID), Path: "/", Archive: &out}); err != nil {
		t.Fatal(err)
	}
	var first string
	found := map[string]bool{}
	for in := tar.NewReader(&out); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = header.Name
		}
		found[header.Name] = true
	}
	if first != "./" || !found["srv/here"] || !found["proc/"] || found["proc/1/"] {
		t.Errorf("begins with %q, holds the file: %t, /proc: %t, something in it: %t", first, found["srv/here"], found["proc/"], found["proc/1/"])
	}
}
