// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// snapshotted is a sandbox with a snapshot.
func snapshotted(w *world, tf *run, more object) (box, snapshot *state, config object) {
	w.t.Helper()
	box = tf.made(tfSandbox, sandboxOf(object{"ttl": "1h"}), nil)
	config = object{"sandbox_id": box.text("id")}
	for name, value := range more {
		config[name] = value
	}
	return box, tf.made(tfSnapshot, config, nil), config
}

func TestSnapshotLife(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	box, snapshot, _ := snapshotted(w, tf, object{"labels": object{"suite": "checkout"}})
	for name, want := range map[string]any{
		"status": "ready", "kind": "filesystem", "backend": "cloud", "profile_name": "e2e", "sandbox_id": box.text("id"),
		"expires_at": "2026-03-08T12:00:00Z", "contains_secrets": false, "fleet": "default",
	} {
		if got := snapshot.get(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	fork := object{"snapshot": snapshot.text("id")}
	p := tf.planned(tfSandbox, fork, nil)
	if p.unknown("document") || p.get("backend") != "cloud" {
		t.Error("the profile of a known snapshot is not known at plan")
	}
	one, two := tf.made(tfSandbox, fork, nil), tf.made(tfSandbox, fork, nil)
	if one.text("id") == two.text("id") || one.text("profile_revision") != box.text("profile_revision") {
		t.Errorf("forks %s %s", one.text("id"), two.text("id"))
	}
	// The snapshot outlives its source, and the fork its snapshot.
	for _, s := range []*state{box, snapshot} {
		if left, diags := tf.destroy(s); left != nil {
			t.Error(show(diags))
		}
	}
	if p := w.terraform().planned(tfSandbox, fork, one); p.action != "" {
		t.Errorf("plan: %s", p.action)
	}
	if left, diags := tf.destroy(snapshot); left != nil {
		t.Errorf("a second time: %s", show(diags))
	}
}

func TestSnapshotKeepsItsSource(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	_, snapshot, c := snapshotted(w, tf, nil)
	// Terraform plans the sandbox's replacement: the id is not known.
	c["sandbox_id"] = unknown{}
	if p := tf.planned(tfSnapshot, c, snapshot); p.action != "" {
		t.Fatalf("plan: %s", p.action)
	}
	// And for ever after it is another one.
	other := tf.made(tfSandbox, sandboxOf(nil), nil)
	c["sandbox_id"] = other.text("id")
	if p := tf.planned(tfSnapshot, c, snapshot); p.action != "" || p.get("sandbox_id") != snapshot.text("sandbox_id") {
		t.Fatalf("plan: %s", p.action)
	}
	c["on_source_replaced"] = "replace"
	p := tf.planned(tfSnapshot, c, snapshot)
	if p.action != "replace" || p.replaces[0] != "sandbox_id" {
		t.Fatalf("plan: %s %v", p.action, p.replaces)
	}
	if next := tf.made(tfSnapshot, c, snapshot); next.text("sandbox_id") != other.text("id") {
		t.Error("the new snapshot is of the old sandbox")
	}
}

func TestSnapshotRetention(t *testing.T) {
	w := newWorld(t)
	_, snapshot, c := snapshotted(w, w.terraform(), object{"ttl": "24h"})
	w.clock.Advance(10 * time.Hour)
	tf := w.terraform()
	c["ttl"] = "48h"
	p := tf.planned(tfSnapshot, c, snapshot)
	if p.action != "update" || !p.unknown("expires_at") || p.unknown("id") {
		t.Fatalf("plan: %s", p.action)
	}
	raised := tf.made(tfSnapshot, c, snapshot)
	if raised.text("expires_at") != "2026-03-03T22:00:00Z" {
		t.Errorf("expires_at %s", raised.text("expires_at"))
	}
	c["ttl"] = "1h"
	if p = tf.planned(tfSnapshot, c, raised); p.action != "update" || p.unknown("expires_at") || !strings.Contains(show(p.warnings), "shortens no retention") {
		t.Errorf("plan: %s %s", p.action, show(p.warnings))
	}
}

func TestEndOfASnapshot(t *testing.T) {
	for choice, want := range map[string]string{"replace": "replace", "forget": "", "fail": "update"} {
		w := newWorld(t)
		_, snapshot, c := snapshotted(w, w.terraform(), object{"ttl": "24h", "on_expired": choice})
		if _, err := w.elsewhere().DeleteSnapshot(context.Background(), snapshot.text("id"), lifecycle.DeleteSnapshotOptions{}); err != nil {
			t.Fatal(err)
		}
		tf := w.terraform()
		if got := tf.refresh(snapshot); got.text("status") != "lost" {
			t.Errorf("status %s", got.text("status"))
		}
		p := tf.planned(tfSnapshot, c, snapshot)
		if p.action != want {
			t.Errorf("%s: %s", choice, p.action)
		}
		if choice == "fail" {
			_, diags := tf.apply(p)
			wantError(t, errorsOf(diags), "on_expired", snapshot.text("id"))
		}
		if left, diags := tf.destroy(p.prior); left != nil {
			t.Error(show(diags))
		}
		w.clock.Advance(48 * time.Hour)
		if got := w.terraform().refresh(snapshot); got.text("status") != "expired" {
			t.Errorf("status %s", got.text("status"))
		}
	}
}

func TestSnapshotRefusals(t *testing.T) {
	w := newWorld(t)
	w.capabilities = sdk.Capabilities{sdk.FeatureMemorySnapshot: {Class: sdk.ClassUnsupported, Reason: "no memory"}, sdk.FeatureRestore: {Class: sdk.ClassUnsupported}}
	tf := w.terraform()
	// The only backend is known, although the sandbox is not.
	wantError(t, tf.plan(tfSnapshot, object{"sandbox_id": unknown{}, "kind": "memory"}, nil).errors, "kind", "memory_snapshot is unsupported", "no memory")
	wantError(t, tf.plan(tfSnapshot, object{"sandbox_id": "nonsense"}, nil).errors, "sandbox_id", "nonsense")
	_, snapshot, _ := snapshotted(w, tf, nil)
	wantError(t, tf.plan(tfSandbox, object{"snapshot": snapshot.text("id")}, nil).errors, "snapshot", "restore is unsupported")
	gone := "snp-00000000000000000000"
	wantError(t, tf.plan(tfSandbox, object{"snapshot": gone}, nil).errors, "snapshot", gone)
	w.clock.Advance(8 * 24 * time.Hour)
	wantError(t, w.terraform().plan(tfSandbox, object{"snapshot": snapshot.text("id")}, nil).errors, "snapshot", snapshot.text("id"))
}

func TestSecretsInAMemorySnapshot(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	box := tf.made(tfSandbox, sandboxOf(object{"secrets_wo": object{"TOKEN": "x"}, "secrets_wo_version": 1}), nil)
	made, err := w.elsewhere().Snapshot(context.Background(), box.text("id"), lifecycle.SnapshotOptions{Kind: sdk.SnapshotMemory})
	if err != nil {
		t.Fatal(err)
	}
	s, diags := tf.importState(tfSnapshot, made.ID)
	tf.clean(diags)
	if s.get("contains_secrets") != made.ContainsSecrets || s.text("kind") != "memory" {
		t.Errorf("%v", plainValue(s.value))
	}
}
