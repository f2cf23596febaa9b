// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// deepImage loads an image of many layers, which differ in one file each, and
// which wants a volume at /data.
func (b backend) deepImage(t *testing.T, layers int) string {
	t.Helper()
	ref := "sandboxer-test/deep:" + random(8)
	root, err := dockertest.BusyboxRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Config       struct {
			Env     []string
			User    string
			Volumes map[string]struct{}
		} `json:"config"`
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	config.Architecture, config.OS, config.RootFS.Type = runtime.GOARCH, "linux", "layers"
	config.Config.Env, config.Config.User, config.Config.Volumes = []string{"PATH=/bin", "FROM_IMAGE=yes"}, "root", map[string]struct{}{"/data": {}}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, content []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	manifest := []map[string]any{{"Config": "config.json", "RepoTags": []string{ref}}}
	var names []string
	for i := range layers {
		layer := root
		if i > 0 {
			layer = oneFile(t, fmt.Sprintf("srv/layer-%03d", i))
		}
		sum := sha256.Sum256(layer)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, "sha256:"+hex.EncodeToString(sum[:]))
		names = append(names, fmt.Sprintf("%d/layer.tar", i))
		add(names[i], layer)
	}
	manifest[0]["Layers"] = names
	for name, document := range map[string]any{"config.json": config, "manifest.json": manifest} {
		encoded, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		add(name, encoded)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	answer, err := b.engine.Client.ImageLoad(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	if said, err := io.ReadAll(answer); err != nil || bytes.Contains(said, []byte(`"error"`)) {
		t.Fatalf("%v: %s", err, said)
	}
	t.Cleanup(func() {
		if _, err := b.engine.Client.ImageRemove(context.WithoutCancel(t.Context()), ref, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
			t.Error(err)
		}
	})
	return ref
}

func oneFile(t *testing.T, name string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (b backend) layers(t *testing.T, image string) int {
	t.Helper()
	found, err := b.engine.Client.ImageInspect(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	return len(found.RootFS.Layers)
}

// images counts the images on the engine, those without a name included.
func (b backend) images(t *testing.T) int {
	t.Helper()
	list, err := b.engine.Client.ImageList(t.Context(), client.ImageListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// A chain of snapshots, each of what was restored from the last, never reaches
// the engine's limit, and loses nothing on the way. By default it begins
// shortly below where images are made flat.
func TestDockerSnapshotChain(t *testing.T) {
	b := open(t)
	before := b.images(t)
	t.Run("chain", func(t *testing.T) {
		first, links := 97, 6
		if fullSize() {
			first, links = 2, 140
		}
		ref := b.deepImage(t, first)
		_, target := b.create(t, func(opts *sdk.CreateOptions) { opts.Profile.Image = ref })
		b.run(t, target, "sh", "-c", "mkfifo /srv/pipe; ln /bin/busybox /srv/linked; ln -s /nowhere /srv/dangling; chown 1000:1000 /srv/dangling -h; rm /srv/layer-001; chmod 4711 /data")
		flattened, deepest := 0, b.layers(t, ref)
		for i := range links {
			b.run(t, target, "sh", "-c", fmt.Sprintf("echo %d > /srv/link-%d; rm -f /srv/link-%d; echo %d > /data/link-%d; rm -f /data/link-%d", i, i, i-2, i, i, i-2))
			s := b.snapshot(t, target)
			_, next := b.restore(t, s)
			n := b.layers(t, s.Ref)
			if n < deepest {
				flattened++
				if out, _ := b.run(t, next, "sh", "-c", "ls /.sandboxer/volumes | wc -l"); out != "1\n" {
					t.Errorf("a flat snapshot holds the volumes of %q snapshots", out)
				}
			} else if n > 102 {
				t.Fatalf("the snapshot of link %d has %d layers", i, n)
			}
			deepest = n
			if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
				t.Fatal(err)
			}
			target = next
		}
		if flattened == 0 {
			t.Errorf("none of %d snapshots is flat", links)
		}
		last := links - 1
		for command, want := range map[string]string{
			"cat /srv/link-* /data/link-*": fmt.Sprintf("%d\n%d\n%d\n%d\n", last-1, last, last-1, last),
			"ls -l /srv/pipe | cut -c1; stat -c %u:%a /srv/dangling; readlink /srv/dangling; stat -c %h /srv/linked": "p\n1000:777\n/nowhere\n2\n",
			"stat -c %a /data /tmp /root; ls /srv | grep -c layer-; echo $FROM_IMAGE; id -u":                         fmt.Sprintf("4711\n1777\n700\n%d\nyes\n0\n", max(first-2, 0)),
		} {
			if out, code := b.run(t, target, "sh", "-c", command); code != 0 || out != want {
				t.Errorf("%s: %q (exit code %d), want %q", command, out, code, want)
			}
		}
		if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
			t.Error(err)
		}
	})
	if after := b.images(t); after != before {
		t.Errorf("%d images before, %d after", before, after)
	}
}
