// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// A refusal never blocks destroy: `terraform destroy` plans first, and a plan
// error would stop it. Each case makes a sandbox, and then makes its world
// refuse it without a change of its configuration.
func TestRefusalsNeverBlockDestroy(t *testing.T) {
	for name, c := range map[string]struct {
		config object
		refuse func(w *world)
		at     string // attribute of the diagnostic
		says   string
	}{
		"capability": {
			sandboxOf(nil),
			func(w *world) {
				w.capabilities = sdk.Capabilities{sdk.FeatureEgressNone: {Class: sdk.ClassUnsupported, Reason: "a new version can't"}}
			},
			"profile", "egress_none is unsupported on backend \"cloud\", best_effort is needed (a new version can't)",
		},
		"maximum": {
			sandboxOf(object{"ttl": "3h"}),
			func(w *world) { w.block["max_ttl"] = "1h" },
			"ttl", "longer than the provider's max_ttl",
		},
		"on_expired": {
			sandboxOf(object{"ttl": "1h", "on_expired": "fail"}),
			func(w *world) { w.clock.Advance(2 * time.Hour) },
			"on_expired", "has ended",
		},
		"min_remaining": {
			sandboxOf(object{"ttl": "1h", "min_remaining": "20m"}),
			func(w *world) { w.clock.Advance(50 * time.Minute) },
			"min_remaining", "10m0s left",
		},
		"expired and refused": {
			sandboxOf(object{"ttl": "3h"}),
			func(w *world) { w.clock.Advance(4 * time.Hour); w.block["max_ttl"] = "1h" },
			"ttl", "longer than the provider's max_ttl",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.terraform().made(tfSandbox, c.config, nil)
			c.refuse(w)
			tf := w.terraform()
			p := tf.planned(tfSandbox, c.config, s)
			if p.action != "update" {
				t.Fatalf("plan: %s", p.action)
			}
			wantError(t, p.warnings, c.at, c.says, "apply will fail")
			left, diags := tf.apply(p)
			wantError(t, errorsOf(diags), c.at, c.says)
			if left == nil || left.tainted || left.text("id") != s.text("id") {
				t.Errorf("left is %v", left)
			}
			// What `terraform destroy` does: plan, then destroy.
			tf = w.terraform()
			p = tf.planned(tfSandbox, c.config, s)
			if gone, diags := tf.destroy(p.prior); gone != nil {
				t.Error(show(diags))
			}
			if w.alive() != 0 {
				t.Error("a box is left")
			}
		})
	}
}

// What a plan makes is added up: it warns where there is no room for all of it,
// and fails for what would have none alone. A destroy is never refused.
func TestCostsAreRefusedAndNeverBlockDestroy(t *testing.T) {
	w := newWorld(t)
	c := sandboxOf(object{"ttl": "1h"})
	w.block["max_committed"] = 0.15
	w.block["prices"] = object{"cloud": object{"sandbox_hour": 0.1}}
	tf := w.terraform()
	first, second := tf.planned(tfSandbox, c, nil), tf.planned(tfSandbox, c, nil)
	if len(first.warnings) > 0 {
		t.Error(show(first.warnings))
	}
	wantError(t, second.warnings, "", "max_committed", "1h0m0s × $0.10 an hour", "beside $0.10 of 1 that are alive: $0.20, and $0.15 are allowed", "nothing of it is made")
	s, diags := tf.apply(first)
	if s == nil {
		t.Fatal(show(diags))
	}
	_, diags = tf.apply(second)
	wantError(t, errorsOf(diags), "", "Exhausted quota", "max_committed", s.text("id"))
	if w.alive() != 1 {
		t.Error("a refused create made something")
	}
	// Nothing could make room for this.
	impossible := w.terraform().plan(tfSandbox, sandboxOf(object{"ttl": "2h"}), nil)
	wantError(t, impossible.errors, "", "Invalid value", "max_committed", "beside $0.00 of 0")
	// An extend beyond it is refused, with the arithmetic, and changes nothing.
	tf = w.terraform()
	p := tf.planned(tfSandbox, sandboxOf(object{"ttl": "2h"}), s)
	_, diags = tf.apply(p)
	wantError(t, errorsOf(diags), "", "max_committed")
	tf = w.terraform()
	p = tf.planned(tfSandbox, c, s)
	if gone, diags := tf.destroy(p.prior); gone != nil || w.alive() != 0 {
		t.Error(show(diags))
	}
}

