// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// full is a profile that sets a bit of everything, in each syntax.
var full = map[Format]string{
	YAML: `
name: e2e
image: ./images/app.tar
setup: [[/app/migrate], [/app/seed]]
ready: { http: { port: 8080, path: /healthz }, timeout: 30s }
ports: { web: 8080 }
env: &env { STAGE: e2e }
files: { /etc/app.conf: { content: "a\nb\n", mode: "0600" } }
limits: { cpus: 1, memory: 512MiB, pids: 256 }
network: { egress: deny, allow: ["api.example:443"] }
ttl: { default: 45m, max: 4h }
requires: { egress_domain: enforced }
labels: *env
`,
	JSON: `{
  "name": "e2e", "image": "./images/app.tar", "setup": [["/app/migrate"], ["/app/seed"]],
  "ready": {"http": {"port": 8080, "path": "/healthz"}, "timeout": "30s"}, "ports": {"web": 8080},
  "env": {"STAGE": "e2e"}, "files": {"/etc/app.conf": {"content": "a\nb\n", "mode": "0600"}},
  "limits": {"cpus": 1, "memory": "512MiB", "pids": 256}, "network": {"egress": "deny", "allow": ["api.example:443"]},
  "ttl": {"default": "45m", "max": "4h"}, "requires": {"egress_domain": "enforced"}, "labels": {"STAGE": "e2e"}, "template": null
}`,
	HCL: `
profile "e2e" {
  image   = "./images/app.tar"
  setup   = [["/app/migrate"], ["/app/seed"]]
  ready   = { http = { port = 8080, path = "/healthz" }, timeout = "30s" }
  ports   = { web = 8080 }
  env     = { STAGE = "e2e" }
  files = {
    "/etc/app.conf" = {
      content = <<-EOT
        a
        b
      EOT
      mode = "0600"
    }
  }
  limits   = { cpus = 1, memory = "512MiB", pids = 256 }
  network  = { egress = "deny", allow = ["api.example:443"] }
  ttl      = { default = "45m", max = "4h" }
  requires = { egress_domain = "enforced" }
  labels   = { STAGE = "e2e" }
}
`,
}

