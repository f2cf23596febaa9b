// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"go.yaml.in/yaml/v3"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// YAMLDocument returns a profile as a file that parses to it, with the
// attributes in the order of the documentation.
func YAMLDocument(p sdk.Profile) string {
	root := readJSON(&builder{}, []byte(sandbox.Document(p)))
	// A document is JSON of strings, numbers and collections: both succeed.
	out, _ := yaml.Marshal(root.yaml())
	return string(out)
}

// yaml returns a value as YAML's own node.
func (v *value) yaml() *yaml.Node {
	switch v.kind {
	case kindObject:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, m := range v.object {
			key := &yaml.Node{}
			key.SetString(m.key)
			n.Content = append(n.Content, key, m.value.yaml())
		}
		return n
	case kindList:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, element := range v.list {
			n.Content = append(n.Content, element.yaml())
		}
		return n
	case kindString:
		n := &yaml.Node{}
		n.SetString(v.text)
		return n
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: v.text}
}
