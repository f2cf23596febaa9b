// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// backends reads the attribute of that name: a map of objects.
func (d *decoder) backends(config *Config, expr hclsyntax.Expression, value cty.Value) {
	if !value.Type().IsObjectType() && !value.Type().IsMapType() {
		d.add(expr.Range(), "backends", "a map of objects is wanted, this is %s", value.Type().FriendlyName())
		return
	}
	places := entryRanges(expr)
	entries := value.AsValueMap()
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		at, found := places[name]
		if !found {
			at = expr.Range()
		}
		before := len(d.faults)
		backend := d.backend(at, "backends."+name, entries[name])
		if len(d.faults) == before {
			d.put(config, at, name, backend)
		}
	}
}

// entryRanges returns where each entry of an object is written, as far as
// the expression is an object with plain keys.
func entryRanges(expr hclsyntax.Expression) map[string]hcl.Range {
	places := map[string]hcl.Range{}
	object, ok := expr.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return places
	}
	for _, item := range object.Items {
		key, diags := item.KeyExpr.Value(nil)
		if !diags.HasErrors() && key.Type() == cty.String && key.IsKnown() && !key.IsNull() {
			places[key.AsString()] = item.KeyExpr.Range()
		}
	}
	return places
}

// backend reads one entry: `{ NAME = { … } }` after a known extension, or
// `{ extension = NAME, config_json = … }`; either with path, sha256 and env.
func (d *decoder) backend(at hcl.Range, path string, value cty.Value) Backend {
	var backend Backend
	if value.IsNull() || (!value.Type().IsObjectType() && !value.Type().IsMapType()) {
		d.add(at, path, "an object is wanted, this is %s", value.Type().FriendlyName())
		return backend
	}
	schema := map[string]Attribute{}
	for _, attribute := range BackendAttributes() {
		schema[attribute.Name] = attribute
	}
	entries := value.AsValueMap()
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		at, path, value := at, path+"."+name, entries[name]
		if value.IsNull() {
			continue
		}
		if extension, known := extensionOf(name); known {
			if backend.Extension != "" || backend.Config != nil {
				d.add(at, path, "a backend has one extension and one configuration: leave out extension, config_json or this")
				continue
			}
			backend.Extension = extension
			backend.Config, _ = d.extension(at, path, value)
			continue
		}
		attribute, known := schema[name]
		if !known {
			names := slices.Collect(maps.Keys(schema))
			for _, extension := range KnownExtensions() {
				names = append(names, AttributeOf(extension))
			}
			d.add(at, path, "no such attribute%s", sandbox.DidYouMean(name, names))
			continue
		}
		if d.allowed(at, path, attribute) {
			d.backendAttribute(&backend, at, path, name, value)
		}
	}
	if backend.Extension == "" {
		d.add(at, path, "no extension is named: write { docker = { … } } or the like, or extension = \"NAME\"")
	}
	return backend
}

func (d *decoder) backendAttribute(backend *Backend, at hcl.Range, path, name string, value cty.Value) {
	if name == "env" {
		backend.Env, _ = d.texts(at, path, value)
		return
	}
	text, ok := d.text(at, path, value)
	if !ok {
		return
	}
	switch name {
	case "extension":
		if backend.Extension != "" {
			d.add(at, path, "a backend has one extension, %s is named already", backend.Extension)
			return
		}
		backend.Extension = text
	case "config_json":
		if backend.Config != nil {
			d.add(at, path, "the extension's own attribute is set already")
			return
		}
		if d.configAllowed(at, path, json.RawMessage(text)) {
			backend.Config = json.RawMessage(text)
		}
	case "path":
		if err := absolute(&backend.Path, text, d.base); err != nil {
			d.add(at, path, "%s", err)
		}
	case "sha256":
		backend.SHA256 = text
	}
}
