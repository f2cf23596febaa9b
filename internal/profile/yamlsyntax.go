// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// readYAML reads a YAML document into a tree. Anchors, aliases and merge
// keys are resolved; what they come to is counted.
func readYAML(b *builder, content []byte) *value {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var root, more yaml.Node
	if err := decoder.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			b.add(place{1, 1}, "", "the document is empty")
			return nil
		}
		yamlFault(b, err)
		return nil
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			yamlFault(b, err)
		} else {
			b.add(placeOf(&more), "", "a second document: one file holds one profile")
		}
		return nil
	}
	r := yamlReader{builder: b}
	return r.value(&root, 0)
}

var yamlError = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?line (\d+): (?s:(.*))$`)
})

// yamlFault takes the line out of the library's message, which has no field
// for it.
func yamlFault(b *builder, err error) {
	if m := yamlError().FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		b.add(place{line, 1}, "", "not valid YAML: %s", m[2])
		return
	}
	b.add(place{1, 1}, "", "not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
}

func placeOf(n *yaml.Node) place { return place{max(n.Line, 1), max(n.Column, 1)} }

type yamlReader struct{ *builder }

// value reads one node; nil means that a fault has been reported.
func (r *yamlReader) value(n *yaml.Node, depth int) *value {
	at := placeOf(n)
	if !r.grow(at, depth) {
		return nil
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return r.value(n.Content[0], depth+1)
	case yaml.AliasNode:
		// A node that holds an alias to itself ends at the depth's bound.
		v := r.value(n.Alias, depth+1)
		if v == nil {
			return nil
		}
		here := *v
		here.at = at
		return &here
	case yaml.SequenceNode:
		list := &value{kind: kindList, at: at}
		for _, child := range n.Content {
			element := r.value(child, depth+1)
			if element == nil {
				return nil
			}
			list.list = append(list.list, element)
		}
		return list
	case yaml.MappingNode:
		return r.mapping(n, depth)
	}
	return r.scalar(n, at)
}

func (r *yamlReader) scalar(n *yaml.Node, at place) *value {
	v := &value{kind: kindString, at: at, text: n.Value}
	switch n.ShortTag() {
	case "!!str", "!!timestamp":
	case "!!null":
		v.kind = kindNull
	case "!!bool":
		v.kind = kindBool
		// What YAML 1.2 calls a boolean is what the library resolves to one.
		v.truth = strings.EqualFold(n.Value, "true")
	case "!!int":
		var integer int64
		if n.Decode(&integer) != nil {
			r.add(at, "", "%.80q is not a number of 64 bits", n.Value)
			return nil
		}
		v.kind, v.integer, v.number = kindInteger, integer, float64(integer)
	case "!!float":
		var float float64
		if n.Decode(&float) != nil {
			r.add(at, "", "%.80q is not a number", n.Value)
			return nil
		}
		v = numberOf(strconv.FormatFloat(float, 'g', -1, 64), at)
		v.text = n.Value
	default:
		r.add(at, "", "the tag %.80s is not wanted here", n.Tag)
		return nil
	}
	return v
}

// mapping reads a mapping. Keys of its own go before merged ones, and an
// earlier merged mapping before a later one, as YAML's merge type has it.
func (r *yamlReader) mapping(n *yaml.Node, depth int) *value {
	object := &value{kind: kindObject, at: placeOf(n)}
	seen := map[string]place{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, child := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, child)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			r.add(placeOf(key), "", "a key is a string")
			return nil
		}
		element := r.value(child, depth+1)
		if element == nil {
			return nil
		}
		r.put(object, seen, member{key: key.Value, at: placeOf(n.Content[i]), value: element})
	}
	for _, child := range merged {
		if !r.merge(object, seen, child, depth+1) {
			return nil
		}
	}
	return object
}

func (r *yamlReader) merge(into *value, seen map[string]place, n *yaml.Node, depth int) bool {
	from := r.value(n, depth)
	if from == nil {
		return false
	}
	sources := []*value{from}
	if from.kind == kindList {
		sources = from.list
	}
	for _, source := range sources {
		if source.kind != kindObject {
			r.add(placeOf(n), "", "only an object can be merged, this is %s", source.kind)
			return false
		}
		for _, m := range source.object {
			if _, set := seen[m.key]; !set {
				seen[m.key] = m.at
				into.object = append(into.object, m)
			}
		}
	}
	return true
}
