// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// What makes another sandbox of it replaces it, and nothing else does.
func TestWhatReplaces(t *testing.T) {
	base := object{"backend": "cloud", "ttl": "1h", "env": object{"A": "1"}, "labels": object{"a": "1"}, "owner": "o", "task": "t", "run": "r1", "secrets_wo": object{"S": "1"}, "secrets_wo_version": 1}
	for name, c := range map[string]struct {
		change object
		action string
		path   string
	}{
		"profile":                   {object{"profile": document(func(p *sdk.Profile) { p.User = "app" })}, "replace", "profile"},
		"profile with other spaces": {object{"profile": " " + document()}, "", ""},
		"env":                       {object{"env": object{"A": "2"}}, "replace", "env"},
		"labels":                    {object{"labels": nil}, "replace", "labels"},
		"owner":                     {object{"owner": "p"}, "replace", "owner"},
		"task":                      {object{"task": "u"}, "replace", "task"},
		"on_expiry":                 {object{"on_expiry": "snapshot"}, "replace", "on_expiry"},
		"secrets by version":        {object{"secrets_wo": object{"S": "2"}, "secrets_wo_version": 2}, "replace", "secrets_wo_version"},
		"secrets without version":   {object{"secrets_wo": object{"S": "2"}}, "", ""},
		"run":                       {object{"run": "r2"}, "", ""},
		"owner left out":            {object{"owner": nil}, "", ""},
		"the same ttl":              {object{"ttl": "60m"}, "", ""},
		"on_expired":                {object{"on_expired": "forget"}, "update", ""},
		"timeouts":                  {object{"timeouts": object{"delete": "1m"}}, "update", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := sandboxOf(base)
			tf := w.terraform()
			s := tf.made(tfSandbox, before, nil)
			after := sandboxOf(base)
			for key, value := range c.change {
				if after[key] = value; value == nil {
					delete(after, key)
				}
			}
			p := tf.planned(tfSandbox, after, s)
			if p.action != c.action || (c.path != "" && !slices.Contains(p.replaces, c.path)) {
				t.Fatalf("plan: %s %v, want %s %s", p.action, p.replaces, c.action, c.path)
			}
			next := tf.made(tfSandbox, after, s)
			if same := next.text("id") == s.text("id"); same != (c.action != "replace") || w.alive() != 1 {
				t.Errorf("the same sandbox: %v, alive: %d", same, w.alive())
			}
		})
	}
}

func TestProfileIsAValue(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	c := object{"name": "web", "setup": list{list{"true"}}, "files": object{"/etc/a.conf": object{"content": "x"}}, "ttl": object{"default": "45m", "max": "4h"}, "labels": object{"a": "b"}}
	p := tf.planned(tfProfile, c, nil)
	if p.unknown("id") || p.unknown("document") || p.unknown("revision") {
		t.Fatal("the document is not known at plan")
	}
	profile := tf.made(tfProfile, c, nil)
	if id := profile.text("id"); id != "web@"+profile.text("revision") {
		t.Errorf("id %s", id)
	}
	s := tf.made(tfSandbox, object{"profile": profile.text("document")}, nil)
	if s.text("profile_revision") != profile.text("revision") || s.text("expires_at") != "2026-03-01T12:45:00Z" {
		t.Errorf("%s, %s", s.text("profile_revision"), s.text("expires_at"))
	}
	// Another content is another profile, known at plan as well.
	c["user"] = "app"
	p = tf.planned(tfProfile, c, profile)
	if p.action != "replace" || p.unknown("document") || p.get("document") == profile.text("document") {
		t.Errorf("plan: %s", p.action)
	}
	// Where something is not known, neither is the document.
	c["user"] = unknown{}
	if p = tf.planned(tfProfile, c, profile); p.action != "replace" || !p.unknown("document") {
		t.Errorf("plan: %s", p.action)
	}
	// The library of this machine says nothing about what exists.
	if err := os.RemoveAll(filepath.Join(w.dir, "profiles")); err != nil {
		t.Fatal(err)
	}
	delete(c, "user")
	if p = w.terraform().planned(tfProfile, c, profile); p.action != "" {
		t.Errorf("plan: %s", p.action)
	}
}

