// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !windows

package provider

import (
	"context"
	"os"
	"time"
)

// orphaned calls then when the parent process has changed, which is when it
// died. It returns with the context.
func orphaned(ctx context.Context, then func()) {
	parent := os.Getppid()
	ticker := time.NewTicker(parentEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if os.Getppid() != parent {
				then()
				return
			}
		}
	}
}