// The three syntaxes say the same.
func TestSyntaxesAreOneDocument(t *testing.T) {
	want := sdk.Profile{
		Name: "e2e", Image: "./images/app.tar", Setup: [][]string{{"/app/migrate"}, {"/app/seed"}},
		Ready: &sdk.Ready{HTTP: &sdk.HTTPCheck{Port: 8080, Path: "/healthz"}, Timeout: "30s"},
		Ports: map[string]int{"web": 8080}, Env: map[string]string{"STAGE": "e2e"},
		Files:  map[string]sdk.File{"/etc/app.conf": {Content: "a\nb\n", Mode: "0600"}},
		Limits: &sdk.Limits{CPUs: 1, Memory: "512MiB", Pids: 256}, Network: &sdk.Network{Egress: "deny", Allow: []string{"api.example:443"}},
		TTL: &sdk.TTL{Default: "45m", Max: "4h"}, Requires: map[sdk.Feature]sdk.Class{"egress_domain": "enforced"},
		Labels: map[string]string{"STAGE": "e2e"},
	}
	for format, content := range full {
		t.Run(string(format), func(t *testing.T) {
			got, err := Parse("p", format, []byte(content))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("bare HCL attributes", func(t *testing.T) {
		got, err := Parse("p", HCL, []byte("name = \"x\"\nlimits = { pids = 7 }\n"))
		if err != nil || got.Name != "x" || got.Limits.Pids != 7 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// Every fault is reported with its place, its attribute and what to do.
func TestFaultsHaveAPlace(t *testing.T) {
	cases := []struct {
		name   string
		format Format
		text   string
		want   []string // "LINE:COLUMN: PATH: part of the message"
	}{
		{"unknown key", YAML, "name: a\nlimitz: {}\n", []string{"2:1: limitz: did you mean \"limits\"?"}},
		{"unknown nested key", YAML, "name: a\nlimits:\n  cpu: 1\n", []string{"3:3: limits.cpu: did you mean \"cpus\"?"}},
		{"unknown feature", YAML, "name: a\nrequires: { egress_domains: enforced }\n", []string{"2:13: requires.egress_domains: did you mean \"egress_domain\"?"}},
		{"number for a string", YAML, "name: a\nenv:\n  PORT: 80\n", []string{"3:9: env.PORT: a string is wanted, this is an integer: put it in quotes"}},
		{"string for a number", YAML, "name: a\nports: { web: \"80\" }\n", []string{"2:15: ports.web: an integer is wanted, this is a string"}},
		{"fraction for a count", JSON, "{\"name\": \"a\", \"limits\": {\"pids\": 1.5}}", []string{"1:34: limits.pids: an integer is wanted, this is a number"}},
		{"missing name", YAML, "workdir: /a\n", []string{"1:1: name: is required"}},
		{"missing port", JSON, "{\n  \"name\": \"a\",\n  \"ready\": {\"tcp\": {}}\n}", []string{"3:20: ready.tcp.port: is required"}},
		{"several at once", YAML, "name: a\nworkdir: rel\nuser: a b\nlimits: { memory: 5 apples }\n", []string{
			"2:10: workdir: clean absolute path", "3:7: user: not a user", "4:19: limits.memory: not a size"}},
		{"shape and rules at once", YAML, "name: a\nlimitz: {}\nworkdir: rel\nready: { htp: {} }\n", []string{
			"2:1: limitz: no such attribute", "3:10: workdir: clean absolute path", "4:10: ready.htp: did you mean \"http\"?"}},
		{"semantic fault within a list", HCL, "name = \"a\"\nsetup = [\n  [\"/ok\"],\n  [],\n]\n", []string{"4:3: setup[1]: an empty command"}},
		{"semantic fault of a pair", YAML, "name: a\nimage: b\ntemplate: c\n", []string{"3:11: template: made from one thing"}},
		{"default over maximum", HCL, "name = \"a\"\nttl = { default = \"2h\", max = \"1h\" }\n", []string{"2:19: ttl.default: longer than ttl.max"}},
		{"key twice, YAML", YAML, "name: a\nname: b\n", []string{"2:1: set already in line 1"}},
		{"key twice, JSON", JSON, "{\"name\": \"a\",\n\"name\": \"b\"}", []string{"2:1: set already in line 1"}},
		{"key twice, HCL", HCL, "name = \"a\"\nenv = { A = \"1\", A = \"2\" }\n", []string{"2:18: set already in line 2"}},
		{"broken YAML", YAML, "name: a\nb: [\n", []string{"2:1: not valid YAML"}},
		{"broken JSON", JSON, "{\"name\": \"a\",\n  \"b\" 1}", []string{"2:7: not valid JSON"}},
		{"cut JSON", JSON, "{\"name\": \"a\"", []string{"1:13: ends too early"}},
		{"more after JSON", JSON, "{\"name\": \"a\"} {}", []string{"1:15: goes on after its end"}},
		{"broken HCL", HCL, "name = \"a\"\nb = [\n", []string{"3:1: Missing expression"}},
		{"two documents", YAML, "name: a\n---\nname: b\n", []string{"2:1: one file holds one profile"}},
		{"two blocks", HCL, "profile \"a\" {}\nprofile \"b\" {}\n", []string{"2:1: one file holds one profile"}},
		{"a block for an object", HCL, "profile \"a\" {\n  limits {\n  }\n}\n", []string{"2:3: limits: write limits = { … }"}},
		{"empty file", YAML, "", []string{"1:1: the document is empty"}},
		{"no object", YAML, "- a\n", []string{"1:1: an object is wanted, this is a list"}},
		{"not a number", YAML, "name: a\nlimits: { cpus: .nan }\n", []string{"2:17: limits.cpus: not a finite number"}},
		{"foreign tag", YAML, "name: !!binary aGk=\n", []string{"1:7: the tag !!binary is not wanted here"}},
		{"interpolation", HCL, "name = \"${a}\"\n", []string{"1:9: no interpolation"}},
		{"reference", HCL, "name = foo\n", []string{"1:8: put text in quotes"}},
		{"function", HCL, "name = file(\"/etc/passwd\")\n", []string{"1:12: no function calls"}},
		{"loop", HCL, "name = \"a\"\nsetup = [\nfor x in [[\"a\"]]: x]\n", []string{"3:1: no for expressions"}},
		{"null in a map", YAML, "name: a\nenv: { A: null }\n", []string{"2:11: env.A: null is not wanted"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f", c.format, []byte(c.text))
			var faults fault.Faults
			if !errors.As(err, &faults) {
				t.Fatalf("error %v, want faults", err)
			}
			if len(faults) != len(c.want) {
				t.Fatalf("faults:\n%s\nwant %q", err, c.want)
			}
			for i, want := range c.want {
				parts := strings.SplitN(want, ": ", 3)
				at, rest := parts[0], want[len(parts[0])+2:]
				f := faults[i]
				if got := fmt.Sprintf("%d:%d", f.Line, f.Column); got != at {
					t.Errorf("at %s, want %s: %s", got, at, f.Message)
				}
				if f.Path != "" {
					rest = strings.TrimPrefix(rest, f.Path+": ")
				}
				if !strings.Contains(f.Message, rest) {
					t.Errorf("fault %q, want %q", f.Error(), want)
				}
			}
		})
	}
}

// A small document that stands for a large one is refused, and soon.
func TestBombsAreBounded(t *testing.T) {
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	cases := []struct {
		name   string
		format Format
		text   string
		want   string
	}{
		{"aliases of aliases", YAML, laughs, "more than 200000 values"},
		{"an alias to itself", YAML, "a: &a [*a]\n", ""},
		{"a merge of itself", YAML, "a: &a\n  <<: *a\n", ""},
		{"deep YAML", YAML, strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "nested deeper"},
		{"deep JSON", JSON, strings.Repeat("[", 1<<20), "nested deeper"},
		{"deep HCL", HCL, "a = " + strings.Repeat("[", 1<<16), "nested deeper"},
		{"signs", HCL, "a = " + strings.Repeat("-", 1<<16), "no operators"},
		{"negations", HCL, "a = " + strings.Repeat("!", 1<<16), "only plain values"},
		{"large exponent", HCL, "name = \"a\"\nlimits = { cpus = 1e999999999 }", ""},
		{"too large for HCL", HCL, strings.Repeat("#", 1<<20+1), "larger than 1 MiB"},
		{"too large", YAML, strings.Repeat("#", sandbox.MaxDocument+1), "larger than"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f", c.format, []byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %.300v, want %q", err, c.want)
			}
		})
	}
}

// Merge keys follow YAML's merge type: own keys first, earlier sources next.
func TestMergeKeys(t *testing.T) {
	got, err := Parse("f", YAML, []byte("name: a\nenv: { <<: [{A: \"1\", B: \"1\"}, {A: \"2\", C: \"2\"}], B: \"0\" }\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "0", "C": "2"}, got.Env); diff != "" {
		t.Error(diff)
	}
}

// Paths are relative to the file of the profile; references stay.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	cases := []struct{ text, want string }{
		{`{"name": "a", "image": "./app.tar"}`, filepath.Join(dir, "app.tar")},
		{`{"name": "a", "image": "../app.tar"}`, filepath.Join(filepath.Dir(dir), "app.tar")},
		{`{"name": "a", "image": "/srv/app.tar"}`, "/srv/app.tar"},
		{`{"name": "a", "image": "registry.example/app:1"}`, "registry.example/app:1"},
		{`{"name": "a", "image": "app"}`, "app"},
		{`{"name": "a", "build": {"context": "."}}`, dir},
		{`{"name": "a", "build": {"context": "https://git.example/app.git"}}`, "https://git.example/app.git"},
		{`{"name": "a", "compose": {"files": ["c.yaml"]}}`, filepath.Join(dir, "c.yaml")},
		{`{"name": "a", "machine": {"image": "m.qcow2"}}`, filepath.Join(dir, "m.qcow2")},
	}
	for _, c := range cases {
		t.Run(c.text, func(t *testing.T) {
			file := filepath.Join(dir, "p.json")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Image
			switch {
			case p.Build != nil:
				got = p.Build.Context
			case p.Compose != nil:
				got = p.Compose.Files[0]
			case p.Machine != nil:
				got = p.Machine.Image
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for format, text := range full {
		f.Add(string(format), text)
	}
	f.Add("yaml", "a: &a [*a, {<<: *a}]")
	f.Add("hcl", "a = <<EOT\nx\nEOT\n")
	f.Add("json", `{"name":"a","limits":{"cpus":1e400}}`)
	f.Fuzz(func(t *testing.T, format, text string) {
		p, err := Parse("f", Format(format), []byte(text))
		var faults fault.Faults
		if err != nil {
			if !errors.As(err, &faults) || faults[0].Line < 0 {
				t.Fatalf("error without faults: %v", err)
			}
			return
		}
		again, err := sandbox.ParseDocument(sandbox.Document(p))
		if err != nil {
			t.Fatalf("the document of a valid profile is not valid: %v", err)
		}
		if sandbox.Revision(again) != sandbox.Revision(p) {
			t.Fatal("the revision changes with a round trip")
		}
	})
}
