// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"os"
)

// orphaned calls then when the parent process has ended. On Windows the id of
// a parent stays when it dies, so its handle is waited for. The wait itself
// can't be interrupted; it ends with this process.
func orphaned(ctx context.Context, then func()) {
	parent, err := os.FindProcess(os.Getppid())
	if err != nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = parent.Wait()
	}()
	select {
	case <-ctx.Done():
	case <-ended:
		then()
	}
}
