// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// contextOf makes a build context.
func contextOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// withoutBuilds removes at the end what was built, and what the builds have
// left between.
func withoutBuilds(t *testing.T, b backend) {
	t.Helper()
	t.Cleanup(func() {
		b.sweep(context.WithoutCancel(t.Context()), t)
		found, err := b.engine.Client.ImageList(context.WithoutCancel(t.Context()), client.ImageListOptions{Filters: make(client.Filters).Add("label", "dev.sandboxer/build="+b.fleet)})
		if err != nil {
			t.Fatal(err)
		}
		for _, img := range found.Items {
			if _, err := b.engine.Client.ImageRemove(context.WithoutCancel(t.Context()), img.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
				t.Error(err)
			}
		}
	})
}

// A sandbox is made from a context; what is in it, and nothing that it leaves
// out, is in the image. The same context is built once.
func TestDockerBuild(t *testing.T) {
	var builds atomic.Int32
	b := open(t, observed(func(r *http.Request) error {
		if strings.HasSuffix(r.URL.Path, "/build") {
			builds.Add(1)
		}
		return nil
	}))
	withoutBuilds(t, b)
	dir := contextOf(t, map[string]string{
		"docker/Dockerfile": "FROM " + dockertest.Busybox + " AS base\nARG NAME=nobody\nCOPY . /app\nRUN echo \"made for $NAME\" > /app/made\nENV FROM_BUILD=yes\nUSER app\nWORKDIR /app\n\nFROM base AS other\nRUN exit 3\n",
		".dockerignore":     "secret\n*.log\n!kept.log\ndocker\n",
		"secret":            "build-canary-5150", "a.log": "dropped", "kept.log": "kept", "deep/er/file": "deep",
	})
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	source := &sdk.BuildSource{Context: dir, Dockerfile: "docker/Dockerfile", Args: map[string]string{"NAME": "somebody"}, Target: "base"}
	build := func(opts *sdk.CreateOptions) { opts.Profile.Image, opts.Profile.Build = "", source }
	_, target := b.create(t, build)
	out, code := b.run(t, target, "sh", "-c", "pwd; id -un; cat made kept.log deep/er/file; readlink link; echo; echo $FROM_BUILD; ls")
	if want := "/app\napp\nmade for somebody\nkeptdeep/etc/hostname\n"; code != 0 || !strings.HasPrefix(out, want) {
		t.Errorf("%d, %q, want %q", code, out, want)
	}
	for _, left := range []string{"secret", "a.log", "Dockerfile"} {
		if strings.Contains(out, left) {
			t.Errorf("%s is in the image: %q", left, out)
		}
	}
	b.create(t, build)
	if got := builds.Load(); got != 1 {
		t.Errorf("the same context was built %d times", got)
	}
	prepared, err := b.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Name: "x", Build: source}})
	if err != nil || prepared.ImageDigest == "" || builds.Load() != 1 {
		t.Errorf("%+v, %v, %d builds", prepared, err, builds.Load())
	}
	if err := os.WriteFile(filepath.Join(dir, "kept.log"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, target = b.create(t, build)
	if out, _ := b.run(t, target, "cat", "kept.log"); out != "changed" || builds.Load() != 2 {
		t.Errorf("after a change: %q, %d builds", out, builds.Load())
	}
}

// What can't be built is told on its attribute, with what the build said, and
// leaves no container.
func TestDockerBuildRefused(t *testing.T) {
	b := open(t)
	withoutBuilds(t, b)
	good := map[string]string{"Dockerfile": "FROM " + dockertest.Busybox + "\nRUN echo before the fault; echo \x1b[31mred; exit 7\n"}
	for name, c := range map[string]struct {
		files  map[string]string
		source sdk.BuildSource
		path   string
		says   []string
	}{
		"a step that fails":      {good, sdk.BuildSource{}, "build", []string{"before the fault", "returned a non-zero code: 7"}},
		"no such stage":          {good, sdk.BuildSource{Target: "none"}, "build", []string{"none"}},
		"no Dockerfile":          {map[string]string{"x": ""}, sdk.BuildSource{}, "build.dockerfile", []string{"can't be read"}},
		"a Dockerfile elsewhere": {good, sdk.BuildSource{Dockerfile: "../Dockerfile"}, "build.dockerfile", []string{"does not lie in the context"}},
		"an unreadable ignore":   {map[string]string{"Dockerfile": good["Dockerfile"], ".dockerignore": "[\n"}, sdk.BuildSource{}, "build.context", []string{".dockerignore"}},
		"no context":             {nil, sdk.BuildSource{Context: "/nonexistent/context"}, "build.context", []string{"is no directory"}},
		"nothing in it":          {map[string]string{"Dockerfile": "# nothing\n"}, sdk.BuildSource{}, "build", nil},
	} {
		source := c.source
		if source.Context == "" {
			source.Context = contextOf(t, c.files)
		}
		opts := b.creation(func(opts *sdk.CreateOptions) { opts.Profile.Image, opts.Profile.Build = "", &source })
		_, err := b.Create(t.Context(), opts)
		var said *sdk.Error
		if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &said) || said.Path != c.path {
			t.Errorf("%s: %v, want it on %s", name, err, c.path)
			continue
		}
		for _, text := range c.says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q lacks %q", name, err, text)
			}
		}
		if strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %q holds control characters", name, err)
		}
	}
	left, err := b.engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("%d containers are left, %v", len(left.Items), err)
	}
}
