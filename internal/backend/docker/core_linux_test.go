// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// What an image sets by default is there where the profile says nothing, and
// never decides what runs.
func TestDockerImageDefaults(t *testing.T) {
	b := open(t)
	s, target := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.Image = dockertest.Defaults
		opts.Profile.Files = map[string]sdk.File{"/opt/deep/er/mine": {Content: "x", Mode: "0600"}}
	})
	if s.Status != sdk.StatusReady {
		t.Fatalf("it is %s: %s", s.Status, s.Reason)
	}
	for command, want := range map[string]string{
		"id -u": "1000\n", "pwd": "/srv\n", "echo $FROM_IMAGE": "yes\n", "cat /opt/deep/er/mine": "x",
		"stat -c %a /opt/deep /opt/deep/er": "755\n755\n", "stat -c %u:%a /opt/deep/er/mine": "1000:600\n",
		"echo $SANDBOXER_ID": s.ID + "\n", "grep -c NoNewPrivs:.1 /proc/self/status": "1\n",
	} {
		if out, code := b.run(t, target, "sh", "-c", command); out != want || code != 0 {
			t.Errorf("%s: %q (exit code %d), want %q", command, out, code, want)
		}
	}
	_, second := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.Image, opts.Profile.User, opts.Profile.Workdir = dockertest.Defaults, "root", "/tmp"
		opts.Profile.Env, opts.Profile.Command = map[string]string{"FROM_IMAGE": "no"}, []string{"sh", "-c", "echo main $FROM_IMAGE $(id -u) $(pwd)"}
	})
	var log strings.Builder
	waitFor(t, "the main process has written", func() bool {
		log.Reset()
		_, err := b.Logs(t.Context(), sdk.LogsOptions{Target: second, Output: &log})
		return err == nil && log.Len() > 0
	})
	if log.String() != "main no 0 /tmp\n" {
		t.Errorf("the log is %q", log.String())
	}
	// The command has ended; the sandbox has not.
	if out, code := b.run(t, second, "id", "-u"); out != "0\n" || code != 0 {
		t.Errorf("after the main process: %q, %d", out, code)
	}
	// Root without the rights that reach beyond a container.
	if out, _ := b.run(t, second, "sh", "-c", "grep CapEff /proc/self/status"); !strings.Contains(out, "00000000000004fb") {
		t.Errorf("capabilities: %q", out)
	}
	if _, code := b.run(t, second, "sh", "-c", "ip link | grep -v lo: | grep -q '^[0-9]'"); code == 0 {
		t.Error("a sandbox without a network has an interface")
	}
}

// Destroying removes everything that a sandbox owns, by label, and nothing
// that only looks like it.
func TestDockerDestroyOwnedSet(t *testing.T) {
	b := open(t)
	s, target := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.Image = dockertest.Defaults // which wants volumes
		opts.Profile.Ports = map[string]int{"web": 8080}
	})
	if s.Endpoints["web"] == "" {
		t.Errorf("endpoints %v", s.Endpoints)
	}
	stranger := b.stranger(t, map[string]string{sdk.LabelID: s.ID, sdk.LabelFleet: "another fleet"}, "look-alike-"+s.ID)
	gone, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, removed := range gone.Removed {
		kind, _, _ := strings.Cut(removed, " ")
		kinds[kind]++
	}
	// Two containers, a network, two volumes of the image, the lease, and the
	// note that the container was there.
	if kinds["container"] != 2 || kinds["network"] != 1 || kinds["volume"] != 4 {
		t.Errorf("removed %q", gone.Removed)
	}
	b.nothingLeft(t, s.ID)
	if _, err := b.engine.Client.ContainerInspect(t.Context(), stranger, client.ContainerInspectOptions{}); err != nil {
		t.Errorf("a container of another fleet: %v", err)
	}
	again, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
	if err != nil || again.Existed {
		t.Errorf("the second time: %+v, %v", again, err)
	}
}

