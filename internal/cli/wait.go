// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

func (a *app) waitCommand() *cobra.Command {
	var opts lifecycle.WaitOptions
	var timeout durationFlag
	cmd := &cobra.Command{
		Use:   "wait ID",
		Short: "Wait until a sandbox is ready",
		Long: "Wait until a sandbox is ready; fail when it can't become ready any more. Whoever creates it runs its setup and its " +
			"readiness check, this only watches.",
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	cmd.Flags().Var(&timeout, "timeout", "give up after this long, with exit code 124")
	return a.onSandbox(cmd, func(ctx context.Context, runtime *config.Runtime, id string) (lifecycle.Sandbox, error) {
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(timeout))
			defer cancel()
		}
		s, err := runtime.Manager.Wait(ctx, id, opts)
		if timeout > 0 && errors.Is(err, context.DeadlineExceeded) {
			err = exitError{code: exitTimedOut, cause: fmt.Errorf("sandbox %s was not ready within %s: %w", id, time.Duration(timeout), err)}
		}
		return s, err
	})
}
