// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Copy in and out: our own helper, started inside the sandbox from a
// descriptor, packs and unpacks there. So an image needs no tar, and no path
// of the sandbox is ever resolved on the host.

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
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
		base := path.Base(path.Clean(opts.Path))
		if base == "/" {
			base = "." // the root has no name
		}
		n, err := checkedTar(opts.Archive, read, base)
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

// checkedTar copies an archive, entry by entry.
func checkedTar(to io.Writer, from io.Reader, base string) (int64, error) {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	var total int64
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return total, out.Close()
		}
		if err != nil {
			return total, fmt.Errorf("the sandbox sent no archive: %w", err)
		}
		name := path.Clean(strings.TrimSuffix(header.Name, "/"))
		if !filepath.IsLocal(name) || base != "." && name != base && !strings.HasPrefix(name, base+"/") {
			return total, fmt.Errorf("the sandbox sent %q, outside of %q", clip(header.Name), base)
		}
		switch header.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
		default:
			return total, fmt.Errorf("the sandbox sent %q of type %q", clip(header.Name), header.Typeflag)
		}
		if err := out.WriteHeader(header); err != nil {
			return total, err
		}
		n, err := io.Copy(out, in)
		total += n
		if err != nil {
			return total, err
		}
	}
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
