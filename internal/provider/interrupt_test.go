// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// hooked lets a test act inside a call of the backend.
type hooked struct {
	*saasstub.Extension
	exec    func(context.Context) error
	destroy func(context.Context) error
}

func (h hooked) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	if h.exec != nil {
		if err := h.exec(ctx); err != nil {
			return sdk.ExecResult{}, err
		}
	}
	return h.Extension.Exec(ctx, opts)
}

func (h hooked) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	if h.destroy != nil {
		if err := h.destroy(ctx); err != nil {
			return sdk.DestroyResult{}, err
		}
	}
	return h.Extension.Destroy(ctx, opts)
}

func (w *world) hook(h hooked) {
	w.extensions = map[string]func() sdk.Extension{saasstub.Name: func() sdk.Extension {
		h.Extension = saasstub.New(saasstub.Options{Server: w.cloud, Capabilities: w.capabilities})
		return h
	}}
}

// withSetup is a profile whose create runs a command.
func withSetup() string {
	return document(func(p *sdk.Profile) { p.Setup = [][]string{{"true"}} })
}

// A cancelled create removes what it made, with a context of its own, and
// leaves no state: Pulumi drops a partial one, and a kill loses it.
func TestCancelledCreateIsRolledBack(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	alive := -1
	w.hook(hooked{exec: func(ctx context.Context) error {
		alive = w.alive()
		cancel() // Ctrl-C while setup runs
		return ctx.Err()
	}})
	tf := w.terraform()
	p := tf.planned(tfSandbox, object{"profile": withSetup()}, nil)
	tf.ctx = ctx
	s, diags := tf.apply(p)
	wantError(t, errorsOf(diags), "", "removed again")
	if s != nil || alive != 1 || w.alive() != 0 {
		t.Errorf("state %v, alive then %d, alive now %d", s, alive, w.alive())
	}
}

// When the rollback fails too, the state holds the sandbox (Terraform taints
// it) and the error names it.
func TestFailedRollbackLeavesAStateThatDestroyCleansUp(t *testing.T) {
	w := newWorld(t)
	w.hook(hooked{
		exec:    func(context.Context) error { return errors.New("setup went wrong") },
		destroy: func(context.Context) error { return sdk.Errorf(sdk.ErrUnreachable, "the cloud is away") },
	})
	tf := w.terraform()
	s, diags := tf.apply(tf.planned(tfSandbox, object{"profile": withSetup()}, nil))
	if s == nil || !s.tainted || w.alive() != 1 {
		t.Fatalf("state %v, %d alive", s, w.alive())
	}
	wantError(t, errorsOf(diags), "", s.text("id"), "cloud", "setup went wrong", "the cloud is away")
	if s.text("ref") == "" || s.text("backend") != "cloud" || s.text("expires_at") == "" {
		t.Errorf("the state lacks what destroy needs: %v", plainValue(s.value))
	}
	w.extensions = nil
	if left, diags := w.terraform().destroy(s); left != nil || w.alive() != 0 {
		t.Error(show(diags))
	}
}

func TestOnFailed(t *testing.T) {
	for choice, kept := range map[string]bool{"destroy": false, "keep": true} {
		w := newWorld(t)
		w.hook(hooked{exec: func(context.Context) error { return errors.New("setup went wrong") }})
		tf := w.terraform()
		s, diags := tf.apply(tf.planned(tfSandbox, object{"profile": withSetup(), "on_failed": choice}, nil))
		wantError(t, errorsOf(diags), "", "setup went wrong")
		if (s != nil) != kept || (w.alive() == 1) != kept {
			t.Errorf("%s: state %v, %d alive", choice, s, w.alive())
		}
		if kept && (s.text("status") != "failed" || !s.tainted) {
			t.Errorf("status %s", s.text("status"))
		}
	}
}

