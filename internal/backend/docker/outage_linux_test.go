// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// An engine over TCP is spoken to with certificates of both sides, and with no
// other.
func TestDockerTLS(t *testing.T) {
	plain := open(t)
	with := func(certificates string) backend {
		return openFleet(t, plain.fleet, func(_ *dockerOptions, config map[string]string) {
			config["host"], config["cert_path"] = plain.engine.TLS, filepath.Join(plain.engine.Certs, certificates)
		})
	}
	b := with("client")
	s, target := b.create(t)
	if out, code := b.run(t, target, "echo", "over", "tls"); code != 0 || out != "over tls\n" {
		t.Errorf("%d, %q", code, out)
	}
	for _, certificates := range []string{"stranger", "deceived", "none"} {
		other := with(certificates)
		_, err := other.Get(t.Context(), sdk.GetOptions{Target: target})
		if !errors.Is(err, sdk.ErrUnreachable) && !errors.Is(err, sdk.ErrUnauthenticated) && !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v", certificates, err)
		}
		if probed, err := other.Probe(t.Context(), sdk.ProbeOptions{}); err == nil && (probed.Usable || probed.Reason == "") {
			t.Errorf("%s: probe: %+v", certificates, probed)
		}
	}
	if _, err := plain.Get(t.Context(), sdk.GetOptions{Target: target}); err != nil {
		t.Errorf("%s by another way: %v", s.ID, err)
	}
}

// typed fails when an error of an outage does not say what it is about, or says
// of something that it is not there.
func typed(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, kind := range []error{sdk.ErrUnreachable, sdk.ErrConflict, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return
		}
	}
	t.Errorf("%s: %v", what, err)
}

// An engine that is killed in the middle of whatever it was asked leaves nothing
// that the next run does not mend, and nobody is told a lie.
func TestDockerEngineKilled(t *testing.T) {
	b := open(t)
	outages(t, b, b.Extension, func() { b.engine.Kill(t) }, func() { b.engine.Restart(t) })
}

// The same for a host that is reached over SSH and whose connections are
// killed, or that goes down or answers nothing for a while.
func TestDockerHostLost(t *testing.T) {
	b := open(t)
	for name, fault := range map[string]struct{ happens, ends func(s *sshtest.Server) }{
		"connections killed": {(*sshtest.Server).KillConnections, func(*sshtest.Server) {}},
		"server down":        {(*sshtest.Server).Stop, (*sshtest.Server).Restart},
		"frozen":             {(*sshtest.Server).Freeze, (*sshtest.Server).Thaw},
	} {
		t.Run(name, func(t *testing.T) {
			s := sshtest.Start(t)
			remote := openRemote(t, s, b.fleet, b.socket(), time.Second)
			outages(t, b, remote.Extension, func() { fault.happens(s) }, func() { fault.ends(s) })
		})
	}
}

