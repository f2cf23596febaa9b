// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package fault is how a file's faults are reported: where each one is, on
// which attribute, and what it is. Configuration and profiles share it.
package fault

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one fault of a file.
type Fault struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`   // from 1; 0 when it has no place
	Column  int    `json:"column,omitempty"` // from 1
	Path    string `json:"path,omitempty"`   // of the attribute: "limits.memory", "setup[0]"
	Message string `json:"message"`
}

// Error returns "FILE:LINE:COLUMN: PATH: MESSAGE", each part where known.
func (f Fault) Error() string {
	var b strings.Builder
	switch {
	case f.File != "" && f.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", f.File, f.Line, f.Column)
	case f.File != "":
		b.WriteString(f.File + ": ")
	case f.Line > 0:
		fmt.Fprintf(&b, "line %d, column %d: ", f.Line, f.Column)
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Message)
	return b.String()
}

// Faults are all faults that were found, which is at least one.
type Faults []Fault

// Error returns one fault per line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Error()
	}
	return strings.Join(lines, "\n")
}

// Err returns the faults in the order of the file, or nil when there are none.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	return f
}
