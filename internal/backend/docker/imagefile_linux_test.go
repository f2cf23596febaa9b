// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// blobs are the parts of an image, by digest.
type blobs map[string][]byte

func (b blobs) add(content []byte) string {
	sum := sha256.Sum256(content)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	b[digest] = content
	return digest
}

// ociImage makes an image of one packed layer and returns its manifest's
// digest.
func ociImage(t *testing.T) (blobs, string) {
	t.Helper()
	root, err := dockertest.BusyboxRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(root); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(root)
	all := blobs{}
	config := must(json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Env": []string{"FROM_IMAGE=oci"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	}))
	descriptor := func(kind string, content []byte) map[string]any {
		return map[string]any{"mediaType": kind, "digest": all.add(content), "size": len(content)}
	}
	manifest := must(json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": descriptor("application/vnd.oci.image.config.v1+json", config),
		"layers": []any{descriptor("application/vnd.oci.image.layer.v1.tar+gzip", packed.Bytes())},
	}))
	return all, all.add(manifest)
}

func must(encoded []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return encoded
}

// An image by path is loaded once, whatever of the three kinds it is.
func TestDockerImageFiles(t *testing.T) {
	b := open(t)
	dir := t.TempDir()
	root, err := dockertest.BusyboxRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"rootfs": filepath.Join(dir, "rootfs.tar"), "archive": filepath.Join(dir, "saved.tar"), "layout": filepath.Join(dir, "layout")}
	if err := os.WriteFile(files["rootfs"], root, 0o600); err != nil {
		t.Fatal(err)
	}
	saved, err := b.engine.Client.ImageSave(t.Context(), []string{dockertest.Defaults})
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	if err := os.WriteFile(files["archive"], must(io.ReadAll(saved)), 0o600); err != nil {
		t.Fatal(err)
	}
	all, manifest := ociImage(t)
	for digest, content := range all {
		name := filepath.Join(files["layout"], "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	index := must(json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": manifest}}}))
	if err := os.WriteFile(filepath.Join(files["layout"], "index.json"), index, 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, file := range files {
		var loads int
		digests := map[string]bool{}
		for range 2 {
			prepared, err := b.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Image: file}, Progress: func(sdk.Progress) { loads++ }})
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			digests[prepared.ImageDigest] = true
		}
		if loads != 1 || len(digests) != 1 {
			t.Errorf("%s: loaded %d times, as %v", kind, loads, digests)
		}
	}
	for kind, want := range map[string]string{"archive": "yes", "layout": "oci"} {
		_, target := b.create(t, func(opts *sdk.CreateOptions) { opts.Profile.Image = files[kind] })
		if out, code := b.run(t, target, "sh", "-c", "echo $FROM_IMAGE"); out != want+"\n" || code != 0 {
			t.Errorf("%s: %q, %d", kind, out, code)
		}
	}
	hostile := filepath.Join(dir, "hostile.tar")
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	content := `[{"Config":"a","Layers":[]},{"Config":"b","Layers":[]}]`
	if err := w.WriteHeader(&tar.Header{Name: "manifest.json", Mode: 0o600, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write([]byte(content))
	if err := errors.Join(w.Close(), os.WriteFile(hostile, packed.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{hostile, dir, "/etc/passwd", "/no/such/file"} {
		if _, err := b.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Image: file}}); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// An image by reference is pulled when it is not there, with the credentials
// of Docker's configuration, and only then.
func TestDockerPull(t *testing.T) {
	all, manifest := ociImage(t)
	var refused, served atomic.Int64
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); name != "ci" || password != "pull-canary" {
			refused.Add(1)
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		digest := path.Base(r.URL.Path)
		if digest == "1" {
			digest = manifest
		}
		content, ok := all[digest]
		switch {
		case strings.HasSuffix(r.URL.Path, "/v2/"):
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		default:
			served.Add(1)
			if digest == manifest {
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			}
			w.Header().Set("Docker-Content-Digest", digest)
			_, _ = w.Write(content)
		}
	}))
	defer registry.Close()
	address := registry.Listener.Addr().(*net.TCPAddr).String()
	home := t.TempDir()
	config := `{"auths":{"` + address + `":{"auth":"Y2k6cHVsbC1jYW5hcnk="}}}`
	if err := errors.Join(os.MkdirAll(filepath.Join(home, ".docker"), 0o700), os.WriteFile(filepath.Join(home, ".docker", "config.json"), []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	image := address + "/team/app:1"
	without := open(t)
	opts := without.creation(func(opts *sdk.CreateOptions) { opts.Profile.Image = image })
	if _, err := without.Create(t.Context(), opts); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("without credentials: %v", err)
	}
	without.nothingLeft(t, opts.ID)

	b := openFleet(t, without.fleet, func(opts *dockerOptions, _ map[string]string) {
		opts.Getenv = func(name string) string { return map[string]string{"HOME": home}[name] }
	})
	t.Cleanup(func() {
		_, _ = b.engine.Client.ImageRemove(context.WithoutCancel(t.Context()), image, client.ImageRemoveOptions{Force: true})
	})
	var steps []sdk.Progress
	_, target := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.Image, opts.Progress = image, func(p sdk.Progress) { steps = append(steps, p) }
	})
	if out, _ := b.run(t, target, "sh", "-c", "echo $FROM_IMAGE"); out != "oci\n" {
		t.Errorf("the image says %q", out)
	}
	if len(steps) == 0 || steps[0].Phase != "pull" {
		t.Errorf("progress %v", steps)
	}
	before := served.Load()
	b.create(t, func(opts *sdk.CreateOptions) { opts.Profile.Image = image })
	if served.Load() != before {
		t.Error("an image that is there was asked for again")
	}
	_, err := b.Create(t.Context(), b.creation(func(opts *sdk.CreateOptions) { opts.Profile.Image = address + "/team/app:none" }))
	var said *sdk.Error
	if !errors.As(err, &said) || said.Path != "image" || strings.Contains(err.Error(), "canary") {
		t.Errorf("an image that the registry does not have: %v", err)
	}
}
