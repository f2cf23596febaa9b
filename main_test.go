// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli"
	face "github.com/sand-boxer/terraform-provider-sandboxer/internal/provider"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The provider block has exactly the settings that an extension within this
// program describes, in the same words.
func TestProviderBlockAgreesWithExtensions(t *testing.T) {
	var block provider.SchemaResponse
	face.New(face.Options{}).Schema(t.Context(), provider.SchemaRequest{}, &block)
	for name, construct := range builtins() {
		described, err := construct().Describe(t.Context(), sdk.DescribeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		nested, ok := block.Schema.Attributes[name].(schema.SingleNestedAttribute)
		if !ok {
			t.Errorf("the provider block has no object %s", name)
			continue
		}
		for _, key := range described.ConfigSchema {
			if a := nested.Attributes[key.Name]; a == nil || a.GetMarkdownDescription() != key.Description {
				t.Errorf("%s.%s is not described in the provider block as by the extension", name, key.Name)
			}
		}
		for attribute := range nested.Attributes {
			if !slices.ContainsFunc(described.ConfigSchema, func(key sdk.ConfigKey) bool { return key.Name == attribute }) {
				t.Errorf("the extension %s knows no %s", name, attribute)
			}
		}
	}
}

// Terraform gets the plugin, everyone else the command line.
func TestFaces(t *testing.T) {
	cases := []struct {
		args   string
		cookie string
		want   bool
	}{
		{"/x/terraform-provider-sandboxer_v0.1.0", "abc", true},
		{"/x/terraform-provider-sandboxer", "", true},
		{"/x/terraform-provider-sandboxer -debug", "", true},
		{"/x/terraform-provider-sandboxer --debug", "", true},
		{"/x/terraform-provider-sandboxer list", "", false},
		{"/x/other", "abc", true},
		{"/x/sandboxer", "", false},
		{"/x/sandboxer list", "", false},
		{"/x/sandboxer list", "abc", false},
		{"/x/sandboxer -debug", "", false},
	}
	for _, c := range cases {
		got := plugin(strings.Fields(c.args), func(name string) string {
			if name == cookie {
				return c.cookie
			}
			return ""
		})
		if got != c.want {
			t.Errorf("%s with the cookie %q: plugin = %v, want %v", c.args, c.cookie, got, c.want)
		}
	}
}

func TestVersion(t *testing.T) {
	before := version
	t.Cleanup(func() { version = before })
	if version = "1.2.3"; programVersion() != "1.2.3" {
		t.Error(programVersion())
	}
	if version = ""; programVersion() == "" {
		t.Error("no version")
	}
}

// The key of a cloud is in no output of the command line, whatever goes wrong,
// and in nothing that it keeps.
func TestNoKeyIsToldOrKept(t *testing.T) {
	const key = "e2b_canary5be0c1"
	server, err := e2btest.New(e2btest.Options{Keys: []string{key}})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server)
	t.Cleanup(func() {
		web.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	home := t.TempDir()
	env := map[string]string{
		"HOME": home, "SANDBOXER_STATE_DIR": filepath.Join(home, "state"), "SANDBOXER_CONFIG": filepath.Join(home, "config.hcl"), "E2B_API_KEY": key,
	}
	t.Setenv("E2B_API_KEY", key)
	for name, content := range map[string]string{
		"config.hcl": fmt.Sprintf("backend = \"e2b\"\ne2b = { api_url = %q, sandbox_url = %q }\n", web.URL, web.URL),
		"p.json":     `{"name":"p","network":{"egress":"open"},"command":["sh","-c","env; sleep 100"]}`,
	} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	run := func(args ...string) (string, int) {
		var out bytes.Buffer
		code := cli.Run(t.Context(), args, cli.Options{
			Version: "test", Stdin: strings.NewReader(""), Stdout: io.MultiWriter(&out, &said), Stderr: &said,
			Getenv: func(name string) string { return env[name] }, Builtins: builtins(),
		})
		return strings.TrimSpace(out.String()), code
	}
	id, code := run("create", "--profile", filepath.Join(home, "p.json"), "--ttl", "10m", "--quiet")
	if code != 0 {
		t.Fatalf("%d: %s", code, said.String())
	}
	verbs := [][]string{
		{"list", "-o", "json"}, {"get", id, "-o", "json"}, {"exec", id, "--", "sh", "-c", "env; cat /proc/*/cmdline"}, {"logs", id}, {"extend", id, "--by", "10m"},
		{"snapshot", "create", id}, {"pause", id}, {"resume", id}, {"explain", id}, {"leaks"}, {"backend", "probe", "e2b"}, {"extension", "describe", "e2b"},
	}
	for _, verb := range verbs {
		if out, code := run(verb...); code != 0 {
			t.Errorf("%q: %d %s", verb, code, out)
		}
	}
	for _, lie := range []e2btest.Lie{e2btest.LoseRequest, e2btest.ProxyPage, e2btest.Refuse, e2btest.Quota} {
		for _, call := range e2btest.Calls() {
			server.Inject(e2btest.Fault{Call: call, Lie: lie, Status: 401})
		}
		for _, verb := range [][]string{{"list"}, {"get", id}, {"extend", id, "--by", "1m"}, {"exec", id, "--", "true"}, {"backend", "probe", "e2b"}, {"destroy", id}} {
			run(verb...)
		}
		server.Heal()
	}
	if out, code := run("destroy", id); code != 0 {
		t.Errorf("destroy: %d %s", code, out)
	}
	if strings.Contains(said.String(), key) {
		t.Errorf("it was said: %s", said.String())
	}
	files := 0
	err = filepath.WalkDir(home, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if files++; bytes.Contains(content, []byte(key)) {
			t.Errorf("it is kept in %s", name)
		}
		return err
	})
	if err != nil || files < 4 {
		t.Errorf("%d files, %v", files, err)
	}
}