// outages has an extension make, snapshot and destroy sandboxes of a fleet, and
// a fault happen while that is under way. The fault ends when the call has.
func outages(t *testing.T, b backend, ext *docker.Extension, happens, ends func()) {
	t.Helper()
	rounds := 1
	if fullSize() {
		rounds = 20
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	outage := func(t *testing.T, act func(ctx context.Context) error) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- act(ctx) }()
		time.Sleep(time.Duration(random.Int64N(int64(700 * time.Millisecond))))
		happens()
		defer ends()
		select {
		case err := <-ended:
			return err
		case <-time.After(2 * time.Minute):
			t.Fatal("it does not end")
			return nil
		}
	}
	mended := func(t *testing.T, opts sdk.CreateOptions) {
		t.Helper()
		target := sdk.Target{ID: opts.ID, Fleet: b.fleet}
		if _, err := ext.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil && !errors.Is(err, sdk.ErrNotFound) {
			t.Errorf("destroy afterwards: %v", err)
		}
		b.nothingLeft(t, opts.ID)
	}
	for range rounds {
		t.Run("create", func(t *testing.T) {
			opts := b.creation()
			err := outage(t, func(ctx context.Context) error { _, err := ext.Create(ctx, opts); return err })
			typed(t, "create", err)
			mended(t, opts)
		})
		t.Run("snapshot", func(t *testing.T) {
			opts := b.creation()
			if _, err := ext.Create(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			id := "snp-" + opts.ID[len("sbx-"):]
			err := outage(t, func(ctx context.Context) error {
				_, err := ext.Snapshot(ctx, sdk.SnapshotOptions{
					Target: sdk.Target{ID: opts.ID, Fleet: b.fleet}, SnapshotID: id, Kind: sdk.SnapshotFilesystem, ExpiresAt: time.Now().Add(time.Hour), Identity: sdk.Identity{ID: id, Fleet: b.fleet},
				})
				return err
			})
			typed(t, "snapshot", err)
			_, readErr := ext.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: id, Fleet: b.fleet})
			if err == nil && readErr != nil {
				t.Errorf("it was made, and %v", readErr)
			}
			if _, err := ext.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: b.fleet}); err != nil && !errors.Is(err, sdk.ErrNotFound) {
				t.Errorf("delete afterwards: %v", err)
			}
			b.nothingLeft(t, id)
			mended(t, opts)
		})
		t.Run("destroy", func(t *testing.T) {
			opts := b.creation()
			if _, err := ext.Create(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			err := outage(t, func(ctx context.Context) error {
				_, err := ext.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: opts.ID, Fleet: b.fleet}})
				return err
			})
			typed(t, "destroy", err)
			if err == nil {
				b.nothingLeft(t, opts.ID)
			}
			mended(t, opts)
		})
	}
	list, err := b.List(t.Context(), sdk.ListOptions{})
	snapshots, snapshotErr := b.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: b.fleet})
	if err := errors.Join(err, snapshotErr); err != nil || len(list.Sandboxes)+len(snapshots.Snapshots) != 0 {
		t.Errorf("%d sandboxes and %d snapshots are listed, %v", len(list.Sandboxes), len(snapshots.Snapshots), err)
	}
	images, err := b.engine.Client.ImageList(t.Context(), client.ImageListOptions{Filters: make(client.Filters).Add("label", sdk.LabelFleet+"="+b.fleet)})
	if err != nil || len(images.Items) != 0 {
		t.Errorf("%d images are left, %v", len(images.Items), err)
	}
}

// An engine that answers nothing is waited for as long as the caller says, and
// nothing is gone.
func TestDockerEngineFrozen(t *testing.T) {
	b := open(t)
	_, target := b.create(t)
	b.engine.Freeze(t)
	thawed := false
	defer func() {
		if !thawed {
			b.engine.Thaw(t)
		}
	}()
	for verb, call := range map[string]func(ctx context.Context) error{
		"get":  func(ctx context.Context) error { _, err := b.Get(ctx, sdk.GetOptions{Target: target}); return err },
		"list": func(ctx context.Context) error { _, err := b.List(ctx, sdk.ListOptions{}); return err },
		"destroy": func(ctx context.Context) error {
			_, err := b.Destroy(ctx, sdk.DestroyOptions{Target: target})
			return err
		},
		"exec": func(ctx context.Context) error {
			_, err := b.Exec(ctx, sdk.ExecOptions{Target: target, Command: []string{"true"}})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		select {
		case err := <-ended:
			if err == nil || errors.Is(err, sdk.ErrNotFound) || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, sdk.ErrUnreachable) {
				t.Errorf("%s: %v", verb, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s goes on without its caller", verb)
		}
		cancel()
	}
	b.engine.Thaw(t)
	thawed = true
	if _, err := b.Get(t.Context(), sdk.GetOptions{Target: target}); err != nil {
		t.Error(err)
	}
	if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
		t.Error(err)
	}
	b.nothingLeft(t, target.ID)
}
