// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !failpoints

package failpoint

// On reports whether this is the crash suite's own build.
const On = false

// Hit does nothing.
func Hit(Point) error { return nil }

// Environ returns nothing.
func Environ() []string { return nil }
