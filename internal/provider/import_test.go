// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"testing"
	"time"
)

// What is imported and what was created are the same, and need no change.
func TestImportSandbox(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	c := sandboxOf(object{"labels": object{"suite": "checkout"}, "owner": "payments"})
	s := tf.made(tfSandbox, c, nil)
	for _, id := range []string{s.text("id"), "cloud/" + s.text("id")} {
		imported, diags := tf.importState(tfSandbox, id)
		tf.clean(diags)
		if found := differences(s.value, imported.value); len(found) > 0 {
			t.Errorf("%s: %v", id, found)
		}
		if p := tf.planned(tfSandbox, c, imported); p.action != "" {
			t.Errorf("plan: %s %v", p.action, differences(imported.value, p.planned))
		}
	}
	// A ttl that fits what was granted extends nothing.
	imported, _ := tf.importState(tfSandbox, s.text("id"))
	w.clock.Advance(time.Minute)
	c["ttl"] = "1h"
	if p := w.terraform().planned(tfSandbox, c, imported); p.action != "update" || p.unknown("expires_at") {
		t.Errorf("plan: %s", p.action)
	}
	// A name that means the same profile is no change either.
	byName := tf.made(tfSandbox, object{"profile": "shell"}, nil)
	imported, diags := tf.importState(tfSandbox, byName.text("id"))
	tf.clean(diags)
	if p := tf.planned(tfSandbox, object{"profile": "shell"}, imported); p.action != "" {
		t.Errorf("plan: %s", p.action)
	}
}

func TestImportSnapshotAndFork(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	_, snapshot, c := snapshotted(w, tf, nil)
	imported, diags := tf.importState(tfSnapshot, "cloud/"+snapshot.text("id"))
	tf.clean(diags)
	if found := differences(snapshot.value, imported.value); len(found) > 0 {
		t.Error(found)
	}
	if p := tf.planned(tfSnapshot, c, imported); p.action != "" {
		t.Errorf("plan: %s", p.action)
	}
	fork := tf.made(tfSandbox, object{"snapshot": snapshot.text("id")}, nil)
	imported, diags = tf.importState(tfSandbox, fork.text("id"))
	tf.clean(diags)
	if p := tf.planned(tfSandbox, object{"snapshot": snapshot.text("id")}, imported); p.action != "" {
		t.Errorf("plan: %s %v", p.action, differences(imported.value, p.planned))
	}
}

func TestImportProfile(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	c := object{
		"name": "web", "description": "d", "build": object{"context": "/src", "args": object{"a": "b"}}, "command": list{"serve", "-v"},
		"workdir": "/w", "user": "app", "env": object{"A": "1"}, "files": object{"/etc/a.conf": object{"content": "x", "mode": "0600"}},
		"setup": list{list{"a", "b"}, list{"c"}}, "ports": object{"web": 8080}, "publish": "host", "runtime": "runsc",
		"limits":  object{"cpus": 0.5, "memory": "1GiB", "pids": 64, "disk": "2GB", "wall": "3h"},
		"network": object{"egress": "deny", "allow": list{"api.example:443"}},
		"ready":   object{"http": object{"port": 8080, "path": "/healthz"}, "timeout": "30s"},
		"ttl":     object{"default": "45m", "max": "4h", "exempt": "because"}, "on_expiry": "snapshot",
		"requires": object{"egress_domain": "enforced"}, "labels": object{"a": "b"},
	}
	s := tf.made(tfProfile, c, nil)
	for _, id := range []string{"web", s.text("id"), s.text("document")} {
		imported, diags := tf.importState(tfProfile, id)
		tf.clean(diags)
		// The library holds absolute paths, which these are.
		if found := differences(s.value, imported.value); len(found) > 0 {
			t.Errorf("%.20s: %v", id, found)
		}
		if p := tf.planned(tfProfile, c, imported); p.action != "" {
			t.Errorf("plan: %s %v", p.action, differences(imported.value, p.planned))
		}
	}
	// What the library has lost, a sandbox that was made from it still has.
	plain := tf.made(tfProfile, object{"name": "plain"}, nil)
	tf.made(tfSandbox, object{"profile": plain.text("document")}, nil)
	if _, diags := tf.destroy(plain); len(errorsOf(diags)) > 0 {
		t.Fatal(show(diags))
	}
	imported, diags := tf.importState(tfProfile, plain.text("id"))
	tf.clean(diags)
	if imported.text("document") != plain.text("document") {
		t.Error("another document")
	}
}

func TestImportOfNothing(t *testing.T) {
	w := newWorld(t)
	tf := w.terraform()
	for kind, ids := range map[string][]string{
		tfSandbox:  {"nonsense", "sbx-", "cloud/snp-00000000000000000000"},
		tfSnapshot: {"nonsense", "sbx-00000000000000000000"},
		tfProfile:  {"nonsense", "x@sha256:00"},
	} {
		for _, id := range ids {
			if s, diags := tf.importState(kind, id); s != nil || len(errorsOf(diags)) == 0 {
				t.Errorf("%s was imported as %s", id, kind)
			}
		}
	}
	// Terraform says of a read that finds nothing that there is no such object.
	for kind, id := range map[string]string{tfSandbox: "sbx-00000000000000000000", tfSnapshot: "snp-00000000000000000000"} {
		if s, diags := tf.importState(kind, id); s != nil || len(errorsOf(diags)) > 0 {
			t.Errorf("%s: %v %s", id, s, show(diags))
		}
	}
	// Another fleet's sandbox is not ours.
	s := tf.made(tfSandbox, sandboxOf(nil), nil)
	w.block["fleet"] = "other"
	_, diags := w.terraform().importState(tfSandbox, "cloud/"+s.text("id"))
	wantError(t, errorsOf(diags), "", "belongs to the fleet")
}
