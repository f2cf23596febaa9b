// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Using a box: commands, log, pause.

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// usable returns the box of a sandbox that can be used now.
func (e *Extension) usable(ctx context.Context, target sdk.Target) (Box, sdk.Sandbox, error) {
	b, err := e.find(ctx, target)
	if err != nil {
		return b, sdk.Sandbox{}, err
	}
	s, _, err := sandboxOf(b, target.Fleet)
	if err != nil {
		return b, s, err
	}
	switch s.Status {
	case sdk.StatusReady:
		return b, s, nil
	case sdk.StatusExpired:
		return b, s, sdk.Expired(s.Lease, "sandbox %s has expired: %s", s.ID, s.Reason)
	}
	return b, s, sdk.Conflict(s.Lease, "sandbox %s is %s", s.ID, s.Status)
}

// Exec runs one command.
func (e *Extension) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	b, _, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.ExecResult{}, err
	}
	if len(opts.Command) == 0 {
		return sdk.ExecResult{}, sdk.Invalid("command", "an empty command")
	}
	var result CommandResult
	err = e.try(ctx, func(api API) (err error) {
		result, err = api.RunCommand(ctx, b.ID, CommandRequest{
			Command: opts.Command, Env: opts.Env, Workdir: opts.Workdir, Timeout: opts.Timeout,
			Stdin: opts.Stdin, Stdout: discard(opts.Stdout), Stderr: discard(opts.Stderr),
		})
		return err
	})
	return sdk.ExecResult{ExitCode: result.ExitCode, TimedOut: result.TimedOut}, err
}

// followPause is the pause between two looks at a log that is followed: the
// vendor has no stream of it.
const followPause = 50 * time.Millisecond

// Logs writes the log of the main process, and goes on until the box ends
// when it is asked to follow.
func (e *Extension) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	result := sdk.LogsResult{}
	if opts.Source != sdk.LogMain {
		return result, sdk.Unsupported("source", "the vendor keeps no log %.40q", opts.Source)
	}
	log, over, err := e.log(ctx, opts.Target)
	if err != nil {
		return result, err
	}
	seen, out := len(log), discard(opts.Output)
	n, err := out.Write(tail(log, opts.Tail))
	result.Bytes = int64(n)
	for err == nil && opts.Follow && !over {
		if err = e.wait.Sleep(ctx, followPause); err != nil {
			break
		}
		if log, over, err = e.log(ctx, opts.Target); errors.Is(err, sdk.ErrNotFound) {
			return result, nil // it was destroyed, which is an end as well
		}
		if err == nil && len(log) > seen {
			n, err = out.Write(log[seen:])
			seen, result.Bytes = len(log), result.Bytes+int64(n)
		}
	}
	return result, err
}

// log returns the log of a box, and whether the box had ended before it was
// read: nothing comes then.
func (e *Extension) log(ctx context.Context, target sdk.Target) (log []byte, over bool, err error) {
	b, err := e.find(ctx, target)
	if err != nil {
		return nil, false, err
	}
	s, _, err := sandboxOf(b, target.Fleet)
	if err != nil {
		return nil, false, err
	}
	over = s.Status != sdk.StatusCreating && s.Status != sdk.StatusReady && s.Status != sdk.StatusPaused
	err = e.try(ctx, func(api API) (err error) {
		log, err = api.GetLog(ctx, b.ID)
		return err
	})
	return log, over, err
}

// tail returns the last n lines; zero is all.
func tail(log []byte, n int) []byte {
	lines := bytes.SplitAfter(log, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	if n <= 0 || n >= len(lines) {
		return log
	}
	return bytes.Join(lines[len(lines)-n:], nil)
}

// Pause suspends a box.
func (e *Extension) Pause(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	s, err := e.toggle(ctx, opts.Target, API.PauseBox)
	return sdk.PauseResult{Sandbox: s}, err
}

// Resume lets a box go on.
func (e *Extension) Resume(ctx context.Context, opts sdk.ResumeOptions) (sdk.ResumeResult, error) {
	s, err := e.toggle(ctx, opts.Target, func(api API, ctx context.Context, id string) (Box, error) {
		b, err := api.GetBox(ctx, id)
		if err != nil || b.PausedAt.IsZero() {
			return api.ResumeBox(ctx, id)
		}
		// The vendor paused it at its end: it gets the deadline that it has
		// since then.
		lease, err := leaseOf(b)
		if err != nil {
			return b, err
		}
		if lease.ExpiresAt.After(b.StopAt) {
			if _, err := api.UpdateBox(ctx, id, UpdateRequest{IfVersion: b.Version, Tags: map[string]string{tagLease: encode(lease)}, Until: lease.ExpiresAt}); err != nil {
				return b, err
			}
		}
		return api.ResumeBox(ctx, id)
	})
	return sdk.ResumeResult{Sandbox: s}, err
}

func (e *Extension) toggle(ctx context.Context, target sdk.Target, call func(API, context.Context, string) (Box, error)) (sdk.Sandbox, error) {
	b, s, err := e.usable(ctx, target)
	if err != nil && s.Status != sdk.StatusPaused {
		return s, err
	}
	err = e.try(ctx, func(api API) (err error) {
		b, err = call(api, ctx, b.ID)
		return err
	})
	if err != nil {
		return s, err
	}
	s, _, err = sandboxOf(b, target.Fleet)
	return s, err
}

// Prepare has nothing to do: a box begins empty.
func (e *Extension) Prepare(_ context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "pull", Message: "nothing to prepare"})
	}
	return sdk.PrepareResult{}, nil
}