// A sandbox whose container was stopped or removed by somebody else is lost,
// whatever is left of it, and can be destroyed.
func TestDockerLost(t *testing.T) {
	b := open(t)
	for _, c := range []struct {
		name  string
		spoil func(id string) error
	}{
		{"stopped", func(id string) error {
			none := 0
			_, err := b.engine.Client.ContainerStop(t.Context(), id, client.ContainerStopOptions{Timeout: &none})
			return err
		}},
		{"removed", func(id string) error {
			_, err := b.engine.Client.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, target := b.create(t)
			if err := c.spoil(s.ID); err != nil {
				t.Fatal(err)
			}
			got, err := b.Get(t.Context(), sdk.GetOptions{Target: target})
			if err != nil || got.Sandbox.Status != sdk.StatusLost || got.Sandbox.Reason == "" || len(got.Sandbox.Guards) > 0 {
				t.Errorf("%s: %s (%s), %v", c.name, got.Sandbox.Status, got.Sandbox.Reason, err)
			}
			again, err := b.Get(t.Context(), sdk.GetOptions{Target: target})
			if err != nil || again.Sandbox.Reason != got.Sandbox.Reason || again.Sandbox.Lease != got.Sandbox.Lease {
				t.Errorf("two looks differ: %+v and %+v, %v", got.Sandbox, again.Sandbox, err)
			}
			if _, err := b.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"true"}}); !errors.Is(err, sdk.ErrConflict) {
				t.Errorf("exec: %v", err)
			}
			if _, err := b.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: s.Lease.ExpiresAt.Add(time.Minute)}); !errors.Is(err, sdk.ErrExpired) {
				t.Errorf("extend: %v", err)
			}
			if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
				t.Error(err)
			}
			b.nothingLeft(t, s.ID)
		})
	}
}

// Secrets are files on a tmpfs, and nowhere that the engine keeps or shows.
func TestDockerSecretsStayInside(t *testing.T) {
	const canary = "canary-0b5e7f31"
	b := open(t)
	s, target := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.User, opts.Profile.Image = "app", dockertest.Defaults
		opts.Secrets = map[string]sdk.Secret{"TOKEN": canary, "OTHER.key": sdk.Secret(strings.Repeat("k", 10_000))}
		opts.Profile.Command = []string{"sh", "-c", "cat $TOKEN_FILE > /dev/null && echo read; env"}
	})
	if out, _ := b.run(t, target, "sh", "-c", "cat $TOKEN_FILE; stat -f -c %T /run/secrets; stat -c %a:%u $TOKEN_FILE; wc -c < /run/secrets/OTHER.key"); out != canary+"tmpfs\n400:1000\n10000\n" {
		t.Errorf("inside: %q", strings.ReplaceAll(out, canary, "[the canary]"))
	}
	inspected, err := b.engine.Client.ContainerInspect(t.Context(), s.ID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(inspected)
	if err != nil {
		t.Fatal(err)
	}
	diff, err := b.engine.Client.ContainerDiff(t.Context(), s.ID, client.ContainerDiffOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range diff.Changes {
		if strings.HasPrefix(change.Path, "/run/secrets/") {
			t.Errorf("in the container's layer: %s", change.Path)
		}
	}
	var log strings.Builder
	waitFor(t, "the main process has written", func() bool {
		log.Reset()
		_, err := b.Logs(t.Context(), sdk.LogsOptions{Target: target, Output: &log})
		return err == nil && strings.Contains(log.String(), "SANDBOXER_ID")
	})
	if !strings.HasPrefix(log.String(), "read\n") {
		t.Errorf("the main process could not read its secret: %q", log.String())
	}
	for where, text := range map[string]string{"inspect": string(shown), "the log": log.String()} {
		if strings.Contains(text, canary) {
			t.Errorf("the secret is in %s", where)
		}
	}
}

// A refresh costs the same few requests however many sandboxes there are, and
// a look changes nothing.
func TestDockerListingIsAFewRequests(t *testing.T) {
	n := 20
	if fullSize() {
		n = 300
	}
	var requests, writes atomic.Int64
	b := open(t, observed(func(r *http.Request) error {
		requests.Add(1)
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			writes.Add(1)
		}
		return nil
	}))
	for range n {
		opts := b.creation()
		labels := opts.Identity.ToLabels()
		labels[sdk.LabelPrefix+"role"] = "sandbox"
		b.stranger(t, labels, opts.ID)
	}
	requests.Store(0)
	list, err := b.List(t.Context(), sdk.ListOptions{})
	if err != nil || len(list.Sandboxes) != n {
		t.Fatalf("%d listed, %v", len(list.Sandboxes), err)
	}
	t.Logf("%d sandboxes, %d requests", n, requests.Load())
	if requests.Load() >= 15 || writes.Load() > 0 {
		t.Errorf("%d requests, %d of them writes", requests.Load(), writes.Load())
	}
	target := sdk.Target{ID: list.Sandboxes[0].ID, Ref: list.Sandboxes[0].Ref, Fleet: b.fleet}
	if _, err := b.Get(t.Context(), sdk.GetOptions{Target: target}); err != nil || writes.Load() > 0 {
		t.Errorf("get: %v, %d writes", err, writes.Load())
	}
}

