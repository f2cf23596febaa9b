// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	tfSandbox  = "sandboxer_sandbox"
	tfProfile  = "sandboxer_profile"
	tfSnapshot = "sandboxer_snapshot"
)

// document is a profile that the stub runs.
func document(change ...func(*sdk.Profile)) string {
	p := sdk.Profile{Name: "e2e", Labels: map[string]string{"team": "payments"}}
	for _, c := range change {
		c(&p)
	}
	return sandbox.Document(p)
}

// sandboxOf is a configuration with a profile, and what is added.
func sandboxOf(more object) object {
	c := object{"profile": document()}
	for name, value := range more {
		if value == nil {
			delete(c, name)
			continue
		}
		c[name] = value
	}
	return c
}

// elsewhere is the command line on this machine.
func (w *world) elsewhere() *lifecycle.Manager {
	w.t.Helper()
	runtime, err := config.Open(config.Config{StateDir: w.dir, Backends: map[string]config.Backend{"cloud": {Extension: saasstub.Name}}}, config.Options{
		Clock: w.clock, Builtins: w.options().Builtins, Getenv: func(string) string { return "" },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = runtime.Close() })
	return runtime.Manager
}

// alive counts the boxes that run.
func (w *world) alive() int {
	n := 0
	for _, box := range w.cloud.Boxes() {
		if box.State == saasstub.Running {
			n++
		}
	}
	return n
}

func wantError(t *testing.T, diags []*tfprotov6.Diagnostic, attribute string, texts ...string) {
	t.Helper()
	if len(diags) == 0 {
		t.Fatal("no error")
	}
	shown := show(diags)
	for _, text := range texts {
		if !strings.Contains(shown, text) {
			t.Errorf("no %q in: %s", text, shown)
		}
	}
	if at := fmt.Sprint(diags[0].Attribute); attribute != "" && !strings.Contains(at, attribute) {
		t.Errorf("the error is at %s, not at %s: %s", at, attribute, shown)
	}
}

