// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// The log of the profile's command: a file in the sandbox.

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Logs implements [sdk.Logger].
func (e *Extension) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	if opts.Source != sdk.LogMain {
		return sdk.LogsResult{}, sdk.Unsupported("source", "Modal keeps no log %.40q", string(opts.Source))
	}
	f, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.LogsResult{}, err
	}
	from := "+1"
	if opts.Tail > 0 {
		from = strconv.Itoa(opts.Tail)
	}
	script := `[ -e "$2" ] || exit 0; exec tail -n "$1"`
	if opts.Follow {
		script += " -f"
	}
	out := &counted{to: opts.Output}
	_, err = e.run(ctx, f, command{args: []string{"/bin/sh", "-c", script + ` "$2"`, "sh", from, mainLog}, workdir: "/", stdout: out})
	result := sdk.LogsResult{Bytes: out.bytes}
	if err == nil || !opts.Follow || ctx.Err() != nil {
		return result, err
	}
	// Following ends with the sandbox.
	if _, gone := e.usable(ctx, opts.Target); errors.Is(gone, sdk.ErrNotFound) || errors.Is(gone, sdk.ErrExpired) {
		return result, nil
	}
	return result, err
}

// counted counts what is written.
type counted struct {
	to    io.Writer
	bytes int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes += int64(n)
	return n, err
}