// Id, ref and deadline are in the state before setup and readiness are
// awaited.
func TestStateIsSavedBeforeTheWait(t *testing.T) {
	w := newWorld(t)
	var seen lifecycle.Sandbox
	w.hook(hooked{exec: func(context.Context) error {
		list, err := w.elsewhere().List(context.Background(), lifecycle.ListOptions{})
		if err == nil && len(list.Sandboxes) == 1 {
			seen = list.Sandboxes[0]
		}
		return errors.New("enough seen")
	}, destroy: func(context.Context) error { return sdk.Errorf(sdk.ErrUnreachable, "away") }})
	tf := w.terraform()
	s, _ := tf.apply(tf.planned(tfSandbox, object{"profile": withSetup()}, nil))
	if s == nil || seen.ID == "" || s.text("id") != seen.ID || s.text("ref") != seen.Ref || !seen.Known {
		t.Errorf("%+v", seen)
	}
}

// Ctrl-C cancels the context of a delete too. Its critical call goes on.
func TestCancelledDeleteStillDestroys(t *testing.T) {
	w := newWorld(t)
	c := sandboxOf(nil)
	ctx, cancel := context.WithCancel(context.Background())
	w.hook(hooked{destroy: func(ctx context.Context) error {
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return nil
	}})
	tf := w.terraform()
	s := tf.made(tfSandbox, c, nil)
	tf.ctx = ctx
	if left, diags := tf.destroy(s); left != nil || w.alive() != 0 {
		t.Errorf("%d alive; %s", w.alive(), show(diags))
	}
}

func TestSurvivingEndsSoonAfterACancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	kept, done := surviving(ctx, time.Hour)
	cancel()
	if kept.Err() != nil {
		t.Error("it ended with the cancel")
	}
	if until, ok := kept.Deadline(); !ok || time.Until(until) > time.Hour {
		t.Error("it has no end")
	}
	done()
	if kept.Err() == nil {
		t.Error("it goes on")
	}
}

func TestDeleteIsIdempotent(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	s := tf.made(tfSandbox, sandboxOf(nil), nil)
	for range 3 {
		if left, diags := tf.destroy(s); left != nil || len(errorsOf(diags)) > 0 {
			t.Fatal(show(diags))
		}
	}
	for name, how := range ends {
		w := newWorld(t)
		s := w.terraform().made(tfSandbox, sandboxOf(object{"ttl": "1h"}), nil)
		how.end(w, s)
		if left, diags := w.terraform().destroy(s); left != nil {
			t.Errorf("%s: %s", name, show(diags))
		}
	}
}

// A delete whose backend lies is not a success.
func TestDestroyMeansGone(t *testing.T) {
	w := newWorld(t)
	s := w.terraform().made(tfSandbox, sandboxOf(nil), nil)
	w.cloud.Inject(saasstub.Fault{Call: saasstub.CallDeleteBox, Lie: saasstub.Pretend})
	tf := w.terraform()
	done := make(chan struct{})
	go func() { // the lifecycle waits by its clock for the listing to follow
		for {
			select {
			case <-done:
				return
			default:
				w.clock.Advance(50 * time.Millisecond)
				time.Sleep(time.Millisecond)
			}
		}
	}()
	left, diags := tf.destroy(s)
	close(done)
	wantError(t, errorsOf(diags), "", s.text("id"))
	if left == nil {
		t.Error("the state lost it")
	}
}

