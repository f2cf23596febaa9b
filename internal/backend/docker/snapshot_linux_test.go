// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (b backend) snapshot(t *testing.T, target sdk.Target) sdk.Snapshot {
	t.Helper()
	id, now := "snp-"+random(20), time.Now().UTC().Truncate(time.Second)
	made, err := b.Snapshot(t.Context(), sdk.SnapshotOptions{
		Target: target, SnapshotID: id, Kind: sdk.SnapshotFilesystem, ExpiresAt: now.Add(time.Hour),
		Identity: sdk.Identity{ID: id, Fleet: b.fleet, Owner: "of the snapshot", Task: "snap", CreatedAt: now},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := b.DeleteSnapshot(context.WithoutCancel(t.Context()), sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: b.fleet}); err != nil {
			t.Error(err)
		}
	})
	return made.Snapshot
}

func (b backend) restore(t *testing.T, s sdk.Snapshot) (sdk.Sandbox, sdk.Target) {
	t.Helper()
	opts := b.creation(func(opts *sdk.CreateOptions) { opts.Profile = s.Profile })
	made, err := b.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: s.ID, Create: opts})
	if err != nil {
		t.Fatal(err)
	}
	return made.Sandbox, sdk.Target{ID: made.Sandbox.ID, Ref: made.Sandbox.Ref, Fleet: b.fleet}
}

// A snapshot holds what was written, in volumes too, and nothing that was
// secret or the sandbox's own; what is restored from it is a sandbox of its
// own.
func TestDockerSnapshot(t *testing.T) {
	const secret, variable = "secret-canary-51", "variable-canary-52"
	b := open(t)
	_, source := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.Image, opts.Profile.User = dockertest.Defaults, "root" // the image wants volumes at /data and /var/cache
		opts.Profile.Files = map[string]sdk.File{"/etc/app.conf": {Content: "as created"}}
		opts.Secrets, opts.Env = map[string]sdk.Secret{"TOKEN": secret}, map[string]string{"OWN": variable}
	})
	b.run(t, source, "sh", "-c", "echo layer > /srv/file; echo volume > /data/file; mkdir -m 0750 /data/dir; chown 1000 /data/dir; echo changed > /etc/app.conf")
	s := b.snapshot(t, source)
	if out, _ := b.run(t, source, "cat", "/srv/file"); out != "layer\n" {
		t.Errorf("the source after its snapshot: %q", out)
	}
	b.run(t, source, "sh", "-c", "echo later > /srv/file; echo later > /data/file")

	image, err := b.engine.Client.ImageInspect(t.Context(), s.Ref)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(image)
	if err != nil {
		t.Fatal(err)
	}
	for _, canary := range []string{secret, variable, source.ID + ".lease"} {
		if strings.Contains(string(shown), canary) {
			t.Errorf("%s is in the image", canary)
		}
	}
	restored, fork := b.restore(t, s)
	if restored.Identity.Task != "" || restored.Identity.Owner != "tests" {
		t.Errorf("the fork says that it is of %+v", restored.Identity)
	}
	for command, want := range map[string]string{
		"cat /srv/file /data/file /etc/app.conf": "layer\nvolume\nchanged\n", "stat -c %a:%u /data/dir": "750:1000\n",
		"echo ${OWN}-${FROM_IMAGE}-$SANDBOXER_ID": "-yes-" + fork.ID + "\n", "ls /run/secrets 2>/dev/null | wc -l": "0\n",
	} {
		if out, code := b.run(t, fork, "sh", "-c", command); out != want || code != 0 {
			t.Errorf("%s: %q (exit code %d), want %q", command, out, code, want)
		}
	}
	// A snapshot of what was restored, and the source gone.
	if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: source}); err != nil {
		t.Fatal(err)
	}
	b.run(t, fork, "sh", "-c", "rm /data/file; echo second > /srv/file")
	_, second := b.restore(t, b.snapshot(t, fork))
	if out, _ := b.run(t, second, "sh", "-c", "cat /srv/file; ls /data"); out != "second\ndir\n" {
		t.Errorf("a fork's fork: %q", out)
	}

	// Deleted, its layers stay for as long as a fork needs them.
	if _, err := b.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: s.ID, Fleet: b.fleet}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: s.ID, Fleet: b.fleet}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("after its delete: %v", err)
	}
	if out, _ := b.run(t, fork, "cat", "/srv/file"); out != "second\n" {
		t.Errorf("a fork whose snapshot was deleted: %q", out)
	}
}

// What a snapshot's image brings along makes nobody's container look like a
// sandbox, and a sandbox that is paused stays so.
func TestDockerSnapshotIsNoSandbox(t *testing.T) {
	b := open(t)
	_, source := b.create(t)
	if _, err := b.Pause(t.Context(), sdk.PauseOptions{Target: source}); err != nil {
		t.Fatal(err)
	}
	s := b.snapshot(t, source)
	got, err := b.Get(t.Context(), sdk.GetOptions{Target: source})
	if err != nil || got.Sandbox.Status != sdk.StatusPaused {
		t.Errorf("the source is %s, %v", got.Sandbox.Status, err)
	}
	made, err := b.engine.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{Image: s.Ref})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.remove(t, made.ID) })
	list, err := b.List(t.Context(), sdk.ListOptions{})
	if err != nil || len(list.Sandboxes) != 1 || len(list.Unreadable) > 0 {
		t.Errorf("%d sandboxes, unreadable %q, %v", len(list.Sandboxes), list.Unreadable, err)
	}
}
