// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Copying into a box and out of it.

import (
	"archive/tar"
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
		if header.Typeflag != tar.TypeDir && header.Typeflag != tar.TypeReg {
			return result, sdk.Unsupported("archive", "%.80q is neither a file nor a directory", header.Name)
		}
		name := path.Join(opts.Path, header.Name)
		if slices.Contains(strings.Split(header.Name, "/"), "..") || !path.IsAbs(name) {
			return result, sdk.Invalid("archive", "%.80q leads out of %s", header.Name, opts.Path)
		}
		if name == "/" {
			continue // every box has one
		}
		content, err := io.ReadAll(io.LimitReader(archive, maxCopy+1))
		if err != nil {
			return result, sdk.Invalid("archive", "%s", err)
		}
		if result.Bytes += int64(len(content)); result.Bytes > maxCopy {
			return result, sdk.Errorf(sdk.ErrQuota, "a copy of more than %d bytes", maxCopy)
		}
		files[name] = BoxFile{Content: content, Mode: header.Mode & 0o7777, Dir: header.Typeflag == tar.TypeDir}
	}
	return result, e.try(ctx, func(api API) error { return api.PutFiles(ctx, b.ID, files) })
}

// CopyOut packs a file or a directory of a box. A directory that nothing was
// ever said about is in the names of its files only.
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
		if file.Dir {
			header.Name, header.Typeflag = shown+"/", tar.TypeDir
		}
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
