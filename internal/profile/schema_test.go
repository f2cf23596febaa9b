// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"bytes"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(SchemaID, document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// The published schema accepts and refuses what the parser does.
func TestSchemaAgreesWithTheParser(t *testing.T) {
	valid := []string{
		`{"name": "a"}`,
		full[JSON],
		`{"name": "a", "description": null, "limits": null, "on_expiry": null, "ready": null, "publish": null, "user": null, "ttl": {"default": null}}`,
		`{"name": "a", "limits": {"cpus": 0.5, "pids": 0, "memory": "", "disk": "1.5 GiB", "wall": "1h30m"}}`,
		`{"name": "a", "limits": {"cpus": 0, "pids": 2.0}}`,
		`{"name": "a", "network": {"egress": "open"}}`,
		`{"name": "a", "network": {"egress": "deny"}}`,
		`{"name": "a", "network": {"egress": "", "allow": []}}`,
		`{"name": "a", "network": {"egress": "deny", "allow": ["10.0.0.0/8:443", "*.example.com"]}}`,
		`{"name": "a", "ready": {"exec": ["true"]}}`,
		`{"name": "a", "ready": {"log": "up", "exec": [], "tcp": null}}`,
		`{"name": "a", "ready": {"tcp": {"port": 1}, "log": ""}}`,
		`{"name": "a", "image": "", "template": "t"}`,
		`{"name": "a", "compose": {"files": ["a"], "services": []}}`,
		`{"name": "a", "machine": {"image": "m"}}`,
		`{"name": "a", "build": {"context": "."}}`,
		`{"name": "a", "command": []}`,
		`{"name": "a", "command": ["sh", "", "x"]}`,
		`{"name": "a", "setup": []}`,
		`{"name": "a", "user": "0:0", "workdir": "/", "runtime": "runsc", "publish": "host"}`,
		`{"name": "a", "files": {"/a": {"content": ""}, "/b": {"content": "x", "mode": "755"}}}`,
		`{"name": "a", "on_expiry": "snapshot"}`,
		`{"name": "a", "ttl": {"exempt": "long soak test"}}`,
		`{"name": "a", "ttl": {"default": "1.5h", "max": "90m1s"}}`,
		`{"name": "a", "requires": {"kernel_isolation": "best_effort"}}`,
		`{"name": "a", "labels": {"a/b.c-d": ""}}`,
	}
	invalid := []string{
		`{}`, `[]`, `"a"`,
		`{"name": null}`, `{"name": ""}`, `{"name": "-a"}`, `{"name": 1}`, `{"name": "` + strings.Repeat("a", 64) + `"}`,
		`{"name": "a", "x": 1}`,
		`{"name": "a", "image": "i", "template": "t"}`,
		`{"name": "a", "build": {"context": "."}, "machine": {"image": "m"}}`,
		`{"name": "a", "build": {}}`, `{"name": "a", "build": {"context": ""}}`, `{"name": "a", "build": {"context": ".", "x": ""}}`,
		`{"name": "a", "compose": {"files": []}}`, `{"name": "a", "compose": {}}`,
		`{"name": "a", "machine": {"format": "raw"}}`,
		`{"name": "a", "command": "sh"}`, `{"name": "a", "command": [""]}`, `{"name": "a", "command": [1]}`, `{"name": "a", "command": [null]}`,
		`{"name": "a", "setup": [[]]}`, `{"name": "a", "setup": [[""]]}`, `{"name": "a", "setup": ["a"]}`,
		`{"name": "a", "workdir": "rel"}`, `{"name": "a", "user": "a b"}`, `{"name": "a", "runtime": "/bin/sh"}`,
		`{"name": "a", "env": {"1A": "x"}}`, `{"name": "a", "env": {"A": 1}}`, `{"name": "a", "env": {"A": null}}`,
		`{"name": "a", "files": {"rel": {"content": ""}}}`, `{"name": "a", "files": {"/a": {}}}`, `{"name": "a", "files": {"/a": {"content": "", "mode": "rw"}}}`,
		`{"name": "a", "ports": {"Web": 80}}`, `{"name": "a", "ports": {"web": 0}}`, `{"name": "a", "ports": {"web": 65536}}`, `{"name": "a", "ports": {"web": "80"}}`,
		`{"name": "a", "publish": "world"}`,
		`{"name": "a", "limits": {"cpus": -1}}`, `{"name": "a", "limits": {"cpus": 0.001}}`, `{"name": "a", "limits": {"pids": -1}}`, `{"name": "a", "limits": {"pids": 1.5}}`,
		`{"name": "a", "limits": {"memory": "5"}}`, `{"name": "a", "limits": {"memory": "0MiB"}}`, `{"name": "a", "limits": {"disk": "5 apples"}}`, `{"name": "a", "limits": {"wall": "soon"}}`,
		`{"name": "a", "network": {"egress": "some"}}`, `{"name": "a", "network": {"allow": ["a:1"]}}`, `{"name": "a", "network": {"egress": "open", "allow": ["a:1"]}}`,
		`{"name": "a", "ready": {}}`, `{"name": "a", "ready": {"timeout": "5s"}}`, `{"name": "a", "ready": {"log": "x", "exec": ["true"]}}`, `{"name": "a", "ready": {"tcp": {"port": 0}}}`,
		`{"name": "a", "ready": {"http": {"port": 80, "path": "rel"}}}`, `{"name": "a", "ready": {"exec": ["true"], "timeout": "0s"}}`,
		`{"name": "a", "ttl": {"default": "0s"}}`, `{"name": "a", "ttl": {"max": "-1h"}}`, `{"name": "a", "ttl": {"max": "1 hour"}}`,
		`{"name": "a", "on_expiry": "explode"}`,
		`{"name": "a", "requires": {"kernel_isolation": "unsupported"}}`, `{"name": "a", "requires": {"telepathy": "enforced"}}`, `{"name": "a", "requires": {"exec": ""}}`,
		`{"name": "a", "labels": {"a b": ""}}`, `{"name": "a", "labels": {"": ""}}`,
	}
	schema := compile(t)
	check := func(text string, want bool) {
		t.Run(text, func(t *testing.T) {
			instance, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			bySchema := schema.Validate(instance)
			_, byParser := Parse("f", JSON, []byte(text))
			if (bySchema == nil) != want {
				t.Errorf("the schema says %v, want valid = %v", bySchema, want)
			}
			if (byParser == nil) != want {
				t.Errorf("the parser says %v, want valid = %v", byParser, want)
			}
		})
	}
	for _, text := range valid {
		check(text, true)
	}
	for _, text := range invalid {
		check(text, false)
	}
}
