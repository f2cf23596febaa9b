// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !failpoints

package failpoint

import "testing"

// What is shipped has no failpoints, whatever its environment says.
func TestOffUnlessBuiltForIt(t *testing.T) {
	t.Setenv("SANDBOXER_FAILPOINTS", "/nowhere/socket")
	if On || Environ() != nil {
		t.Error("failpoints are on in an ordinary build")
	}
	if cost := testing.AllocsPerRun(100, func() {
		if err := Hit("anywhere"); err != nil {
			t.Error(err)
		}
	}); cost > 0 {
		t.Errorf("a point costs %v allocations", cost)
	}
}
