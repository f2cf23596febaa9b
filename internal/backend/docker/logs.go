// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"io"
	"strconv"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Logs implements [sdk.Logger].
func (e *Extension) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	if opts.Source == sdk.LogNetwork {
		return sdk.LogsResult{}, sdk.Unsupported("source", "the docker backend has no allow-list, and so no log of what one refused")
	}
	if opts.Source != sdk.LogMain {
		return sdk.LogsResult{}, sdk.Unsupported("source", "the engine keeps no log %.40q", opts.Source)
	}
	eng, _, o, s, err := e.find(ctx, opts.Target)
	if err != nil {
		return sdk.LogsResult{}, err
	}
	if o.main == nil {
		return sdk.LogsResult{}, sdk.Conflict(s.Lease, "sandbox %s is %s: %s", s.ID, s.Status, s.Reason)
	}
	tail := "all"
	if opts.Tail > 0 {
		tail = strconv.Itoa(opts.Tail)
	}
	stream, err := eng.ContainerLogs(ctx, o.main.ID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: opts.Follow, Tail: tail})
	if err != nil {
		return sdk.LogsResult{}, e.translate(err, "read the log of "+s.ID)
	}
	defer stream.Close()
	out := &counted{to: orDiscard(opts.Output)}
	_, err = stdcopy.StdCopy(out, out, stream)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return sdk.LogsResult{Bytes: out.n}, e.translate(err, "read the log of "+s.ID)
}

// counted counts what goes through.
type counted struct {
	to io.Writer
	n  int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}
