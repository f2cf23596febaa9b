// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Copy in and out: our own helper, started inside the sandbox from a
// descriptor, packs and unpacks there. So an image needs no tar, and no path
// of the sandbox is ever resolved on the host.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
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
	if err := e.helper(ctx, opts.Target, "copy in", opts.Archive, &out, "tar-in", opts.Path); err != nil {
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
		read.CloseWithError(err)
		done <- checked{n, err}
	}()
	err := e.helper(ctx, opts.Target, "copy out", nil, write, "tar-out", opts.Path)
	write.CloseWithError(err)
	result := <-done
	if err == nil {
		err = result.err
	}
	return sdk.CopyOutResult{Bytes: result.bytes}, err
}

// helper runs one of our helpers in the sandbox.
func (e *Extension) helper(ctx context.Context, target sdk.Target, what string, stdin io.Reader, stdout io.Writer, args ...string) error {
	r, dir, err := e.awake(target)
	if err != nil {
		return err
	}
	var errs limited
	code := 0
	err = streamed(stdin, stdout, &errs, func(streams [3]*os.File) error {
		var err error
		code, err = supervisor.Helper(ctx, dir, args, streams)
		return err
	})
	if err != nil {
		return e.callError(r.ID, dir, what, err)
	}
	if code != 0 {
		why := strings.TrimPrefix(strings.TrimSpace(errs.String()), "sandboxer: ")
		if strings.Contains(why, "no such file") {
			return &sdk.Error{Kind: sdk.ErrInvalid, Path: "path", Message: fmt.Sprintf("%s: %s: %s", named(r.ID), what, why)}
		}
		return fmt.Errorf("%s: %s: %s", named(r.ID), what, why)
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
