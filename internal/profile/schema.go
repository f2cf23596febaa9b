// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"bytes"
	"encoding/json"
	"maps"
)

// SchemaID is the name of the published JSON Schema.
const SchemaID = "https://github.com/sand-boxer/terraform-provider-sandboxer/schema/profile.json"

// Schema returns the JSON Schema (draft 2020-12) of a profile document.
//
// It accepts what the parser accepts, but for rules that JSON Schema has no
// words for: a default that is longer than the maximum, one port under two
// names, a regular expression or path that is not one, sizes in bytes.
func Schema() []byte {
	schema := document().schema()
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["$id"] = SchemaID
	schema["title"] = "sandboxer profile"
	schema["allOf"] = sources()
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	// The schema holds only maps, slices, strings and numbers: it always encodes.
	_ = encoder.Encode(schema)
	return out.Bytes()
}

// sources is the rule that a profile is made from one thing, pair by pair.
func sources() []any {
	said := map[string]map[string]any{"image": {"type": "string", "minLength": 1}, "template": {"type": "string", "minLength": 1}}
	keys := []string{"image", "build", "compose", "machine", "template"}
	var rules []any
	for i, a := range keys {
		for _, b := range keys[i+1:] {
			rules = append(rules, map[string]any{"not": map[string]any{"allOf": []any{isSet(a, said[a]), isSet(b, said[b])}}})
		}
	}
	return rules
}

// schema returns one place of the table in JSON Schema's words.
func (n *node) schema() map[string]any {
	types := map[kind]string{
		kindBool: "boolean", kindInteger: "integer", kindNumber: "number", kindString: "string", kindList: "array", kindObject: "object",
	}
	schema := map[string]any{"type": types[n.is]}
	maps.Copy(schema, n.rules)
	if n.description != "" {
		schema["description"] = n.description
	}
	switch {
	case n.is == kindList:
		schema["items"] = n.elements.schema()
		if first, found := n.rules["prefixItems"]; found {
			// In draft 2020-12 "items" is about what comes after these.
			element, _ := first.([]any)[0].(map[string]any)
			merged := n.elements.schema()
			maps.Copy(merged, element)
			schema["prefixItems"] = []any{merged}
		}
	case n.is == kindObject && n.elements != nil:
		schema["additionalProperties"] = n.elements.schema()
		if n.keys != "" {
			schema["propertyNames"] = map[string]any{"pattern": n.keys}
		}
	case n.is == kindObject:
		n.objectSchema(schema)
	}
	return schema
}

func (n *node) objectSchema(schema map[string]any) {
	properties := map[string]any{}
	required := []string{}
	for _, f := range n.fields {
		inner := f.schema()
		if f.required {
			required = append(required, f.key)
		} else {
			inner = orNull(inner)
		}
		properties[f.key] = inner
	}
	schema["properties"] = properties
	schema["additionalProperties"] = false
	if len(required) > 0 {
		schema["required"] = required
	}
}

// orNull also lets null stand for an optional attribute, as it does in HCL.
func orNull(schema map[string]any) map[string]any {
	kind, _ := schema["type"].(string)
	schema["type"] = []string{kind, "null"}
	if choices, found := schema["enum"].([]string); found {
		schema["enum"] = anyOf(choices)
	}
	// A pattern or a bound says nothing about what is not a string or number.
	if inner, found := schema["anyOf"].([]any); found {
		schema["anyOf"] = append([]any{map[string]any{"type": "null"}}, inner...)
	}
	if one, found := schema["oneOf"]; found {
		delete(schema, "oneOf")
		schema["anyOf"] = []any{map[string]any{"type": "null"}, map[string]any{"oneOf": one}}
	}
	return schema
}

func anyOf(choices []string) []any {
	out := make([]any, 0, len(choices)+1)
	for _, choice := range choices {
		out = append(out, choice)
	}
	return append(out, nil)
}
