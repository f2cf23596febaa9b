// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
)

func takeSnapshot(t *testing.T, e *extension.Extension, id string, kind sdk.SnapshotKind) sdk.Snapshot {
	t.Helper()
	s := newID("snp-")
	made, err := e.Snapshot(t.Context(), sdk.SnapshotOptions{Target: target(id), SnapshotID: s, Kind: kind, ExpiresAt: time.Now().Add(time.Hour), Identity: sdk.Identity{Fleet: fleet, Labels: map[string]string{"suite": "one"}}})
	if err != nil {
		t.Fatal(err)
	}
	return made.Snapshot
}

func export(t *testing.T, e *extension.Extension, id string) ([]byte, []sdk.Loss) {
	t.Helper()
	var out bytes.Buffer
	result, err := e.ExportSnapshot(t.Context(), sdk.ExportSnapshotOptions{SnapshotID: id, Fleet: fleet, Archive: &out})
	if err != nil {
		t.Fatal(err)
	}
	if result.Bytes != int64(out.Len()) {
		t.Errorf("%d bytes, and it says %d", out.Len(), result.Bytes)
	}
	return out.Bytes(), result.Losses
}

// said is everything that an archive says, its layers unpacked: what is packed
// can't be searched.
func said(t *testing.T, content []byte) string {
	t.Helper()
	archive, err := portable.Open(t.Context(), bytes.NewReader(content), portable.OpenOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	all := bytes.NewBuffer(bytes.Clone(content)) // documents are not packed
	for i := range archive.Layers {
		layer, err := archive.OpenLayer(i)
		if err == nil {
			_, err = io.Copy(all, layer)
		}
		if err := errors.Join(err, layer.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

func take(t *testing.T, e *extension.Extension, archive io.Reader) (sdk.ImportSnapshotResult, error) {
	t.Helper()
	return e.ImportSnapshot(t.Context(), sdk.ImportSnapshotOptions{SnapshotID: newID("snp-"), ExpiresAt: time.Now().Add(time.Hour), Archive: archive, Identity: sdk.Identity{Fleet: fleet, Owner: "importer"}})
}

func restoreFrom(t *testing.T, e *extension.Extension, s sdk.Snapshot) string {
	t.Helper()
	opts := options(sdk.Profile{})
	made, err := e.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: s.ID, Create: opts})
	if err != nil {
		t.Fatal(err)
	}
	destroyLater(t, e, opts.ID)
	return made.Sandbox.ID
}

// A snapshot that went out and came in on another machine is the same: image,
// what was written, deleted and replaced, links, owners, modes and times.
func TestPortableSnapshot(t *testing.T) {
	const secret, variable = "secret-canary-71", "variable-canary-72"
	here, elsewhere := backend(t), backend(t)
	image := write(t, "image.tar", archive(t, append(shell(t, "rm", "mkdir", "ln", "mkfifo", "touch", "chmod", "readlink"),
		file("opt/kept", "kept", 0o640), file("opt/gone", "gone", 0o644), file("opt/replaced/old", "old", 0o644), file("opt/dir/below", "below", 0o644))...).Bytes())
	opts := options(sdk.Profile{Name: "web", Image: image, Env: map[string]string{"MODE": "test"}, Files: map[string]sdk.File{"/etc/app.conf": {Content: "as created"}}})
	opts.Secrets, opts.Env = map[string]sdk.Secret{"TOKEN": secret}, map[string]string{"OWN": variable}
	s := create(t, here, opts)
	run(t, here, s.ID, "sh", "-c", `cat $TOKEN_FILE > /dev/null; cd /opt; rm gone; rm -r replaced; mkdir replaced; echo new > replaced/new; echo more > dir/more
		ln kept linked; ln -s /nowhere dangling; mkfifo pipe; touch -d '2020-02-03 04:05:06.789' times; chmod 4711 times; echo changed > /etc/app.conf; echo ä > ä`)
	snap := takeSnapshot(t, here, s.ID, sdk.SnapshotFilesystem)
	content, losses := export(t, here, snap.ID)
	text := said(t, content)
	for canary, want := range map[string]bool{secret: false, variable: false, "changed\n": true, "below": true} {
		if strings.Contains(text, canary) != want {
			t.Errorf("it is %v that %q is in the archive", !want, canary)
		}
	}
	for _, want := range []sdk.LossKind{sdk.LossMemory, sdk.LossSecrets, sdk.LossEnvironment, sdk.LossSockets} {
		if !slices.ContainsFunc(losses, func(l sdk.Loss) bool { return l.Kind == want }) {
			t.Errorf("no word about %s in %v", want, losses)
		}
	}
	got, err := take(t, elsewhere, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	if got.Snapshot.SandboxID != s.ID || got.Snapshot.Size == 0 || got.Snapshot.Identity.Labels["suite"] != "one" || got.Snapshot.Identity.Owner != "importer" || len(got.Snapshot.Lost) != len(got.Losses) {
		t.Errorf("%+v", got.Snapshot)
	}
	// The image is nowhere to be found any more: all of it came along.
	if err := os.Remove(image); err != nil {
		t.Fatal(err)
	}
	fork := restoreFrom(t, elsewhere, got.Snapshot)
	check := `cd /opt; cat kept replaced/new dir/below dir/more ä /etc/app.conf; ls -A replaced; stat -c %a:%h kept; readlink dangling; stat -c '%F' pipe; stat -c '%a %y' times; ls gone 2>/dev/null; echo $MODE-$OWN; ls /run/secrets`
	want := "keptnew\nbelowmore\nä\nchanged\nnew\n640:2\n/nowhere\nfifo\n4711 2020-02-03 04:05:06.789000000 +0000\ntest-\n"
	if out := run(t, elsewhere, fork, "sh", "-c", check); out != want {
		t.Errorf("%q, want %q", out, want)
	}
	// And out again, from there, with what changed since.
	run(t, elsewhere, fork, "sh", "-c", "echo second > /opt/kept; rm /opt/dir/below")
	again, _ := export(t, elsewhere, takeSnapshot(t, elsewhere, fork, sdk.SnapshotFilesystem).ID)
	back, err := take(t, here, bytes.NewReader(again))
	if err != nil {
		t.Fatal(err)
	}
	third := restoreFrom(t, here, back.Snapshot)
	if out := run(t, here, third, "sh", "-c", "cat /opt/kept; ls /opt/dir"); out != "second\nmore\n" {
		t.Errorf("a copy's copy: %q", out)
	}
	// An archive of what came in, as it came in.
	same, _ := export(t, elsewhere, got.Snapshot.ID)
	if _, err := take(t, here, bytes.NewReader(same)); err != nil {
		t.Error(err)
	}
}

// What can't be carried is refused before a byte is written.
func TestNotPortable(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{}))
	for name, id := range map[string]string{
		"of the host's root": takeSnapshot(t, e, s.ID, sdk.SnapshotFilesystem).ID, "of memory": takeSnapshot(t, e, s.ID, sdk.SnapshotMemory).ID,
	} {
		var out bytes.Buffer
		if _, err := e.ExportSnapshot(t.Context(), sdk.ExportSnapshotOptions{SnapshotID: id, Fleet: fleet, Archive: &out}); !errors.Is(err, sdk.ErrUnsupported) || out.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, out.Len())
		}
	}
	if _, err := e.ExportSnapshot(t.Context(), sdk.ExportSnapshotOptions{SnapshotID: newID("snp-"), Fleet: fleet, Archive: io.Discard}); !errors.Is(err, sdk.ErrNotFound) {
		t.Error(err)
	}
}

