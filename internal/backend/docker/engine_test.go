// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"testing"
	"time"
)

// Clocks that may agree do; others differ by what was seen half way.
func TestAhead(t *testing.T) {
	before := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	after := before.Add(2 * time.Second)
	for shown, want := range map[time.Duration]time.Duration{
		0: 0, 100 * time.Millisecond: 0, 2 * time.Second: 0, -time.Second: -2 * time.Second, time.Hour: time.Hour - time.Second,
	} {
		if got := ahead(before.Add(shown), before, after); got != want {
			t.Errorf("%s: %s, want %s", shown, got, want)
		}
	}
}
