// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestDataSandbox(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	s := tf.made(tfSandbox, sandboxOf(object{"labels": object{"suite": "checkout"}}), nil)
	d, diags := tf.data(tfSandbox, object{"id": s.text("id")})
	tf.clean(diags)
	for _, name := range []string{"id", "status", "backend", "ref", "expires_at", "generation", "document", "profile_revision", "on_expiry"} {
		if d.get(name) != s.get(name) {
			t.Errorf("%s: %v, the resource has %v", name, d.get(name), s.get(name))
		}
	}
	if got := fmt.Sprint(d.get("labels")); got != "map[suite:checkout team:payments]" {
		t.Errorf("labels %s", got)
	}
	if _, diags = tf.data(tfSandbox, object{"id": "sbx-00000000000000000000"}); len(errorsOf(diags)) == 0 {
		t.Error("no error for a sandbox that nobody knows")
	}
	_, diags = tf.data(tfSandbox, object{"id": "nonsense"})
	wantError(t, errorsOf(diags), "id", "nonsense")
	w.clock.Advance(2 * time.Hour)
	if d, diags = w.terraform().data(tfSandbox, object{"id": s.text("id")}); d == nil || d.text("status") != "expired" {
		t.Errorf("ended: %s", show(diags))
	}
}

func TestDataSandboxes(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	made := func(more object) string { return tf.made(tfSandbox, sandboxOf(more), nil).text("id") }
	a := made(object{"owner": "a", "labels": object{"suite": "one"}})
	w.clock.Advance(time.Second)
	b := made(object{"owner": "b", "labels": object{"suite": "two"}, "ttl": "10m"})
	w.clock.Advance(time.Second)
	gone := tf.made(tfSandbox, sandboxOf(object{"owner": "b"}), nil)
	if left, diags := tf.destroy(gone); left != nil {
		t.Fatal(show(diags))
	}
	w.clock.Advance(20 * time.Minute)
	tf = w.terraform()
	for name, c := range map[string]struct {
		filter object
		want   []any
	}{
		"all":       {object{}, list{a, b}},
		"owner":     {object{"owner": "a"}, list{a}},
		"labels":    {object{"labels": object{"suite": "two", "team": "payments"}}, list{b}},
		"statuses":  {object{"statuses": list{"expired"}}, list{b}},
		"profile":   {object{"profile_name": "none"}, list{}},
		"backend":   {object{"backend": "cloud", "owner": "b"}, list{b}},
		"destroyed": {object{"statuses": list{"destroyed"}}, list{gone.text("id")}},
		"closed":    {object{"include_destroyed": true, "owner": "b"}, list{b, gone.text("id")}},
	} {
		d, diags := tf.data("sandboxer_sandboxes", c.filter)
		tf.clean(diags)
		if got := fmt.Sprint(d.get("ids")); got != fmt.Sprint(c.want) {
			t.Errorf("%s: %s, want %v", name, got, c.want)
		}
	}
	_, diags := tf.data("sandboxer_sandboxes", object{"backend": "nowhere"})
	wantError(t, errorsOf(diags), "backend", "nowhere")
	w.cloud.Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken})
	d, diags := w.terraform().data("sandboxer_sandboxes", object{})
	if d == nil || len(diags) != 1 || !strings.Contains(show(diags), "cloud") || len(d.get("unreachable").(object)) != 1 || len(d.get("ids").(list)) != 2 {
		t.Errorf("unreachable: %s", show(diags))
	}
}

func TestDataProfile(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	made := tf.made(tfProfile, object{"name": "web", "limits": object{"memory": "1GiB"}, "requires": object{"memory_limit": "enforced"}}, nil)
	for name, c := range map[string]object{"name": {"name": "web"}, "revision": {"name": made.text("id")}, "document": {"document": made.text("document")}} {
		d, diags := tf.data(tfProfile, c)
		tf.clean(diags)
		if d.text("id") != made.text("id") || d.text("document") != made.text("document") {
			t.Errorf("%s: %s", name, d.text("id"))
		}
		if got := d.get("requirements").(object)["memory_limit"]; got != "enforced" {
			t.Errorf("memory_limit %v", got)
		}
	}
	if d, diags := tf.data(tfProfile, object{"name": "shell"}); d == nil || d.text("document") == "" {
		t.Errorf("built-in: %s", show(diags))
	}
	for at, c := range map[string]object{"name": {"name": "nothing"}, "document": {"document": "{\"name\": \"-\"}"}} {
		_, diags := tf.data(tfProfile, c)
		wantError(t, errorsOf(diags), at)
		if at == "name" {
			wantError(t, errorsOf(diags), at, "Unknown profile")
		}
	}
}

func TestDataBackend(t *testing.T) {
	w := newWorld(t)
	w.capabilities = sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassBestEffort, Reason: "soft"}}
	tf := w.terraform()
	d, diags := tf.data("sandboxer_backend", object{})
	tf.clean(diags)
	memory := d.get("capabilities").(object)["memory_limit"].(object)
	if d.text("name") != "cloud" || d.text("extension") != saasstub.Name || d.get("default") != true || d.get("usable") != nil || memory["class"] != "best_effort" || memory["reason"] != "soft" {
		t.Errorf("%v", plainValue(d.value))
	}
	if w.cloud.Calls()[saasstub.CallListBoxes] != 0 {
		t.Error("it used the network")
	}
	if d, diags = tf.data("sandboxer_backend", object{"name": "cloud", "probe": true}); d == nil || d.get("usable") != true {
		t.Errorf("probe: %s", show(diags))
	}
	w.cloud.Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken})
	if d, diags = w.terraform().data("sandboxer_backend", object{"probe": true}); d == nil || d.get("usable") != false || d.text("reason") == "" || d.text("advice") == "" {
		t.Errorf("probe of a broken one: %s", show(diags))
	}
	_, diags = tf.data("sandboxer_backend", object{"name": "nowhere"})
	wantError(t, errorsOf(diags), "name", "nowhere")
}
