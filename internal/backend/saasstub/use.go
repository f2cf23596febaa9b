// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Using a box: commands, files, log, pause.

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// maxCopy bounds one copy, since it is held in memory.
const maxCopy = 64 << 20

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

// CopyIn unpacks an archive into a box. Only files and directories exist
// there; names that lead out of the directory are refused.
func (e *Extension) CopyIn(ctx context.Context, opts sdk.CopyInOptions) (sdk.CopyInResult, error) {
	b, _, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.CopyInResult{}, err
	}
	result := sdk.CopyInResult{}
	files := map[string]BoxFile{}
	archive := tar.NewReader(opts.Archive)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return result, sdk.Invalid("archive", "%s", err)
		}
		switch header.Typeflag {
		case tar.TypeDir:
			continue
		case tar.TypeReg:
		default:
			return result, sdk.Unsupported("archive", "%.80q is neither a file nor a directory", header.Name)
		}
		name := path.Join(opts.Path, header.Name)
		if slices.Contains(strings.Split(header.Name, "/"), "..") || !path.IsAbs(name) {
			return result, sdk.Invalid("archive", "%.80q leads out of %s", header.Name, opts.Path)
		}
		content, err := io.ReadAll(io.LimitReader(archive, maxCopy+1))
		if err != nil {
			return result, sdk.Invalid("archive", "%s", err)
		}
		if result.Bytes += int64(len(content)); result.Bytes > maxCopy {
			return result, sdk.Errorf(sdk.ErrQuota, "a copy of more than %d bytes", maxCopy)
		}
		files[name] = BoxFile{Content: content, Mode: header.Mode & 0o7777}
	}
	return result, e.try(ctx, func(api API) error { return api.PutFiles(ctx, b.ID, files) })
}

// CopyOut packs a file or a directory of a box.
func (e *Extension) CopyOut(ctx context.Context, opts sdk.CopyOutOptions) (sdk.CopyOutResult, error) {
	b, s, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.CopyOutResult{}, err
	}
	from := path.Clean(opts.Path)
	var files map[string]BoxFile
	err = e.try(ctx, func(api API) (err error) {
		files, err = api.GetFiles(ctx, b.ID, from)
		return err
	})
	if err != nil {
		return sdk.CopyOutResult{}, err
	}
	result := sdk.CopyOutResult{}
	archive := tar.NewWriter(opts.Archive)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := files[name]
		shown := path.Join(path.Base(from), strings.TrimPrefix(name, from))
		// A fixed time: the same files give the same archive.
		header := &tar.Header{Name: shown, Mode: file.Mode, Size: int64(len(file.Content)), Typeflag: tar.TypeReg, ModTime: s.CreatedAt}
		if err := archive.WriteHeader(header); err != nil {
			return result, fmt.Errorf("pack %s: %w", name, err)
		}
		n, err := archive.Write(file.Content)
		if result.Bytes += int64(n); err != nil {
			return result, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	return result, archive.Close()
}

// Logs writes the log of the main process, which never grows.
func (e *Extension) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	b, err := e.find(ctx, opts.Target)
	if err != nil {
		return sdk.LogsResult{}, err
	}
	var log []byte
	err = e.try(ctx, func(api API) (err error) {
		log, err = api.GetLog(ctx, b.ID)
		return err
	})
	if err != nil {
		return sdk.LogsResult{}, err
	}
	if lines := bytes.SplitAfter(log, []byte("\n")); opts.Tail > 0 {
		if len(lines[len(lines)-1]) == 0 {
			lines = lines[:len(lines)-1]
		}
		log = bytes.Join(lines[max(0, len(lines)-opts.Tail):], nil)
	}
	n, err := discard(opts.Output).Write(log)
	return sdk.LogsResult{Bytes: int64(n)}, err
}

// Pause suspends a box.
func (e *Extension) Pause(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	s, err := e.toggle(ctx, opts.Target, API.PauseBox)
	return sdk.PauseResult{Sandbox: s}, err
}

// Resume lets a box go on.
func (e *Extension) Resume(ctx context.Context, opts sdk.ResumeOptions) (sdk.ResumeResult, error) {
	s, err := e.toggle(ctx, opts.Target, API.ResumeBox)
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