func TestProfileIsValidatedOnItsAttributes(t *testing.T) {
	tf := newWorld(t).terraform()
	for at, c := range map[string]object{
		`AttributeName("limits")`:                              {"name": "x", "limits": object{"memory": "much"}},
		`AttributeName("network")`:                             {"name": "x", "network": object{"egress": "deny", "allow": list{"not a host"}}},
		`AttributeName("setup").ElementKeyInt(1)`:              {"name": "x", "setup": list{list{"true"}, list{}}},
		`AttributeName("env").ElementKeyString("no name")`:     {"name": "x", "env": object{"no name": "x"}},
		`AttributeName("requires").ElementKeyString("flying")`: {"name": "x", "requires": object{"flying": "enforced"}},
		`AttributeName("name")`:                                {"name": "-"},
		`AttributeName("ready")`:                               {"name": "x", "ready": object{"timeout": "1s"}},
	} {
		wantError(t, tf.plan(tfProfile, c, nil).errors, at)
	}
}

func TestProfileIsHeldAgainstItsBackends(t *testing.T) {
	w := newWorld(t)
	c := object{"name": "x", "limits": object{"memory": "1GiB"}, "backends": list{"cloud"}}
	wantError(t, w.terraform().plan(tfProfile, c, nil).errors, `AttributeName("limits")`, "memory_limit", "cloud")
	c["backends"] = list{"nowhere"}
	wantError(t, w.terraform().plan(tfProfile, c, nil).errors, `AttributeName("backends").ElementKeyInt(0)`, "nowhere")
	// Promised once, and then no more: refused at apply, and destroy works.
	c["backends"] = list{"cloud"}
	w.capabilities = sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassEnforced}}
	s := w.terraform().made(tfProfile, c, nil)
	w.capabilities = nil
	tf := w.terraform()
	p := tf.planned(tfProfile, c, s)
	wantError(t, p.warnings, `AttributeName("limits")`, "apply will fail")
	if _, diags := tf.apply(p); len(errorsOf(diags)) == 0 {
		t.Error("apply did not refuse")
	}
	if left, diags := tf.destroy(s); left != nil {
		t.Error(show(diags))
	}
}

func TestProfileIsPreparedOnlyWhenAsked(t *testing.T) {
	w := newWorld(t)
	prepared := &preparations{}
	w.extensions = map[string]func() sdk.Extension{saasstub.Name: func() sdk.Extension {
		return preparer{saasstub.New(saasstub.Options{Server: w.cloud}), prepared}
	}}
	tf := w.terraform()
	s := tf.made(tfProfile, object{"name": "x"}, nil)
	if len(prepared.names) != 0 {
		t.Error("prepared without being asked")
	}
	tf.made(tfProfile, object{"name": "x", "prepare": true}, s)
	if fmt.Sprint(prepared.names) != "[x]" {
		t.Errorf("prepared %v", prepared.names)
	}
}

type preparations struct{ names []string }

type preparer struct {
	sdk.Extension
	prepared *preparations
}

func (p preparer) Prepare(_ context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	p.prepared.names = append(p.prepared.names, opts.Profile.Name)
	return sdk.PrepareResult{}, nil
}

func TestOnProfileChangeKeep(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	keep := object{"on_profile_change": "keep", "ttl": "1h"}
	s := tf.made(tfSandbox, sandboxOf(keep), nil)
	other := document(func(p *sdk.Profile) { p.User = "app" })
	changed := sandboxOf(keep)
	changed["profile"] = other
	if p := tf.planned(tfSandbox, changed, s); p.action != "" {
		t.Fatalf("plan: %s", p.action)
	}
	changed["profile"] = unknown{}
	if p := tf.planned(tfSandbox, changed, s); p.action != "" {
		t.Fatalf("unknown: %s", p.action)
	}
	// The next replacement takes it.
	changed["profile"] = other
	w.clock.Advance(2 * time.Hour)
	if next := w.terraform().made(tfSandbox, changed, s); next.text("document") != other {
		t.Errorf("made from %s", next.text("document"))
	}
}

// A name is looked up in the library; the sandbox keeps its document.
func TestProfileByName(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	library := tf.made(tfProfile, object{"name": "web"}, nil)
	c := object{"profile": "web", "ttl": "1h"}
	p := tf.planned(tfSandbox, c, nil)
	if p.get("document") != library.text("document") {
		t.Errorf("document %v", p.get("document"))
	}
	// What was planned is made, whatever the name means when it is applied.
	tf.made(tfProfile, object{"name": "web", "user": "app"}, library)
	s, diags := tf.apply(p)
	tf.clean(diags)
	if s.text("document") != library.text("document") {
		t.Errorf("made from %s", s.text("document"))
	}
	if p = tf.planned(tfSandbox, c, s); p.action != "replace" || fmt.Sprint(p.replaces) != "[profile_revision]" {
		t.Errorf("another profile of the name: %s %v", p.action, p.replaces)
	}
	if err := os.RemoveAll(filepath.Join(w.dir, "profiles")); err != nil {
		t.Fatal(err)
	}
	if p = w.terraform().planned(tfSandbox, c, s); p.action != "" {
		t.Errorf("without the library: %s", p.action)
	}
}

