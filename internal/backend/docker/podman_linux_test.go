// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Podman speaks Docker's API: a sandbox lives and ends there, of an extend and
// a claim one wins, and what Podman can't do is refused.
func TestDockerPodman(t *testing.T) {
	podman := dockertest.StartPodman(t)
	on := func(_ *dockerOptions, config map[string]string) { config["host"] = podman.Host }
	b := open(t, on)
	b.engine = podman
	second := openFleet(t, b.fleet, on)
	second.engine = podman
	bystander, _ := b.create(t)
	s, target := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.Files = map[string]sdk.File{"/etc/mine": {Content: "x"}}
		opts.Secrets = map[string]sdk.Secret{"TOKEN": "hidden"}
	})
	if s.Status != sdk.StatusReady {
		t.Fatalf("it is %s: %s", s.Status, s.Reason)
	}
	var out strings.Builder
	result, err := b.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", "cat - /etc/mine /run/secrets/TOKEN; exit 3"}, Stdin: strings.NewReader("in "), Stdout: &out})
	if err != nil || result.ExitCode != 3 || out.String() != "in xhidden" {
		t.Errorf("exec: %+v, %q, %v", result, out.String(), err)
	}
	if _, err := b.Pause(t.Context(), sdk.PauseOptions{Target: target}); err != nil {
		t.Errorf("pause: %v", err)
	}
	if _, err := b.Resume(t.Context(), sdk.ResumeOptions{Target: target}); err != nil {
		t.Errorf("resume: %v", err)
	}
	for round := range 5 {
		before := b.leaseOf(t, target)
		var first, other error
		var race sync.WaitGroup
		extend := func(b backend, err *error, who int) func() {
			return func() {
				_, *err = b.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: before.Generation, ExpiresAt: before.ExpiresAt.Add(time.Duration(who) * time.Minute), Event: event(round, who)})
			}
		}
		race.Go(extend(b, &first, 1))
		race.Go(extend(second, &other, 2))
		race.Wait()
		if (first == nil) == (other == nil) {
			t.Errorf("round %d: %v, %v", round, first, other)
		}
		for _, err := range []error{first, other} {
			if err != nil && !errors.Is(err, sdk.ErrConflict) {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
	list, err := second.List(t.Context(), sdk.ListOptions{})
	if err != nil || len(list.Sandboxes) != 2 {
		t.Errorf("%d are listed, %v", len(list.Sandboxes), err)
	}
	probed, err := b.Probe(t.Context(), sdk.ProbeOptions{})
	if err != nil || !probed.Usable {
		t.Fatalf("%+v, %v", probed, err)
	}
	for feature, want := range map[sdk.Feature]sdk.Class{
		sdk.FeatureExec: sdk.ClassBestEffort, sdk.FeatureFilesystemSnapshot: sdk.ClassUnsupported, sdk.FeatureRestore: sdk.ClassUnsupported,
		sdk.FeaturePorts: sdk.ClassUnsupported, sdk.FeatureExtendCAS: sdk.ClassEnforced,
	} {
		if got := probed.Capabilities.Of(feature); got.Class != want || got.Reason == "" {
			t.Errorf("%s: %+v, want %s", feature, got, want)
		}
	}
	if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
		t.Error(err)
	}
	b.nothingLeft(t, s.ID)
	if _, err := b.Get(t.Context(), sdk.GetOptions{Target: sdk.Target{ID: bystander.ID, Fleet: b.fleet}}); err != nil {
		t.Errorf("the other one: %v", err)
	}
}
