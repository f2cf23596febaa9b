// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
)

// The vendor's lifetime is the lease's maximum and a minute: it is the guard
// when nobody reaps, and it never comes first.
func TestLifetime(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	s, target := c.mustCreate(t, 1)
	if ends := c.Running()[0].Ends; !ends.Equal(s.Lease.MaxExpiresAt.Add(time.Minute)) {
		t.Errorf("the vendor ends it at %s, and its maximum is %s", ends, s.Lease.MaxExpiresAt)
	}
	c.clock.Advance(time.Hour)
	got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil || got.Sandbox.Status != sdk.StatusExpired || got.Sandbox.EndReason != sdk.EndDeadline {
		t.Errorf("after its deadline it is %s (%s), %v", got.Sandbox.Status, got.Sandbox.EndReason, err)
	}
	if _, err := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 1, Holder: "reaper", OnlyExpired: true}); err != nil {
		t.Errorf("the reaper's claim: %v", err)
	}
	c.clock.Advance(3*time.Hour + 2*time.Minute)
	_, err = c.Get(t.Context(), sdk.GetOptions{Target: target})
	if !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), "its lifetime was over") {
		t.Errorf("after the vendor's end: %v", err)
	}
	if gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil || gone.Existed {
		t.Errorf("destroying it: %+v, %v", gone, err)
	}
}

// Up to the maximum an extend is a tag; beyond it nothing helps, and it says so.
func TestExtendBeyondTheMaximum(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	s, target := c.mustCreate(t, 1)
	granted, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: s.Lease.MaxExpiresAt.Add(time.Hour), Event: sdk.EventRef{Sequence: 5}})
	if err != nil || !granted.Lease.ExpiresAt.Equal(s.Lease.MaxExpiresAt) {
		t.Fatalf("%+v, %v", granted.Lease, err)
	}
	_, err = c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 2, ExpiresAt: s.Lease.MaxExpiresAt.Add(time.Hour), Event: sdk.EventRef{Sequence: 6}})
	var said *sdk.Error
	if !errors.Is(err, sdk.ErrUnsupported) || !errors.As(err, &said) || said.Path != "ttl" || said.Advice == "" || said.Lease == nil {
		t.Errorf("beyond it: %v", err)
	}
}

// A day is the most: a longer life is refused before anything is made, and a
// longer maximum is said to be what it is.
func TestTheLongestLife(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	opts := c.creation(1)
	opts.ExpiresAt, opts.MaxExpiresAt = start.Add(24*time.Hour), start.Add(48*time.Hour)
	_, err := c.Create(t.Context(), opts)
	var said *sdk.Error
	if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &said) || said.Path != "ttl" {
		t.Errorf("a life of a day: %v", err)
	}
	if n := len(c.Sandboxes()); n != 0 {
		t.Errorf("%d were made", n)
	}
	opts.ExpiresAt = start.Add(23 * time.Hour)
	made, err := c.Create(t.Context(), opts)
	if err != nil || !made.Sandbox.Lease.MaxExpiresAt.Equal(start.Add(24*time.Hour-time.Minute)) {
		t.Errorf("the maximum is %s, %v", made.Sandbox.Lease.MaxExpiresAt, err)
	}
}

// A hundred extenders and a reaper want one lease, from one state directory: of
// each generation exactly one changes it, and after the claim nothing does.
func TestContention(t *testing.T) {
	rounds := 3
	if full() {
		rounds = 100
	}
	random := rand.New(rand.NewPCG(1, 0))
	for round := range rounds {
		c := newCloud(t, modaltest.Options{})
		_, target := c.mustCreate(t, 1)
		if faults := conformancetest.Contend(t.Context(), c, target, start.Add(time.Hour), random); len(faults) > 0 {
			t.Fatalf("round %d: %q", round, faults)
		}
	}
}

// Another machine, with a state directory of its own, sees a lease and changes
// it.
func TestAnotherMachine(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	s, target := c.mustCreate(t, 1)
	other := c.machine(t, t.TempDir(), extension.Options{Clock: c.clock})
	until := s.Lease.ExpiresAt.Add(time.Hour)
	if _, err := other.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until, Event: sdk.EventRef{LedgerID: "other", Sequence: 1}}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil || !got.Sandbox.Lease.ExpiresAt.Equal(until) || got.Sandbox.Lease.Event.LedgerID != "other" {
		t.Errorf("%+v, %v", got.Sandbox.Lease, err)
	}
}

// Sandboxes of the vendor's first generation are listed, used and destroyed as
// those of the second.
func TestFirstGeneration(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	_, second := c.mustCreate(t, 1)
	// The same tags on a sandbox of the first generation, under another id.
	made, err := c.Create(t.Context(), c.creation(2))
	if err != nil {
		t.Fatal(err)
	}
	tags := map[string]string{}
	for _, truth := range c.Running() {
		if truth.ID == made.Sandbox.Ref {
			tags = truth.Tags
		}
	}
	if err := c.Kill(made.Sandbox.Ref); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MODAL_SERVER_URL", c.URL())
	t.Setenv("MODAL_SANDBOX_V2", "0")
	t.Setenv("MODAL_CONFIG_PATH", t.TempDir()+"/none")
	client, err := modal.NewClientWithOptions(&modal.ClientParams{TokenID: testTokenID, TokenSecret: testTokenSecret, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	app, err := client.Apps.FromName(t.Context(), extension.AppName(fleet), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := client.Sandboxes.Create(t.Context(), app, client.Images.FromRegistry("debian:12-slim", nil), &modal.SandboxCreateParams{
		Timeout: time.Hour, Tags: tags, Command: []string{"sleep", "172800"},
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || list.Incomplete != "" || len(list.Sandboxes) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	target := sdk.Target{ID: sandboxID(2), Ref: first.SandboxID, Fleet: fleet}
	result, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", "exit 5"}})
	if err != nil || result.ExitCode != 5 {
		t.Errorf("exec: %+v, %v", result, err)
	}
	if _, err := c.Extend(context.WithoutCancel(t.Context()), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: c.clock.Now().Add(2 * time.Hour)}); err != nil {
		t.Errorf("extend: %v", err)
	}
	for _, target := range []sdk.Target{target, second} {
		if _, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
	if n := len(c.Running()); n != 0 {
		t.Errorf("%d are left", n)
	}
}