// Another engine's word that a container is not there means nothing.
func TestDockerAnotherEngine(t *testing.T) {
	b := open(t)
	s, target := b.create(t)
	_, container, _ := strings.Cut(s.Ref, "/")
	target.Ref = "ANOTHER:ENGINE/" + container
	if _, err := b.Get(t.Context(), sdk.GetOptions{Target: target}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("get: %v", err)
	}
	if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("destroy: %v", err)
	}
}

// An engine that can't be asked is unreachable, for every verb, and nothing
// is gone.
func TestDockerUnreachable(t *testing.T) {
	b := open(t)
	_, target := b.create(t)
	away := openFleet(t, b.fleet, func(_ *dockerOptions, config map[string]string) { config["host"] = "unix:///nowhere/docker.sock" })
	verbs := map[string]error{}
	_, verbs["get"] = away.Get(t.Context(), sdk.GetOptions{Target: target})
	_, verbs["list"] = away.List(t.Context(), sdk.ListOptions{})
	_, verbs["create"] = away.Create(t.Context(), away.creation())
	_, verbs["extend"] = away.Extend(t.Context(), sdk.ExtendOptions{Target: target})
	_, verbs["destroy"] = away.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
	_, verbs["exec"] = away.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"true"}})
	for verb, err := range verbs {
		if !errors.Is(err, sdk.ErrUnreachable) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	probed, err := away.Probe(t.Context(), sdk.ProbeOptions{})
	if err != nil || probed.Usable || probed.Reason == "" || probed.Advice == "" {
		t.Errorf("probe: %+v, %v", probed, err)
	}
	if _, err := b.Get(t.Context(), sdk.GetOptions{Target: target}); err != nil {
		t.Error(err)
	}
}

// What can't be is refused on its attribute, and nothing is made.
func TestDockerRefused(t *testing.T) {
	b := open(t)
	for path, spoil := range map[string]func(opts *sdk.CreateOptions){
		"user":          func(opts *sdk.CreateOptions) { opts.Profile.User = "nobody-of-that-name" },
		"runtime":       func(opts *sdk.CreateOptions) { opts.Profile.Runtime = "kata" },
		"limits.disk":   func(opts *sdk.CreateOptions) { opts.Profile.Limits = &sdk.Limits{Disk: "1GiB"} },
		"limits.memory": func(opts *sdk.CreateOptions) { opts.Profile.Limits = &sdk.Limits{Memory: "1MiB"} },
		"image":         func(opts *sdk.CreateOptions) { opts.Profile.Image = "./no/such/file.tar" },
		"idle_timeout":  func(opts *sdk.CreateOptions) { opts.IdleTimeout = 1 },
		"files":         func(opts *sdk.CreateOptions) { opts.Profile.Files = map[string]sdk.File{"/.sandboxer/guest": {}} },
	} {
		opts := b.creation(spoil)
		_, err := b.Create(t.Context(), opts)
		var said *sdk.Error
		if !errors.As(err, &said) || said.Path != path {
			t.Errorf("%s: %v", path, err)
		}
		b.nothingLeft(t, opts.ID)
	}
}

// stranger makes a container that sandboxer did not make.
func (b backend) stranger(t *testing.T, labels map[string]string, name string) string {
	t.Helper()
	made, err := b.engine.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: dockertest.Busybox, Cmd: []string{"true"}, Labels: labels},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.remove(t, made.ID) })
	return made.ID
}
