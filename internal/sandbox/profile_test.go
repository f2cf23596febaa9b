// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func full() sdk.Profile {
	return sdk.Profile{
		Name: "e2e", Description: "the checkout suite", Image: "./images/app.tar", Command: []string{"/app/serve"}, Workdir: "/app",
		User: "1000:1000", Env: map[string]string{"STAGE": "e2e"}, Files: map[string]sdk.File{"/etc/app.conf": {Content: "a=1", Mode: "0600"}},
		Setup: [][]string{{"/app/migrate"}, {"/app/seed"}}, Ports: map[string]int{"web": 8080}, Publish: "host",
		Limits:   &sdk.Limits{CPUs: 1, Memory: "512MiB", Pids: 256, Disk: "2GB", Wall: "8h"},
		Network:  &sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"api.example:443", "10.0.0.0/8:5432", "*.example.org:443", "[::1]:80"}},
		Ready:    &sdk.Ready{HTTP: &sdk.HTTPCheck{Port: 8080, Path: "/healthz"}, Timeout: "30s"},
		TTL:      &sdk.TTL{Default: "45m", Max: "4h"},
		OnExpiry: sdk.OnExpirySnapshot, Requires: map[sdk.Feature]sdk.Class{sdk.FeatureEgressDomain: sdk.ClassEnforced},
		Labels: map[string]string{"suite": "checkout"},
	}
}

