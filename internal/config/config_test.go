// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func write(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The default backend goes by the platform.
func TestDefaultBackend(t *testing.T) {
	for platform, want := range map[string]string{
		"linux/amd64": "local", "linux/arm64": "local", "linux/riscv64": "docker", "darwin/arm64": "docker", "windows/amd64": "docker",
	} {
		goos, goarch, _ := strings.Cut(platform, "/")
		if got := defaultBackend(goos, goarch); got != want {
			t.Errorf("%s: %s, want %s", platform, got, want)
		}
	}
}

// Each source overrides the ones before it, attribute by attribute, and a
// backend as a whole.
func TestSourcesOverrideInOrder(t *testing.T) {
	root := t.TempDir()
	dir := func(name string) string { return filepath.Join(root, name) }
	environment := map[string]string{"XDG_CONFIG_HOME": dir("xdg"), "XDG_STATE_HOME": dir("state")}
	opts := LoadOptions{Getenv: func(name string) string { return environment[name] }, Dir: dir("checkout"), System: dir("system")}
	load := func() Config {
		t.Helper()
		config, err := Load(opts)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	if got := load().Fleet; got != "default" {
		t.Errorf("defaults: %q", got)
	}
	write(t, filepath.Join(dir("system"), "sandboxer.hcl"), `
fleet = "system"
owner = "system"
task  = "system"
run   = "system"
max_ttl = "4h"
backends = { a = { docker = { host = "system" } }, b = { docker = { host = "system" } } }
`)
	write(t, filepath.Join(dir("xdg"), "sandboxer", "sandboxer.hcl"), "fleet = \"user\"\nowner = \"user\"\ntask = \"user\"\nbackends = { b = { e2b = {} } }\n")
	write(t, filepath.Join(dir("checkout"), "sandboxer.hcl"), "fleet = \"checkout\"\nowner = \"checkout\"\n")
	environment["SANDBOXER_CONFIG"] = write(t, dir("env.hcl"), "fleet = \"env file\"\n")
	environment["SANDBOXER_FLEET"] = "environment"
	environment["SANDBOXER_DEFAULT_TTL"] = "10m"
	want := Config{
		Fleet: "environment", Owner: "checkout", Task: "user", Run: "system", DefaultTTL: 10 * time.Minute, MaxTTL: 4 * time.Hour,
		Backends: map[string]Backend{"a": {Extension: "docker", Config: []byte(`{"host":"system"}`)}, "b": {Extension: "e2b", Config: []byte(`{}`)}},
	}
	if diff := cmp.Diff(want, load()); diff != "" {
		t.Error(diff)
	}
	opts.File = write(t, dir("named.hcl"), "fleet = \"named\"\n")
	if got := load().Fleet; got != "named" {
		t.Errorf("named file: %q", got)
	}
	opts.File = dir("missing.hcl")
	if _, err := Load(opts); err == nil {
		t.Error("a named file that is missing is no error")
	}
}

// What decides which program is executed does not count from a checkout, and
// does from everywhere else.
func TestCheckoutRunsNoProgram(t *testing.T) {
	cases := map[string]string{
		`state_dir = "s"`:                                                     "state_dir",
		`max_committed = 1000`:                                                "max_committed",
		`max_cost_per_hour = 1000`:                                            "max_cost_per_hour",
		`prices = { cloud = {} }`:                                             "prices",
		`extension_dirs = ["bin"]`:                                            "extension_dirs",
		`docker = { ssh = { passphrase_command = ["./x"] } }`:                 "docker.ssh.passphrase_command",
		`e2b = { api_key_command = ["./x"] }`:                                 "e2b.api_key_command",
		`e2b = { api_url = "https://api.example" }`:                           "e2b.api_url",
		`modal = { server_url = "https://api.example:443" }`:                  "modal.server_url",
		`modal = { config_file = "modal.toml" }`:                              "modal.config_file",
		`modal = { secrets = ["production"] }`:                                "modal.secrets",
		`e2b = { domain = "example.org" }`:                                    "e2b.domain",
		`e2b = { sandbox_url = "https://x.example" }`:                         "e2b.sandbox_url",
		`e2b = { api_key_file = "../key" }`:                                   "e2b.api_key_file",
		`local = { state_dir = "s" }`:                                         "local.state_dir",
		`backends = { a = { extension = "acme", path = "./acme" } }`:          "backends.a.path",
		`backends = { a = { docker = {}, env = ["AWS_SECRET_ACCESS_KEY"] } }`: "backends.a.env",
		`backends = { a = { extension = "local", config_json = jsonencode({ state_dir = "s" }) } }`: "backends.a.config_json.state_dir",
	}
	for text, attribute := range cases {
		t.Run(attribute, func(t *testing.T) {
			root := t.TempDir()
			file := write(t, filepath.Join(root, "sandboxer.hcl"), text)
			opts := LoadOptions{Getenv: func(string) string { return "" }, Dir: root, System: filepath.Join(root, "none")}
			_, err := Load(opts)
			var faults fault.Faults
			if !errors.As(err, &faults) || len(faults) != 1 || faults[0].Path != attribute || faults[0].File != file || faults[0].Line != 1 ||
				!strings.Contains(faults[0].Message, "--config") {
				t.Fatalf("%v, want a fault on %s that names --config", err, attribute)
			}
			opts.File = file
			if _, err := Load(opts); err != nil {
				t.Errorf("the same file, named: %v", err)
			}
			opts.File = ""
			opts.Getenv = func(name string) string { return map[string]string{"SANDBOXER_CONFIG": file}[name] }
			if _, err := Load(opts); err != nil {
				t.Errorf("the same file, named in the environment: %v", err)
			}
		})
	}
}

// Faults name file, line, column and attribute.
func TestFaults(t *testing.T) {
	cases := []struct{ text, want string }{
		{"flet = \"a\"", `f.hcl:1:1: flet: no such attribute (did you mean "fleet"?)`},
		{"\nfleet = 1", "f.hcl:2:9: fleet: a string is wanted, this is number"},
		{"fleet = \"\"", "f.hcl:1:9: fleet: an empty string is not wanted"},
		{"default_ttl = \"soon\"", "f.hcl:1:15: default_ttl: \"soon\" is not a duration"},
		{"max_committed = \"5\"", "f.hcl:1:17: max_committed: a number is wanted, this is string"},
		{"max_committed = 0", "f.hcl:1:17: max_committed: \"0\" is not more than zero"},
		{"max_committed = -1", "f.hcl:1:17: max_committed: -1 is not an amount of US dollars"},
		{"prices = { a = 1 }", "f.hcl:1:10: prices.a: an object is wanted"},
		{"prices = { a = { cpu_hours = 1 } }", `f.hcl:1:10: prices.a: no such attribute as "cpu_hours" (did you mean "cpu_hour"?)`},
		{"prices = { a = { cpu_hour = \"free\" } }", "f.hcl:1:10: prices.a: numbers are wanted"},
		{"prices = { a = { cpu_hour = -1 } }", "prices.a.cpu_hour: -1 is not an amount"},
		{"prices = { a = { cpus = 1e9 } }", "prices.a.cpus: 1e+09 is not a number of CPUs"},
		{"prices = { a = { memory = \"much\" } }", "prices.a.memory: "},
		{"docker {\n}", "f.hcl:1:1: docker: a block is not wanted here: write docker = { … }"},
		{"docker = 1", "f.hcl:1:10: docker: an object is wanted"},
		{"backends = {\n a = { dokcer = {} }\n}", `f.hcl:2:2: backends.a.dokcer: no such attribute (did you mean "docker"?)`},
		{"backends = {\n a = {}\n}", "f.hcl:2:2: backends.a: no extension is named"},
		{"backends = {\n a = { docker = {}, e2b = {} }\n}", "f.hcl:2:2: backends.a.e2b: a backend has one extension"},
		{"backends = { a = { extension = \"acme\", config_json = \"[]\" } }", "f.hcl:1:14: backends.a.config_json: not a JSON object"},
		{"backends = { a = { extension = \"acme\", sha256 = \"x\" } }", "f.hcl:1:14: backends.a.sha256: not a SHA-256 digest"},
		{"backends = { docker = { docker = {} } }\ndocker = {}", "f.hcl:2:10: docker: a backend of this name is configured twice"},
		{"fleet = env(\"X\")", "f.hcl:1:9: Call to unknown function"},
		{"fleet = \"${x}\"", "f.hcl:1:10: only plain values"},
		{"fleet = [for x in [1]: x]", "f.hcl:1:10: only plain values"},
		{"a = " + strings.Repeat("[", 1<<16), "nested deeper"},
	}
	for _, c := range cases {
		_, err := Parse("f.hcl", []byte(c.text), true)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %.300v, want %q", c.text, err, c.want)
		}
	}
}