// An archive that is refused leaves nothing behind.
func TestHostileImport(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	writer := func(t *testing.T, arch string, entries ...*tar.Header) []byte {
		t.Helper()
		w, err := portable.NewWriter(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if err := w.Layer(func(to io.Writer) error { _, err := io.Copy(to, archive(t, entries...)); return err }); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, _, err := w.Write(&out, portable.Config{Architecture: arch}, portable.Document{SnapshotID: newID("snp-"), SandboxID: newID("sbx-"), Profile: sdk.Profile{Name: "x"}}); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	good := writer(t, runtime.GOARCH, file("a", "a", 0o644))
	for name, c := range map[string]struct {
		archive []byte
		kind    error
	}{
		"cut off":                    {good[:len(good)-3000], sdk.ErrInvalid},
		"empty":                      {nil, sdk.ErrInvalid},
		"of another processor":       {writer(t, "riscv64", file("a", "a", 0o644)), sdk.ErrUnsupported},
		"a name that climbs":         {writer(t, runtime.GOARCH, file("../../a", "a", 0o644)), sdk.ErrInvalid},
		"a device":                   {writer(t, runtime.GOARCH, &tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8}), sdk.ErrInvalid},
		"a hard link to nothing":     {writer(t, runtime.GOARCH, &tar.Header{Name: "x", Linkname: "y", Typeflag: tar.TypeLink}), sdk.ErrInvalid},
		"a name through a long link": {writer(t, runtime.GOARCH, &tar.Header{Name: "x", Linkname: "x/x", Typeflag: tar.TypeSymlink}, file("x/a", "", 0o644)), sdk.ErrInvalid},
	} {
		if _, err := take(t, e, bytes.NewReader(c.archive)); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, dir := range []string{"snapshots", "images"} {
		entries, err := os.ReadDir(filepath.Join(state, "local", dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Name() != "lock" {
				t.Errorf("%s/%s is left", dir, entry.Name())
			}
		}
	}
	// One that is larger than what the backend may take.
	small := configured(t, stateDir(t), map[string]string{"max_state_size": "64MiB"})
	zeros := file("zeros", strings.Repeat("\x00", 100<<20), 0o644)
	if _, err := take(t, small, bytes.NewReader(writer(t, runtime.GOARCH, zeros))); !errors.Is(err, sdk.ErrInvalid) && !errors.Is(err, sdk.ErrQuota) {
		t.Errorf("larger than the bound: %v", err)
	}
}