func TestValidProfiles(t *testing.T) {
	for name, p := range map[string]sdk.Profile{"least": {Name: "x"}, "full": full(), "pulumi's name": {Name: "myBox-8644200"}} {
		if found := ValidateProfile(p); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

func TestFaultsAreOnTheirAttribute(t *testing.T) {
	cases := map[string]func(p *sdk.Profile){
		"name":            func(p *sdk.Profile) { p.Name = "-x" },
		"build":           func(p *sdk.Profile) { p.Build = &sdk.BuildSource{Context: "."} },
		"build.context":   func(p *sdk.Profile) { p.Image = ""; p.Build = &sdk.BuildSource{} },
		"compose.files":   func(p *sdk.Profile) { p.Image = ""; p.Compose = &sdk.ComposeSpec{} },
		"command[0]":      func(p *sdk.Profile) { p.Command = []string{""} },
		"workdir":         func(p *sdk.Profile) { p.Workdir = "app" },
		"user":            func(p *sdk.Profile) { p.User = "a:b:c" },
		"env.1X":          func(p *sdk.Profile) { p.Env = map[string]string{"1X": ""} },
		"files./etc/../x": func(p *sdk.Profile) { p.Files = map[string]sdk.File{"/etc/../x": {}} },
		"files./x.mode":   func(p *sdk.Profile) { p.Files = map[string]sdk.File{"/x": {Mode: "rw"}} },
		"files": func(p *sdk.Profile) {
			p.Files = map[string]sdk.File{"/x": {Content: strings.Repeat("x", MaxFileBytes+1)}}
		},
		"setup[1]":               func(p *sdk.Profile) { p.Setup[1] = nil },
		"ports.web":              func(p *sdk.Profile) { p.Ports["web"] = 0 },
		"ports.zweit":            func(p *sdk.Profile) { p.Ports["zweit"] = 8080 },
		"publish":                func(p *sdk.Profile) { p.Publish = "world" },
		"limits.cpus":            func(p *sdk.Profile) { p.Limits.CPUs = -1 },
		"limits.memory":          func(p *sdk.Profile) { p.Limits.Memory = "512" },
		"limits.disk":            func(p *sdk.Profile) { p.Limits.Disk = "-1GB" },
		"limits.pids":            func(p *sdk.Profile) { p.Limits.Pids = -4 },
		"limits.wall":            func(p *sdk.Profile) { p.Limits.Wall = "forever" },
		"network.egress":         func(p *sdk.Profile) { p.Network = &sdk.Network{Egress: "some"} },
		"network.allow":          func(p *sdk.Profile) { p.Network.Egress = sdk.EgressOpen },
		"network.allow[0]":       func(p *sdk.Profile) { p.Network.Allow[0] = "api.example:99999" },
		"network.allow[1]":       func(p *sdk.Profile) { p.Network.Allow[1] = "a b" },
		"ready":                  func(p *sdk.Profile) { p.Ready.TCP = &sdk.TCPCheck{Port: 1} },
		"ready.http.path":        func(p *sdk.Profile) { p.Ready.HTTP.Path = "healthz" },
		"ready.timeout":          func(p *sdk.Profile) { p.Ready.Timeout = "0s" },
		"ready.log":              func(p *sdk.Profile) { p.Ready = &sdk.Ready{Log: "("} },
		"ttl.default":            func(p *sdk.Profile) { p.TTL.Default = "5h" },
		"on_expiry":              func(p *sdk.Profile) { p.OnExpiry = "keep" },
		"requires.nonsense":      func(p *sdk.Profile) { p.Requires = map[sdk.Feature]sdk.Class{"nonsense": sdk.ClassEnforced} },
		"requires.exec":          func(p *sdk.Profile) { p.Requires = map[sdk.Feature]sdk.Class{sdk.FeatureExec: "strong"} },
		"labels.dev.sandboxer/x": func(p *sdk.Profile) { p.Labels["dev.sandboxer/x"] = "" },
		"labels.a":               func(p *sdk.Profile) { p.Labels["a"] = "\x1b[31m" },
	}
	for path, breakIt := range cases {
		p := full()
		breakIt(&p)
		found := ValidateProfile(p)
		if !slices.ContainsFunc(found, func(f Problem) bool { return f.Path == path }) {
			t.Errorf("%s: found %v", path, found)
		}
	}
}

func TestNoSecretValueInAMessage(t *testing.T) {
	found := ValidateEnv("secrets", map[string]string{"TOKEN": "canary\x00", "BAD-NAME": "canary"})
	if len(found) != 2 || strings.Contains(fmt.Sprint(found), "canary") {
		t.Error(found)
	}
}

func TestDocumentIsCanonical(t *testing.T) {
	p := full()
	document := Document(p)
	back, err := ParseDocument(document)
	if err != nil || Document(back) != document || Revision(back) != Revision(p) {
		t.Fatalf("%v\n%s\n%s", err, document, Document(back))
	}
	same := p
	same.Network = &sdk.Network{Egress: p.Network.Egress, Allow: slices.Clone(p.Network.Allow)}
	if Revision(same) != Revision(p) {
		t.Error("an equal profile has another revision")
	}
	plain, explicit := sdk.Profile{Name: "x"}, sdk.Profile{Name: "x", OnExpiry: sdk.OnExpiryDestroy, Publish: "loopback", Network: &sdk.Network{Egress: sdk.EgressNone}, Limits: &sdk.Limits{}, TTL: &sdk.TTL{}}
	if Revision(plain) != Revision(explicit) {
		t.Errorf("saying a default changes the revision: %s, %s", Document(plain), Document(explicit))
	}
	for name, change := range map[string]func(p *sdk.Profile){
		"command": func(p *sdk.Profile) { p.Command = append(p.Command, "-v") },
		"env":     func(p *sdk.Profile) { p.Env = map[string]string{"STAGE": "prod"} },
		"setup":   func(p *sdk.Profile) { p.Setup = [][]string{{"/app/seed"}, {"/app/migrate"}} },
	} {
		changed := full()
		change(&changed)
		if Revision(changed) == Revision(p) {
			t.Errorf("a changed %s keeps the revision", name)
		}
	}
}

func TestParseDocumentRefuses(t *testing.T) {
	for name, document := range map[string]string{
		"an unknown field": `{"name":"x","colour":"red"}`,
		"more after it":    `{"name":"x"}{"name":"y"}`,
		"nothing":          "",
		"a wrong type":     `{"name":1}`,
		"a fault":          `{"name":"x","user":"a b"}`,
	} {
		if _, err := ParseDocument(document); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func FuzzParseDocument(f *testing.F) {
	f.Add(Document(full()))
	f.Add(`{"name":"x"}`)
	f.Add(`{"name":"x","limits":{"cpus":1e309}}`)
	f.Fuzz(func(t *testing.T, document string) {
		p, err := ParseDocument(document)
		if err != nil {
			return
		}
		again, err := ParseDocument(Document(p))
		if err != nil {
			t.Fatalf("its canonical form is refused: %v", err)
		}
		if Document(again) != Document(p) {
			t.Fatalf("not canonical: %s, %s", Document(p), Document(again))
		}
	})
}

func TestRequirements(t *testing.T) {
	paths := map[string]Requirement{}
	for _, need := range Requirements(full()) {
		paths[need.Path] = need
	}
	for path, feature := range map[string]sdk.Feature{
		"image": sdk.FeatureImageFile, "limits.cpus": sdk.FeatureCPULimit, "limits.memory": sdk.FeatureMemoryLimit, "limits.pids": sdk.FeaturePidsLimit,
		"limits.disk": sdk.FeatureDiskLimit, "network.egress": sdk.FeatureEgressDeny, "network.allow[0]": sdk.FeatureEgressDomain,
		"network.allow[1]": sdk.FeatureEgressCIDR, "network.allow[2]": sdk.FeatureEgressDomain, "network.allow[3]": sdk.FeatureEgressCIDR,
		"ports": sdk.FeaturePorts, "files": sdk.FeatureFiles, "setup": sdk.FeatureExec, "on_expiry": sdk.FeatureExpirySnapshot,
		"requires.egress_domain": sdk.FeatureEgressDomain,
	} {
		if paths[path].Feature != feature {
			t.Errorf("%s needs %q, want %q", path, paths[path].Feature, feature)
		}
	}
	if need := Requirements(sdk.Profile{Name: "x", Image: "abc.de:443"})[0]; need.Feature != sdk.FeatureImagePull {
		t.Errorf("a reference needs %s", need.Feature)
	}
}

func TestEverySourceIsARequirement(t *testing.T) {
	for path, p := range map[string]sdk.Profile{
		"build":    {Build: &sdk.BuildSource{Context: "."}},
		"compose":  {Compose: &sdk.ComposeSpec{Files: []string{"a.yml"}}},
		"machine":  {Machine: &sdk.MachineSpec{Image: "a.qcow2"}},
		"template": {Template: "base"},
		"runtime":  {Runtime: "kata"},
	} {
		if !slices.ContainsFunc(Requirements(p), func(r Requirement) bool { return r.Path == path }) {
			t.Errorf("%s asks for nothing", path)
		}
	}
}

func TestCheckRequirements(t *testing.T) {
	need := []Requirement{{Path: "limits.memory", Feature: sdk.FeatureMemoryLimit, Class: sdk.ClassBestEffort}}
	for name, c := range map[string]struct {
		found                 sdk.Capabilities
		mismatches, undecided int
	}{
		"left out":              {sdk.Capabilities{}, 1, 0},
		"stronger":              {sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassEnforced}}, 0, 0},
		"equal":                 {sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassBestEffort}}, 0, 0},
		"weaker":                {sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassUnverifiable}}, 1, 0},
		"up to the machine":     {sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassUnsupported, DependsOnMachine: true}}, 0, 1},
		"nonsense of outside":   {sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: "super"}}, 1, 0},
		"strong on any machine": {sdk.Capabilities{sdk.FeatureMemoryLimit: {Class: sdk.ClassBestEffort, DependsOnMachine: true}}, 0, 0},
	} {
		mismatches, undecided := CheckRequirements(need, c.found)
		if len(mismatches) != c.mismatches || len(undecided) != c.undecided {
			t.Errorf("%s: %v, %v", name, mismatches, undecided)
		}
	}
}

