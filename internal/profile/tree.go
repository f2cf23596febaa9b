// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"fmt"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
)

// The bounds of a document's tree. YAML's aliases can make a small file stand
// for a tree of any size.
const (
	maxDepth = 64
	maxNodes = 200_000
)

// kind is the kind of a value, in the words of messages.
type kind string

const (
	kindNull    kind = "null"
	kindBool    kind = "a boolean"
	kindInteger kind = "an integer"
	kindNumber  kind = "a number"
	kindString  kind = "a string"
	kindList    kind = "a list"
	kindObject  kind = "an object"
)

// place is where something stands in a file, both from 1.
type place struct{ line, column int }

// value is one value of a document, in whatever syntax, and its place.
type value struct {
	kind    kind
	at      place
	text    string // of a string, and as written of any other scalar
	integer int64
	number  float64
	truth   bool
	list    []*value
	object  []member
}

// member is one entry of an object, in the order of the file.
type member struct {
	key   string
	at    place
	value *value
}

// builder counts the values of a tree and collects the faults of reading it.
type builder struct {
	file   string
	nodes  int
	faults fault.Faults
}

func (b *builder) add(at place, path, format string, args ...any) {
	b.faults = append(b.faults, fault.Fault{
		File: b.file, Line: at.line, Column: at.column, Path: path, Message: fmt.Sprintf(format, args...),
	})
}

// grow counts one more value at a depth; false means that the tree is too
// large and reading must stop.
func (b *builder) grow(at place, depth int) bool {
	b.nodes++
	switch {
	case b.nodes == maxNodes+1:
		b.add(at, "", "the document has more than %d values", maxNodes)
	case b.nodes <= maxNodes && depth > maxDepth:
		b.add(at, "", "nested deeper than %d", maxDepth)
		// One report is enough for a tree that is deep in many places.
		b.nodes = maxNodes + 1
	}
	return b.nodes <= maxNodes
}

// put adds an entry to an object and refuses a second one of the same key.
func (b *builder) put(into *value, seen map[string]place, m member) {
	if first, twice := seen[m.key]; twice {
		b.add(m.at, "", "%.80q is set already in line %d", m.key, first.line)
		return
	}
	seen[m.key] = m.at
	into.object = append(into.object, m)
}

// get returns the value of a key, or nil.
func (v *value) get(key string) *value {
	for _, m := range v.object {
		if m.key == key {
			return m.value
		}
	}
	return nil
}