// One listing of the backend serves a refresh, however many there are.
func TestRefreshIsOneListing(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	const many = 300
	states := make([]*state, many)
	for i := range states {
		s, diags := tf.apply(tf.planned(tfSandbox, sandboxOf(nil), nil))
		tf.clean(diags)
		states[i] = s
	}
	before := w.cloud.Calls()
	tf = w.terraform()
	var wg sync.WaitGroup
	gate := make(chan struct{}, 10)
	for i := range states {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			kind := tf.kind(tfSandbox)
			current, err := tfprotov6.NewDynamicValue(kind, states[i].value)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := tf.server.ReadResource(tf.ctx, &tfprotov6.ReadResourceRequest{TypeName: tfSandbox, CurrentState: &current})
			if err != nil || len(errorsOf(resp.Diagnostics)) > 0 {
				t.Error(err, show(resp.Diagnostics))
			}
		})
	}
	wg.Wait()
	after := w.cloud.Calls()
	// The vendor's pages make several requests of one listing.
	pages := after[saasstub.CallListBoxes] - before[saasstub.CallListBoxes]
	gets := after[saasstub.CallGetBox] - before[saasstub.CallGetBox]
	if pages > 5 || gets != 0 {
		t.Errorf("%d pages and %d single reads for %d sandboxes", pages, gets, many)
	}
	var changed []string
	for key, n := range after {
		if n != before[key] && !strings.HasPrefix(string(key), "list") {
			changed = append(changed, string(key))
		}
	}
	if len(changed) > 0 {
		t.Errorf("a refresh called %v", changed)
	}
}

// A ttl that is known only at apply extends when it turns out to be longer.
func TestTTLThatIsUnknownAtPlan(t *testing.T) {
	for ttl, want := range map[string]string{"3h": "2026-03-01T15:10:00Z", "59m": "2026-03-01T13:00:00Z"} {
		w := newWorld(t)
		box := w.terraform().made(tfSandbox, sandboxOf(object{"ttl": "1h"}), nil)
		snapshotConfig := object{"sandbox_id": box.text("id"), "ttl": "1h"}
		snapshot := w.terraform().made(tfSnapshot, snapshotConfig, nil)
		w.clock.Advance(10 * time.Minute)
		tf := w.terraform()
		for kind, s := range map[string]*state{tfSandbox: box, tfSnapshot: snapshot} {
			c := sandboxOf(nil)
			if kind == tfSnapshot {
				c = snapshotConfig
			}
			c["ttl"] = unknown{}
			p := tf.planned(kind, c, s)
			if p.action != "update" || !p.unknown("expires_at") || p.unknown("id") {
				t.Fatalf("%s: %s", kind, p.action)
			}
			// Terraform puts the value in when it is known.
			c["ttl"] = ttl
			p.config = tf.value(tf.kind(kind), c)
			planned := maps.Clone(attributesOf(p.planned))
			planned["ttl"] = attributeOf(p.config, "ttl")
			p.planned = tftypes.NewValue(tf.kind(kind), planned)
			next, diags := tf.apply(p)
			tf.clean(diags)
			if next.text("expires_at") != want {
				t.Errorf("%s with %s: %s, want %s", kind, ttl, next.text("expires_at"), want)
			}
		}
	}
}

// An unchanged sandbox is planned without a probe, which may cost a boot.
func TestUnchangedSandboxIsNotProbed(t *testing.T) {
	w := newWorld(t)
	w.capabilities = sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassEnforced}}
	c := object{"profile": document(func(p *sdk.Profile) { p.Limits = &sdk.Limits{Memory: "1GiB"} })}
	s := w.terraform().made(tfSandbox, c, nil)
	w.capabilities = sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassUnsupported, DependsOnMachine: true}}
	probed := false
	w.extensions = map[string]func() sdk.Extension{saasstub.Name: func() sdk.Extension {
		return prober{saasstub.New(saasstub.Options{Server: w.cloud, Capabilities: w.capabilities}), &probed}
	}}
	if p := w.terraform().planned(tfSandbox, c, s); p.action != "" || len(p.warnings) > 0 || probed {
		t.Errorf("plan: %s %s, probed: %v", p.action, show(p.warnings), probed)
	}
}

type prober struct {
	*saasstub.Extension
	probed *bool
}

func (p prober) Probe(ctx context.Context, opts sdk.ProbeOptions) (sdk.ProbeResult, error) {
	*p.probed = true
	return p.Extension.Probe(ctx, opts)
}