func TestResolveLife(t *testing.T) {
	h := time.Hour
	for name, c := range map[string]struct {
		asked    time.Duration
		ttl      *sdk.TTL
		wall     string
		provider Life
		want     Life
		refused  bool
	}{
		"nobody says":                     {want: Life{DefaultTTL, DefaultMaxTTL}},
		"the caller says":                 {asked: 2 * h, ttl: &sdk.TTL{Default: "1h"}, want: Life{2 * h, DefaultMaxTTL}},
		"the profile says":                {ttl: &sdk.TTL{Default: "3h", Max: "4h"}, provider: Life{TTL: 5 * h, Max: 8 * h}, want: Life{3 * h, 4 * h}},
		"the provider says":               {provider: Life{TTL: 5 * h, Max: 8 * h}, want: Life{5 * h, 8 * h}},
		"over the profile's maximum":      {asked: 5 * h, ttl: &sdk.TTL{Max: "4h"}, refused: true},
		"over the provider's maximum":     {asked: 9 * h, ttl: &sdk.TTL{Max: "48h"}, provider: Life{Max: 8 * h}, refused: true},
		"a profile raises the default":    {asked: 40 * h, ttl: &sdk.TTL{Max: "48h"}, want: Life{40 * h, 48 * h}},
		"an exemption passes the policy":  {asked: 40 * h, ttl: &sdk.TTL{Max: "48h", Exempt: "soak test"}, provider: Life{Max: 8 * h}, want: Life{40 * h, 48 * h}},
		"wall bounds it":                  {asked: 3 * h, wall: "2h", refused: true},
		"a default is cut to the maximum": {ttl: &sdk.TTL{Max: "30m"}, want: Life{h / 2, h / 2}},
	} {
		p := sdk.Profile{Name: "x", TTL: c.ttl}
		if c.wall != "" {
			p.Limits = &sdk.Limits{Wall: c.wall}
		}
		got, err := ResolveLife(c.asked, p, c.provider)
		if c.refused != (err != nil) || (!c.refused && got != c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestAttributionFromCI(t *testing.T) {
	env := map[string]string{
		"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "acme/shop", "GITHUB_WORKFLOW": "e2e\x1b[31m", "GITHUB_ACTOR": "mo",
		"GITHUB_SERVER_URL": "https://git.example", "GITHUB_RUN_ID": "42", "USER": "runner",
	}
	got := Attribution{Owner: "payments"}.Fill(func(name string) string { return env[name] })
	want := Attribution{Owner: "payments", Task: "e2e[31m", Run: "https://git.example/acme/shop/actions/runs/42", Actor: "mo"}
	if got != want {
		t.Errorf("%+v", got)
	}
	if got := (Attribution{}).Fill(func(name string) string { return map[string]string{"USER": "mo"}[name] }); got != (Attribution{Actor: "mo"}) {
		t.Errorf("outside CI: %+v", got)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"512MiB": 512 << 20, "2GB": 2e9, "1.5GiB": 3 << 29, "4096B": 4096, "1 KiB": 1024} {
		if got, err := sdk.ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d %v", text, got, err)
		}
	}
	for _, text := range []string{"", "512", "MiB", "-1GB", "0B", "1e30GB", "NaNMB", "1XB", "infGB"} {
		if got, err := sdk.ParseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestProfileJSONHasOneNamePerField(t *testing.T) {
	var fields map[string]any
	if err := json.Unmarshal([]byte(Document(full())), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"name", "image", "command", "ready", "limits", "network", "ttl", "on_expiry", "requires", "labels"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("the document lacks %q", name)
		}
	}
}

// FuzzUnits holds the readers of durations and sizes to their contract: what
// they accept is more than zero, and what they refuse is named within bounds.
func FuzzUnits(f *testing.F) {
	for _, seed := range []string{"45m", "1h30m", "-1s", "9223372036854775807ns", "512MiB", "2GB", "0.1KiB", "1e400B", "NaNB", "InfTiB", "0x1p-2GiB", " 1 GiB", "9007199254740993TB"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDuration(text)
		if err == nil && d <= 0 || err != nil && len(err.Error()) > 400 {
			t.Errorf("%q: %s, %v", text, d, err)
		}
		size, err := sdk.ParseSize(text)
		if err == nil && size <= 0 || err != nil && len(err.Error()) > 400 {
			t.Errorf("%q: %d, %v", text, size, err)
		}
	})
}

// FuzzLabels holds the check of labels to its contract: labels that it
// accepts survive the way through a backend's own labels.
func FuzzLabels(f *testing.F) {
	f.Add("suite", "checkout")
	f.Add("", "")
	f.Add("sandboxer.dev/id", "sbx-00000000000000000000")
	f.Add("a=b", "c\nd")
	f.Add("\xff", "\x00")
	f.Add("é", strings.Repeat("x", 5000))
	f.Fuzz(func(t *testing.T, key, value string) {
		labels := map[string]string{key: value}
		if len(ValidateLabels("labels", labels)) > 0 {
			return
		}
		identity := sdk.Identity{ID: "sbx-00000000000000000000", Fleet: "f", Incarnation: 1, CreatedAt: time.Unix(0, 0).UTC(), Labels: labels}
		back, ok, err := sdk.IdentityFromLabels(identity.ToLabels())
		if !ok || err != nil || back.Labels[key] != value || len(back.Labels) != 1 {
			t.Errorf("%q=%q came back as %q, %v", key, value, back.Labels, err)
		}
	})
}