func TestSandboxLife(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	c := sandboxOf(object{"ttl": "30m", "labels": object{"suite": "checkout"}, "owner": "payments", "env": object{"STAGE": "e2e"}})
	p := tf.planned(tfSandbox, c, nil)
	for _, known := range []string{"document", "profile_name", "profile_revision", "backend", "on_expiry"} {
		if p.unknown(known) {
			t.Errorf("%s is not known at plan", known)
		}
	}
	s := tf.made(tfSandbox, c, nil)
	wants := object{
		"status": "ready", "backend": "cloud", "fleet": "default", "profile_name": "e2e", "on_expiry": "destroy", "owner": "payments",
		"expires_at": "2026-03-01T12:30:00Z", "created_at": "2026-03-01T12:00:00Z", "max_expires_at": "2026-03-02T12:00:00Z", "generation": 1.0,
	}
	for name, want := range wants {
		if got := s.get(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if err := sandbox.ParseID(s.text("id")); err != nil {
		t.Error(err)
	}
	if left, diags := tf.destroy(s); left != nil || len(errorsOf(diags)) > 0 {
		t.Errorf("destroy: %s", show(diags))
	}
	if w.alive() != 0 {
		t.Error("a box is left")
	}
}

func TestSecondPlanIsEmpty(t *testing.T) {
	full := document(func(p *sdk.Profile) {
		p.Command, p.Workdir, p.Env = []string{"sleep", "1"}, "/work", map[string]string{"A": "1"}
		p.TTL, p.OnExpiry = &sdk.TTL{Default: "45m", Max: "4h"}, sdk.OnExpirySnapshot
		p.Network = &sdk.Network{Egress: sdk.EgressDeny}
	})
	for name, c := range map[string]object{
		"least":                 sandboxOf(nil),
		"full profile":          {"profile": full},
		"spaces in a document":  {"profile": strings.Replace(document(), ":", " : ", 1)},
		"every argument":        sandboxOf(object{"backend": "cloud", "ttl": "60m", "on_expiry": "pause", "on_expired": "forget", "min_remaining": "1m", "renew_below": "5m", "on_failed": "keep", "on_profile_change": "keep", "env": object{"A": "b"}, "labels": object{"a": "b"}, "owner": "o", "task": "t", "run": "r", "timeouts": object{"create": "1m"}}),
		"secrets":               sandboxOf(object{"secrets_wo": object{"TOKEN": "x"}, "secrets_wo_version": 1}),
		"empty maps":            sandboxOf(object{"env": object{}, "labels": object{}}),
		"built-in profile name": {"profile": "shell"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.capabilities = sdk.Capabilities{}
			for _, feature := range sdk.Features() {
				w.capabilities[feature] = sdk.Guarantee{Class: sdk.ClassEnforced}
			}
			s := w.terraform().made(tfSandbox, c, nil)
			// Also in a later process, and after time has passed.
			w.clock.Advance(time.Minute)
			if p := w.terraform().planned(tfSandbox, c, s); p.action != "" {
				t.Errorf("plan: %s %v", p.action, differences(p.prior.value, p.planned))
			}
		})
	}
}

func TestRaisingTTLExtends(t *testing.T) {
	w := newWorld(t)
	s := w.terraform().made(tfSandbox, sandboxOf(object{"ttl": "30m"}), nil)
	w.clock.Advance(10 * time.Minute)
	tf := w.terraform()
	p := tf.planned(tfSandbox, sandboxOf(object{"ttl": "1h"}), s)
	if p.action != "update" || !p.unknown("expires_at") || !p.unknown("generation") || p.unknown("id") || p.unknown("status") {
		t.Fatalf("plan: %s %v", p.action, differences(s.value, p.planned))
	}
	raised := tf.made(tfSandbox, sandboxOf(object{"ttl": "1h"}), s)
	if raised.text("expires_at") != "2026-03-01T13:10:00Z" || raised.text("id") != s.text("id") {
		t.Errorf("expires_at is %s", raised.text("expires_at"))
	}
	// A deadline that is later already stays.
	if _, err := w.elsewhere().Extend(context.Background(), s.text("id"), lifecycle.ExtendOptions{By: 5 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	again := w.terraform().made(tfSandbox, sandboxOf(object{"ttl": "2h"}), raised)
	if again.text("expires_at") != "2026-03-01T18:10:00Z" {
		t.Errorf("expires_at is %s", again.text("expires_at"))
	}
}

func TestLoweringTTLShortensNothing(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	s := tf.made(tfSandbox, sandboxOf(object{"ttl": "1h"}), nil)
	p := tf.planned(tfSandbox, sandboxOf(object{"ttl": "10m"}), s)
	if p.action != "update" || p.unknown("expires_at") || len(p.warnings) != 1 || !strings.Contains(show(p.warnings), "keeps its deadline") {
		t.Fatalf("plan: %s, %s", p.action, show(p.warnings))
	}
	lowered := tf.made(tfSandbox, sandboxOf(object{"ttl": "10m"}), s)
	if lowered.text("expires_at") != s.text("expires_at") {
		t.Error("the deadline moved")
	}
	if gone := tf.made(tfSandbox, sandboxOf(nil), lowered); gone.text("expires_at") != s.text("expires_at") {
		t.Error("the deadline moved")
	}
}

func TestExtensionElsewhereIsNoChange(t *testing.T) {
	w := newWorld(t)
	c := sandboxOf(object{"ttl": "30m"})
	s := w.terraform().made(tfSandbox, c, nil)
	if _, err := w.elsewhere().Extend(context.Background(), s.text("id"), lifecycle.ExtendOptions{By: time.Hour}); err != nil {
		t.Fatal(err)
	}
	tf := w.terraform()
	if p := tf.planned(tfSandbox, c, s); p.action != "" {
		t.Errorf("plan: %v", differences(p.prior.value, p.planned))
	}
	if got := tf.refresh(s); got.text("expires_at") != "2026-03-01T13:30:00Z" || got.get("generation") != 2.0 {
		t.Error("the refresh does not show it")
	}
}

func TestTTLPastTheMaximumIsRefusedOnTTL(t *testing.T) {
	w := newWorld(t)
	w.block["max_ttl"] = "2h"
	tf := w.terraform()
	p := tf.plan(tfSandbox, sandboxOf(object{"ttl": "3h"}), nil)
	wantError(t, p.errors, "ttl", "provider's max_ttl")
	s := tf.made(tfSandbox, sandboxOf(object{"ttl": "1h"}), nil)
	w.clock.Advance(40 * time.Minute)
	p = w.terraform().plan(tfSandbox, sandboxOf(object{"ttl": "90m"}), s)
	wantError(t, p.errors, "ttl", s.text("id"), "at most")
}

func TestRenewBelowExtends(t *testing.T) {
	w := newWorld(t)
	w.block["max_ttl"] = "90m"
	c := sandboxOf(object{"ttl": "1h", "renew_below": "15m"})
	s := w.terraform().made(tfSandbox, c, nil)
	w.clock.Advance(30 * time.Minute)
	if p := w.terraform().planned(tfSandbox, c, s); p.action != "" {
		t.Fatalf("early: %s", p.action)
	}
	w.clock.Advance(16 * time.Minute)
	tf := w.terraform()
	if p := tf.planned(tfSandbox, c, s); p.action != "update" || !p.unknown("expires_at") {
		t.Fatalf("plan: %s", p.action)
	}
	// Asked for 13:46, the maximum leaves 13:30.
	s, diags := tf.apply(tf.planned(tfSandbox, c, s))
	if s.text("expires_at") != "2026-03-01T13:30:00Z" || !strings.Contains(show(diags), "its maximum") {
		t.Errorf("expires_at %s; %s", s.text("expires_at"), show(diags))
	}
	w.clock.Advance(40 * time.Minute)
	if p := w.terraform().planned(tfSandbox, c, s); p.action != "" || !strings.Contains(show(p.warnings), "latest possible") {
		t.Errorf("at the maximum: %s %s", p.action, show(p.warnings))
	}
}

// ends are the ways in which a sandbox ends behind Terraform's back.
var ends = map[string]struct {
	status string
	end    func(w *world, s *state)
}{
	"expired": {"expired", func(w *world, _ *state) { w.clock.Advance(2 * time.Hour) }},
	"lost":    {"lost", func(w *world, s *state) { w.kill(s) }},
	"destroyed by the command line": {"destroyed", func(w *world, s *state) {
		if _, err := w.elsewhere().Destroy(context.Background(), s.text("id"), lifecycle.DestroyOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}},
	"expired by the command line": {"expired", func(w *world, s *state) {
		if _, err := w.elsewhere().Expire(context.Background(), s.text("id"), lifecycle.ExpireOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}},
}

// kill makes the vendor lose a sandbox.
func (w *world) kill(s *state) {
	w.t.Helper()
	for _, box := range w.cloud.Boxes() {
		if box.Name == s.text("id") || box.ID == s.text("ref") {
			if err := w.cloud.Kill(box.ID); err != nil {
				w.t.Fatal(err)
			}
			return
		}
	}
	w.t.Fatal("no such box")
}

func TestEndIsAStatusAndAPlannedReplacement(t *testing.T) {
	for name, how := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := sandboxOf(object{"ttl": "1h"})
			s := w.terraform().made(tfSandbox, c, nil)
			how.end(w, s)
			tf := w.terraform()
			p := tf.planned(tfSandbox, c, s)
			if p.prior == nil || p.prior.text("status") != how.status {
				t.Fatalf("the refresh gives %v", p.prior)
			}
			if p.action != "replace" || fmt.Sprint(p.replaces) != "[status]" || !p.unknown("id") || !p.unknown("expires_at") || !p.unknown("status") {
				t.Fatalf("plan: %s %v", p.action, p.replaces)
			}
			next := tf.made(tfSandbox, c, s)
			if next.text("id") == s.text("id") || next.text("status") != "ready" || w.alive() != 1 {
				t.Errorf("%s, %d boxes", next.text("status"), w.alive())
			}
		})
	}
}

func TestForgetLeavesItGone(t *testing.T) {
	for name, how := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := sandboxOf(object{"ttl": "1h", "on_expired": "forget", "min_remaining": "10m", "renew_below": "20m"})
			s := w.terraform().made(tfSandbox, c, nil)
			how.end(w, s)
			tf := w.terraform()
			if p := tf.planned(tfSandbox, c, s); p.action != "" {
				t.Fatalf("plan: %s %v", p.action, differences(p.prior.value, p.planned))
			}
			// Settings change in the state only.
			c["ttl"] = "2h"
			s = tf.made(tfSandbox, c, s)
			if w.alive() != 0 || s.text("status") != how.status {
				t.Errorf("%s, %d boxes", s.text("status"), w.alive())
			}
			if _, diags := tf.destroy(s); len(errorsOf(diags)) > 0 {
				t.Error(show(diags))
			}
		})
	}
}

func TestFailRefusesToGoOn(t *testing.T) {
	w := newWorld(t)
	c := sandboxOf(object{"ttl": "1h", "on_expired": "fail"})
	s := w.terraform().made(tfSandbox, c, nil)
	w.clock.Advance(2 * time.Hour)
	tf := w.terraform()
	p := tf.planned(tfSandbox, c, s)
	if p.action != "update" || !strings.Contains(show(p.warnings), "apply will fail") {
		t.Fatalf("plan: %s %s", p.action, show(p.warnings))
	}
	left, diags := tf.apply(p)
	wantError(t, errorsOf(diags), "on_expired", s.text("id"), "cloud")
	if left == nil || left.text("id") != s.text("id") {
		t.Error("the state lost it")
	}
	changed := sandboxOf(object{"ttl": "2h", "on_expired": "fail"})
	wantError(t, tf.plan(tfSandbox, changed, s).errors, "on_expired", s.text("id"))
	if left, diags := tf.destroy(s); left != nil {
		t.Error(show(diags))
	}
}