// The provider block of the documentation is a file.
func TestDocumentedBlock(t *testing.T) {
	got, err := Parse("/etc/x/sandboxer.hcl", []byte(`
fleet       = "ci-main"
backend     = "build1"
default_ttl = "1h"
max_ttl     = "8h"
owner       = "payments"
state_dir   = "state"
profile_dirs = ["profiles", "/srv/profiles"]
backends = {
  build1 = { docker = { host = "ssh://ci@build-1" } }
  lab    = { compose_ssh = { hosts = ["ssh://ci@sandboxer01"] } }
  acme   = { extension = "acme", config_json = jsonencode({ region = "eu" }), path = "acme", env = ["ACME_KEY"] }
}
e2b   = {}
local = { state_dir = null }
`), true)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Fleet: "ci-main", Backend: "build1", DefaultTTL: time.Hour, MaxTTL: 8 * time.Hour, Owner: "payments", StateDir: "/etc/x/state",
		ProfileDirs: []string{"/etc/x/profiles", "/srv/profiles"},
		Backends: map[string]Backend{
			"build1": {Extension: "docker", Config: []byte(`{"host":"ssh://ci@build-1"}`)},
			"lab":    {Extension: "compose-ssh", Config: []byte(`{"hosts":["ssh://ci@sandboxer01"]}`)},
			"acme":   {Extension: "acme", Config: []byte(`{"region":"eu"}`), Path: "/etc/x/acme", Env: []string{"ACME_KEY"}},
			"e2b":    {Extension: "e2b", Config: []byte(`{}`)},
			"local":  {Extension: "local", Config: []byte(`{}`)},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestComplete(t *testing.T) {
	home := func(name string) string {
		return map[string]string{"HOME": "/home/ada", "XDG_STATE_HOME": "relative"}[name]
	}
	docker, e2b := Backend{Extension: "docker"}, Backend{Extension: "e2b"}
	cases := []struct {
		name    string
		given   Config
		backend string // the default
		fault   string // the attribute
	}{
		{"nothing configured: the platform's", Config{}, DefaultBackend(), ""},
		{"one configured: that", Config{Backends: map[string]Backend{"a": docker}}, "a", ""},
		{"several, none named: none", Config{Backends: map[string]Backend{"a": docker, "b": e2b}}, "", ""},
		{"several with the platform's: that", Config{Backends: map[string]Backend{"a": docker, DefaultBackend(): {Extension: DefaultBackend()}}}, DefaultBackend(), ""},
		{"the embedded one's name: its backend", Config{Backend: "local", Backends: map[string]Backend{"a": docker}}, "local", ""},
		{"another extension's name that is not configured", Config{Backend: "e2b", Backends: map[string]Backend{"a": docker}}, "", "backend"},
		{"an unknown name", Config{Backend: "x", Backends: map[string]Backend{"a": docker}}, "", "backend"},
		{"an unknown name and nothing configured", Config{Backend: "x"}, "", "backend"},
		{"default over maximum", Config{DefaultTTL: 2, MaxTTL: 1}, "", "default_ttl"},
		{"fleet", Config{Fleet: "a b"}, "", "fleet"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.given.Complete(home)
			if c.fault != "" {
				var invalid *sdk.Error
				if !errors.As(err, &invalid) || invalid.Path != c.fault {
					t.Errorf("%v, want a fault on %s", err, c.fault)
				}
				return
			}
			if err != nil || got.Backend != c.backend || got.StateDir != "/home/ada/.local/state/sandboxer" {
				t.Errorf("%+v, %v", got, err)
			}
			if _, found := got.Backends[got.Backend]; got.Backend != "" && got.Backend != ExtensionDocker && !found {
				t.Errorf("the default backend %q is not configured", got.Backend)
			}
		})
	}
}

// A backend that is not there is told of in the same words, whoever misses it.
func TestNoSuchBackend(t *testing.T) {
	nothing := func(string) string { return "" }
	given := Config{StateDir: t.TempDir(), Backends: map[string]Backend{"local": {Extension: "local"}}}
	const want = `there is no backend "docker" (configured: local)`
	named := given
	named.Backend = "docker"
	if _, err := named.Complete(nothing); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the configuration: %v", err)
	}
	runtime, err := Open(given.With("docker"), Options{Getenv: nothing})
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	if _, err := runtime.Registry.Open(t.Context(), "docker"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the registry: %v", err)
	}
	if _, err := runtime.Manager.BackendName("docker"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the default: %v", err)
	}
	if _, err := runtime.Manager.List(t.Context(), lifecycle.ListOptions{Backend: "docker"}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a listing: %v", err)
	}
}