// A bound of the fleet refuses a create before anything is made, warns at plan,
// and never stands in the way of a destroy, nor of what exists.
func TestMaxSandboxesNeverBlocksDestroy(t *testing.T) {
	w := newWorld(t)
	c := sandboxOf(nil)
	s := w.terraform().made(tfSandbox, c, nil)
	w.block["max_sandboxes"] = 1
	tf := w.terraform()
	p := tf.planned(tfSandbox, c, nil)
	wantError(t, p.warnings, "", "max_sandboxes: the fleet has 1 sandboxes and 1 are allowed", s.text("id"), "nothing of it is made")
	_, diags := tf.apply(p)
	wantError(t, errorsOf(diags), "", "Exhausted quota", "max_sandboxes", s.text("id"))
	if len(w.cloud.Boxes()) != 1 {
		t.Error("a refused create made something")
	}
	if p := w.terraform().planned(tfSandbox, c, s); p.action != "" {
		t.Errorf("plan of what exists: %s", p.action)
	}
	tf = w.terraform()
	p = tf.planned(tfSandbox, c, s)
	if gone, diags := tf.destroy(p.prior); gone != nil || w.alive() != 0 {
		t.Error(show(diags))
	}
}

// What a plan creates, replaces or changes is refused by the plan.
func TestRefusalsOfChangesArePlanErrors(t *testing.T) {
	strict := document(func(p *sdk.Profile) { p.Limits = &sdk.Limits{Memory: "1GiB"} })
	w := newWorld(t)
	tf := w.terraform()
	p := tf.plan(tfSandbox, object{"profile": strict}, nil)
	wantError(t, p.errors, "profile", "limits.memory", "memory_limit is unsupported", "emulated is needed")
	p = tf.plan(tfSandbox, sandboxOf(object{"backend": "nowhere"}), nil)
	wantError(t, p.errors, "backend", "nowhere", "cloud")
	p = tf.plan(tfSandbox, sandboxOf(object{"ttl": "10m", "min_remaining": "20m"}), nil)
	wantError(t, p.errors, "min_remaining", "10m")
	p = tf.plan(tfSandbox, object{"profile": "no-such-profile"}, nil)
	wantError(t, p.errors, "profile", "no-such-profile")
	s := tf.made(tfSandbox, sandboxOf(nil), nil)
	p = tf.plan(tfSandbox, object{"profile": strict}, s)
	wantError(t, p.errors, "profile", "memory_limit")
	w.clock.Advance(50 * time.Minute)
	p = w.terraform().plan(tfSandbox, sandboxOf(object{"min_remaining": "20m"}), s)
	wantError(t, p.errors, "min_remaining", s.text("id"))
	if len(w.cloud.Boxes()) != 1 {
		t.Error("a plan made something")
	}
}

