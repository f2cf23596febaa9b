// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Nothing of what commands write is lost, however short they are and however
// many run at once.
func TestOutputOfShortCommands(t *testing.T) {
	c := newCloud(t, e2btest.Options{})
	_, target := c.mustCreate(t, 1)
	var running sync.WaitGroup
	places := make(chan struct{}, 24)
	for range size(2000, 200) {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			var out strings.Builder
			result, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"echo", "said"}, Stdout: &out})
			if err != nil || result.ExitCode != 0 || out.String() != "said\n" {
				t.Errorf("%+v, %q, %v", result, out.String(), err)
			}
		})
	}
	running.Wait()
}
