// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"fmt"
	"math"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// checker holds a tree against the table. It collects every fault, remembers
// where each attribute stands, and gives the document as plain values.
type checker struct {
	*builder
	places map[string]place
}

// value checks one value and returns it for encoding/json; null and what is
// faulty is nil.
func (c *checker) value(n *node, v *value, path string) any {
	c.places[path] = v.at
	if v.kind == kindNull {
		return nil
	}
	if !fits(n.is, v.kind) {
		c.add(v.at, path, "%s is wanted, this is %s%s", n.is, v.kind, quoteAdvice(n, v))
		return nil
	}
	switch n.is {
	case kindObject:
		if n.elements != nil {
			return c.freeObject(n, v, path)
		}
		return c.fixedObject(n, v, path)
	case kindList:
		list := make([]any, 0, len(v.list))
		for i, element := range v.list {
			at := fmt.Sprintf("%s[%d]", path, i)
			if element.kind == kindNull {
				c.add(element.at, at, "null is not wanted in a list")
				continue
			}
			list = append(list, c.value(n.elements, element, at))
		}
		return list
	case kindString:
		return v.text
	case kindBool:
		return v.truth
	case kindInteger:
		return v.integer
	}
	if math.IsNaN(v.number) || math.IsInf(v.number, 0) {
		c.add(v.at, path, "%.80s is not a finite number", v.text)
		return nil
	}
	return v.number
}

// fits tells whether a value of one kind may stand where another is wanted.
func fits(want, is kind) bool {
	return want == is || (want == kindNumber && is == kindInteger)
}

// quoteAdvice helps with YAML's favourite surprise.
func quoteAdvice(n *node, v *value) string {
	if n.is == kindString && (v.kind == kindInteger || v.kind == kindNumber || v.kind == kindBool) {
		return ": put it in quotes"
	}
	return ""
}

func (c *checker) fixedObject(n *node, v *value, path string) any {
	known := n.keysOf()
	object := map[string]any{}
	for _, m := range v.object {
		at := join(path, m.key)
		inner, ok := known[m.key]
		if !ok {
			said := "no such attribute" + sandbox.DidYouMean(m.key, n.names())
			if n.unknown != nil {
				said = n.unknown(m.key)
			}
			c.add(m.at, at, "%s", said)
			continue
		}
		if element := c.value(inner, m.value, at); element != nil {
			object[m.key] = element
		}
	}
	for _, f := range n.fields {
		if f.required && (v.get(f.key) == nil || v.get(f.key).kind == kindNull) {
			c.add(v.at, join(path, f.key), "is required")
		}
	}
	return object
}

func (c *checker) freeObject(n *node, v *value, path string) any {
	object := map[string]any{}
	for _, m := range v.object {
		at := join(path, m.key)
		c.places[at] = m.at
		if m.value.kind == kindNull {
			c.add(m.value.at, at, "null is not wanted in a map")
			continue
		}
		object[m.key] = c.value(n.elements, m.value, at)
	}
	return object
}

// join makes the path of a key, cut where package sandbox cuts it.
func join(path, key string) string {
	const most = 80
	if len(key) > most {
		key = key[:most] + "…"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// locate returns where an attribute stands: the place of the nearest part of
// its path that is in the file.
func (c *checker) locate(path string) place {
	for path != "" {
		if at, found := c.places[path]; found {
			return at
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return c.places[""]
}
