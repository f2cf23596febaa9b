// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Copy in and out: our own program packs and unpacks inside of the sandbox.
// The engine's archive calls would not see what lies on tmpfs, and follow
// links out of the directory that a copy is for.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/copytar"
)

// CopyIn implements [sdk.Copier].
func (e *Extension) CopyIn(ctx context.Context, opts sdk.CopyInOptions) (sdk.CopyInResult, error) {
	if !path.IsAbs(opts.Path) {
		return sdk.CopyInResult{}, sdk.Invalid("path", "%q is not an absolute path", clip(opts.Path))
	}
	if opts.Archive == nil {
		return sdk.CopyInResult{}, sdk.Invalid("archive", "there is none")
	}
	var out bytes.Buffer
	if err := e.helper(ctx, opts.Target, "copy in", opts.Archive, &out, guestwire.VerbTarIn, opts.Path); err != nil {
		return sdk.CopyInResult{}, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(out.String()), 10, 64)
	return sdk.CopyInResult{Bytes: n}, err
}

// CopyOut implements [sdk.Copier]. What comes out of a sandbox is hostile:
// the stream is checked to be a tar whose names stay below the path's base
// name before a caller sees any of it.
func (e *Extension) CopyOut(ctx context.Context, opts sdk.CopyOutOptions) (sdk.CopyOutResult, error) {
	if !path.IsAbs(opts.Path) {
		return sdk.CopyOutResult{}, sdk.Invalid("path", "%q is not an absolute path", clip(opts.Path))
	}
	if opts.Archive == nil {
		return sdk.CopyOutResult{}, sdk.Invalid("archive", "there is none")
	}
	read, write := io.Pipe()
	type checked struct {
		bytes int64
		err   error
	}
	done := make(chan checked, 1)
	go func() {
		n, err := copytar.Check(opts.Archive, read, opts.Path)
		if err == nil {
			// What follows the end marker is padding; the sender waits for it
			// to be read.
			_, _ = io.Copy(io.Discard, read)
		}
		read.CloseWithError(err)
		done <- checked{n, err}
	}()
	err := e.helper(ctx, opts.Target, "copy out", nil, write, guestwire.VerbTarOut, opts.Path)
	write.CloseWithError(err)
	result := <-done
	if err == nil {
		err = result.err
	}
	return sdk.CopyOutResult{Bytes: result.bytes}, err
}

// helper runs one of our helpers in the sandbox, as its root.
func (e *Extension) helper(ctx context.Context, target sdk.Target, what string, stdin io.Reader, stdout io.Writer, args ...string) error {
	eng, _, o, s, err := e.awake(ctx, target)
	if err != nil {
		return err
	}
	var errs limited
	code, err := e.call(ctx, eng, call{
		id: s.ID, container: o.main.ID, user: "0", command: append([]string{guestwire.Program}, args...), stdin: stdin, stdout: stdout, stderr: &errs,
	})
	if err != nil {
		return e.gone(ctx, target, err)
	}
	if code != 0 {
		why := strings.TrimPrefix(strings.TrimSpace(errs.String()), "sandboxer: ")
		if strings.Contains(why, "no such file") {
			return &sdk.Error{Kind: sdk.ErrInvalid, Path: "path", Message: fmt.Sprintf("sandbox %s: %s: %s", s.ID, what, why)}
		}
		return fmt.Errorf("sandbox %s: %s: %s (exit code %d)", s.ID, what, why, code)
	}
	return nil
}

// limited keeps the beginning of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := 4096 - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