// Every refusal of a create has its place.
func TestRefusalsOfArgumentsNameTheirPlace(t *testing.T) {
	w := newWorld(t)
	w.capabilities = sdk.Capabilities{
		sdk.FeatureSecretFiles: {Class: sdk.ClassUnsupported}, sdk.FeatureExpiryPause: {Class: sdk.ClassUnsupported},
		sdk.FeatureIdleTimeout: {Class: sdk.ClassUnsupported},
	}
	tf := w.terraform()
	for at, c := range map[string]object{
		"secrets_wo":   sandboxOf(object{"secrets_wo": object{"A": "x"}, "secrets_wo_version": 1}),
		"on_expiry":    sandboxOf(object{"on_expiry": "pause"}),
		"idle_timeout": sandboxOf(object{"idle_timeout": "10m"}),
		"env":          sandboxOf(object{"env": object{"not a name": "x"}}),
		"labels":       sandboxOf(object{"labels": object{"": "x"}}),
		"snapshot":     {"snapshot": "snp-nonsense"},
		"profile":      {"profile": "{\"name\": \"x\", \"limits\": {\"memory\": \"much\"}}"},
		"ttl":          sandboxOf(object{"ttl": "0s"}),
		"renew_below":  sandboxOf(object{"renew_below": "soon"}),
		"on_expired":   sandboxOf(object{"on_expired": "panic"}),
	} {
		wantError(t, tf.plan(tfSandbox, c, nil).errors, "\""+at+"\"")
	}
	wantError(t, tf.plan(tfSandbox, sandboxOf(object{"ttl": "30"}), nil).errors, "\"ttl\"", `"30" is not a duration (want for example "45m" or "1h30m"; days are 24h)`)
	wantError(t, tf.plan(tfSandbox, object{"profile": "nothing"}, nil).errors, "\"profile\"", "Unknown profile")
	both := sandboxOf(object{"snapshot": "snp-00000000000000000000"})
	wantError(t, tf.plan(tfSandbox, both, nil).errors, "", "profile", "snapshot")
	wantError(t, tf.plan(tfSandbox, object{}, nil).errors, "", "profile", "snapshot")
}

// What only the machine can tell is a warning when it can't be asked, and is
// checked again before the intent.
func TestUndecidedIsAWarningAndIsCheckedAgain(t *testing.T) {
	w := newWorld(t)
	w.capabilities = sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassUnsupported, DependsOnMachine: true}}
	c := object{"profile": document(func(p *sdk.Profile) { p.Limits = &sdk.Limits{Memory: "1GiB"} })}
	w.cloud.Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken})
	tf := w.terraform()
	p := tf.planned(tfSandbox, c, nil)
	wantError(t, p.warnings, "profile", "memory_limit", "checked again")
	w.cloud.Heal()
	// The machine now says that it can't.
	_, diags := tf.apply(p)
	wantError(t, errorsOf(diags), "profile", "memory_limit")
	if len(w.cloud.Boxes()) != 0 {
		t.Error("something was made")
	}
}

func TestNoLiveGuardIsAWarning(t *testing.T) {
	w := newWorld(t)
	w.capabilities = sdk.Capabilities{sdk.FeatureDeadline: {Class: sdk.ClassUnsupported}}
	p := w.terraform().planned(tfSandbox, sandboxOf(nil), nil)
	wantError(t, p.warnings, "", "No live guard", "sandboxer reap")
}

// An unreachable backend is an error of a read, and never the end of a
// sandbox.
func TestUnreachableBackendRemovesNothing(t *testing.T) {
	w := newWorld(t)
	c := sandboxOf(object{"ttl": "1h"})
	s := w.terraform().made(tfSandbox, c, nil)
	w.cloud.Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken}, saasstub.Fault{Call: saasstub.CallGetBox, Lie: saasstub.Broken})
	tf := w.terraform()
	p := tf.plan(tfSandbox, c, s)
	wantError(t, p.errors, "", "Unreachable backend", s.text("id"), "cloud")
	left, diags := tf.destroy(s)
	wantError(t, errorsOf(diags), "", "Unreachable backend")
	if left == nil || left.text("id") != s.text("id") {
		t.Error("the state lost it")
	}
	w.cloud.Heal()
	if p := w.terraform().planned(tfSandbox, c, s); p.action != "" {
		t.Errorf("plan: %s", p.action)
	}
	// Long past its deadline, on a backend that enforces deadlines, it has
	// ended: nobody is stuck.
	w.clock.Advance(3 * time.Hour)
	w.cloud.Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken}, saasstub.Fault{Call: saasstub.CallGetBox, Lie: saasstub.Broken})
	tf = w.terraform()
	if got := tf.refresh(s); got.text("status") != "expired" {
		t.Errorf("status %s", got.text("status"))
	}
	if left, diags := tf.destroy(s); left != nil || !strings.Contains(show(diags), "Unverifiable") {
		t.Errorf("destroy: %s", show(diags))
	}
}