// Opening a configuration touches nothing.
func TestOpenDoesNoIO(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	runtime, err := Open(Config{StateDir: state}, Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory was touched: %v", err)
	}
	if runtime.Manager.Fleet() != DefaultFleet {
		t.Errorf("fleet %q", runtime.Manager.Fleet())
	}
}

// The embedded backend is told where its state is.
func TestLocalGetsTheStateDirectory(t *testing.T) {
	for _, c := range []struct {
		backend Backend
		want    string
	}{
		{Backend{Extension: "local"}, `{"state_dir":"/s"}`},
		{Backend{Extension: "local", Config: []byte(`{"x":1}`)}, `{"state_dir":"/s","x":1}`},
		{Backend{Extension: "local", Config: []byte(`{"state_dir":"/other"}`)}, `{"state_dir":"/other"}`},
		{Backend{Extension: "docker"}, `{}`},
	} {
		got, err := extensionConfig(Config{StateDir: "/s"}, c.backend)
		if err != nil || string(got) != c.want {
			t.Errorf("%+v: %s, %v, want %s", c.backend, got, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("fleet = \"a\"\nbackends = { a = { docker = {} } }", true)
	f.Add("backends = { a = { extension = \"x\", config_json = jsonencode({}) } }", false)
	f.Add("local = { state_dir = null }\nprofile_dirs = [\"a\"]", false)
	f.Fuzz(func(t *testing.T, text string, trusted bool) {
		config, err := Parse("f.hcl", []byte(text), trusted)
		var faults fault.Faults
		if err != nil && !errors.As(err, &faults) {
			t.Fatalf("error without faults: %v", err)
		}
		if err == nil && !trusted && (config.StateDir != "" || config.ExtensionDirs != nil) {
			t.Fatal("a checkout decides which program is executed")
		}
	})
}
