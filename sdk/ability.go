// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

// Chooser is implemented by what stands for an extension and has the methods
// of every optional interface, whatever the extension can do: the client of
// an extension in a process of its own. [As] asks it.
type Chooser interface {
	// Has reports whether the extension has the interface that ability is a
	// nil pointer to, as (*Execer)(nil).
	Has(ability any) bool
}

// As returns an extension as one of the optional interfaces, and whether it
// has that one. It is the only way to find out: a type assertion succeeds for
// every interface on the client of an extension in another process. (One type
// for each combination of interfaces, which would make assertions truthful,
// doubles with every interface and was a megabyte of the host.)
func As[T any](ext Extension) (able T, ok bool) {
	if chooser, is := ext.(Chooser); is && !chooser.Has((*T)(nil)) {
		return able, false
	}
	able, ok = ext.(T)
	return able, ok
}