// While the provider block is not known, nothing is asked and nothing fails.
func TestUnknownProviderConfiguration(t *testing.T) {
	w := newWorld(t)
	c := sandboxOf(object{"ttl": "1h"})
	s := w.terraform().made(tfSandbox, c, nil)
	snapshot := object{"sandbox_id": s.text("id")}
	w.block["fleet"] = unknown{}
	tf := w.terraform()
	if p := tf.planned(tfSandbox, c, s); p.action != "" || !strings.Contains(show(p.warnings), "provider's fleet") {
		t.Errorf("existing: %s %s", p.action, show(p.warnings))
	}
	p := tf.planned(tfSandbox, c, nil)
	if !strings.Contains(show(p.warnings), "provider's fleet") || p.unknown("document") || !p.unknown("backend") {
		t.Errorf("new: %s", show(p.warnings))
	}
	if p = tf.planned(tfSandbox, object{"profile": "shell"}, nil); !p.unknown("document") {
		t.Error("a name was looked up")
	}
	if p = tf.planned(tfSnapshot, snapshot, nil); len(p.warnings) != 1 {
		t.Errorf("snapshot: %s", show(p.warnings))
	}
	if p = tf.planned(tfProfile, object{"name": "x", "backends": list{"cloud"}}, nil); len(p.warnings) != 1 {
		t.Errorf("profile: %s", show(p.warnings))
	}
}

// Configure neither connects nor reads nor writes.
func TestConfigureDoesNothing(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Load = func() (_ config.Config, _ error) { t.Error("it reads files"); return }
	options.Builtins = map[string]func() sdk.Extension{saasstub.Name: func() sdk.Extension { t.Error("it starts an extension"); return nil }}
	served := New(options)
	r := w.startWith(served)
	kind := r.schema.Provider.ValueType()
	resp, err := r.server.ConfigureProvider(r.ctx, &tfprotov6.ConfigureProviderRequest{Config: r.dynamic(kind, r.value(kind, w.block))})
	r.must(err)
	r.clean(resp.Diagnostics)
	if err := served.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestProviderBlockIsChecked(t *testing.T) {
	for at, block := range map[string]object{
		`AttributeName("fleet")`:                                                       {"fleet": "not a fleet"},
		`AttributeName("max_ttl")`:                                                     {"max_ttl": "-1h"},
		`AttributeName("backends").ElementKeyString("a")`:                              {"backends": object{"a": object{}}},
		`AttributeName("backends").ElementKeyString("a").AttributeName("local")`:       {"backends": object{"a": object{"extension": "x", "local": object{}}}},
		`AttributeName("backends").ElementKeyString("a").AttributeName("config_json")`: {"backends": object{"a": object{"extension": "x", "config_json": "[1]"}}},
		`AttributeName("backends").ElementKeyString("a").AttributeName("sha256")`:      {"backends": object{"a": object{"extension": "x", "sha256": "12"}}},
		`AttributeName("local")`:                                                       {"local": object{}, "backends": object{"local": object{"local": object{}}}},
	} {
		r := newWorld(t).start()
		kind := r.schema.Provider.ValueType()
		given := r.dynamic(kind, r.value(kind, block))
		valid, err := r.server.ValidateProviderConfig(r.ctx, &tfprotov6.ValidateProviderConfigRequest{Config: given})
		r.must(err)
		resp, err := r.server.ConfigureProvider(r.ctx, &tfprotov6.ConfigureProviderRequest{Config: given})
		r.must(err)
		wantError(t, errorsOf(append(valid.Diagnostics, resp.Diagnostics...)), at)
	}
}

// Old Terraforms have no write-only attributes; the rest works there.
func TestWithoutWriteOnlyAttributes(t *testing.T) {
	r := newWorld(t).terraform()
	kind := r.kind(tfSandbox)
	validate := func(c object) []*tfprotov6.Diagnostic {
		resp, err := r.server.ValidateResourceConfig(r.ctx, &tfprotov6.ValidateResourceConfigRequest{TypeName: tfSandbox, Config: r.dynamic(kind, r.value(kind, c))})
		r.must(err)
		return resp.Diagnostics
	}
	r.clean(validate(sandboxOf(nil)))
	wantError(t, errorsOf(validate(sandboxOf(object{"secrets_wo": object{"A": "x"}, "secrets_wo_version": 1}))), "secrets_wo")
	wantError(t, r.plan(tfSandbox, sandboxOf(object{"secrets_wo": object{"A": "x"}}), nil).errors, "secrets_wo", "secrets_wo_version")
}
