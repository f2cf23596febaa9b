// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"context"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

// ticking is a clock of a test whose short pauses pass by themselves: those
// between two tries. Longer ones wait until the test moves the clock.
type ticking struct{ *clock.Fake }

const short = 30 * time.Second

func (c ticking) Sleep(ctx context.Context, d time.Duration) error {
	if d > short {
		return c.Fake.Sleep(ctx, d)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.Advance(d)
	return nil
}