// A person sees each of several errors by itself, the advice before the cause.
func TestDiagnosticsSayWhatHappenedAndWhatToDo(t *testing.T) {
	err := errors.Join(
		&sdk.Error{Kind: sdk.ErrInvalid, Path: "limits.memory", Message: "it is odd", Advice: "make it even", Err: context.Canceled},
		lifecycle.CheckResult{}.Err(),
		sdk.Errorf(sdk.ErrQuota, "no room on backend %q", "cloud"),
	)
	got := findings("Failed thing", err, profileBlame)
	if len(got) != 2 {
		t.Fatalf("%d findings", len(got))
	}
	if got[0].summary != "Invalid value" || got[0].attribute.String() != "limits" ||
		got[0].detail != "limits.memory: it is odd.\n\nWhat to do: make it even.\n\nOriginal error: context canceled" {
		t.Errorf("%+v", got[0])
	}
	if got[1].summary != "Exhausted quota" || got[1].detail != "No room on backend \"cloud\"." || got[1].located {
		t.Errorf("%+v", got[1])
	}
}

func TestProfilePaths(t *testing.T) {
	for at, want := range map[string]string{
		"limits.memory":          "limits",
		"network.allow[3]":       "network",
		"setup[1][0]":            "setup[1]",
		"command[2]":             "command[2]",
		"env.A.mode":             "env[\"A.mode\"]",
		"files./etc/a.conf.mode": "files[\"/etc/a.conf\"]",
		"files./etc/a.conf":      "files[\"/etc/a.conf\"]",
		"files":                  "files",
		"ready.http.port":        "ready",
		"requires.egress_domain": "requires[\"egress_domain\"]",
		"name":                   "name",
	} {
		got, ok := profileBlame(at)
		if !ok || got.String() != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
}

// A backend that is gone for good stops neither a refresh nor a destroy of
// whoever chooses to forget; without that choice it stops both.
func TestForgettingWhatCannotBeReached(t *testing.T) {
	w := newWorld(t)
	s := w.terraform().made(tfSandbox, sandboxOf(nil), nil)
	snapshot := w.terraform().made(tfSnapshot, object{"sandbox_id": s.text("id")}, nil)
	for _, call := range []saasstub.Call{saasstub.CallGetBox, saasstub.CallListBoxes, saasstub.CallDeleteBox, saasstub.CallListImages, saasstub.CallDeleteImage} {
		w.cloud.Inject(saasstub.Fault{Call: call, Lie: saasstub.Broken})
	}
	all := map[string]*state{tfSandbox: s, tfSnapshot: snapshot}
	for _, prior := range all {
		tf := w.terraform()
		if _, diags := tf.tryRefresh(prior); len(errorsOf(diags)) == 0 {
			t.Errorf("%s: a refresh told nothing", prior.kind)
		}
		if left, diags := tf.destroy(prior); left == nil || len(errorsOf(diags)) == 0 {
			t.Errorf("%s: a destroy told nothing", prior.kind)
		}
	}
	w.block["on_unreachable"] = "forget"
	for _, prior := range all {
		tf := w.terraform()
		refreshed, diags := tf.tryRefresh(prior)
		if refreshed == nil || !refreshed.value.Equal(prior.value) {
			t.Fatalf("%s: the state changed: %s", prior.kind, show(diags))
		}
		wantError(t, diags, "", "Unreachable backend", "was not refreshed")
		left, diags := tf.destroy(refreshed)
		if left != nil || len(errorsOf(diags)) > 0 {
			t.Errorf("%s: %s", prior.kind, show(diags))
		}
		wantError(t, diags, "", "Forgotten", "sandboxer reap")
	}
	if w.alive() != 1 {
		t.Error("nothing was reached, and something is gone")
	}
}
