// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Snapshots that go to other backends, and come from them.

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
)

// ExportSnapshot writes the files of an image.
func (e *Extension) ExportSnapshot(ctx context.Context, opts sdk.ExportSnapshotOptions) (result sdk.ExportSnapshotResult, err error) {
	i, err := e.findImage(ctx, opts.SnapshotID, opts.Fleet)
	if err != nil {
		return result, err
	}
	s, _, err := snapshotOf(i, opts.Fleet)
	if err != nil {
		return result, err
	}
	if s.Kind != sdk.SnapshotFilesystem {
		return result, &sdk.Error{Kind: sdk.ErrUnsupported, Path: "snapshot", Message: "snapshot " + s.ID + " is of memory, which only the vendor can go on with", Advice: "make a filesystem snapshot"}
	}
	var files map[string]BoxFile
	err = e.try(ctx, func(api API) (err error) {
		files, err = api.DownloadImage(ctx, i.ID)
		return err
	})
	if err != nil {
		return result, err
	}
	w, err := portable.NewWriter("")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.Layer(func(to io.Writer) error { return pack(to, files, s) }); err != nil {
		return result, err
	}
	result.Losses = []sdk.Loss{
		{Kind: sdk.LossMemory, Detail: "processes: the command starts anew"},
		{Kind: sdk.LossSecrets, Detail: "secret files, which the vendor keeps in no image"},
		{Kind: sdk.LossEnvironment, Detail: "variables of the create; those of the profile are carried"},
	}
	result.Bytes, result.Digest, err = w.Write(opts.Archive, portable.Config{Architecture: runtime.GOARCH}, portable.Document{
		SnapshotID: s.ID, SandboxID: s.SandboxID, Extension: Name, CreatedAt: s.CreatedAt, Profile: s.Profile,
		ProfileRevision: s.Identity.ProfileRevision, Owner: s.Identity.Owner, Task: s.Identity.Task, Labels: s.Identity.Labels, Losses: result.Losses,
	})
	return result, err
}

func pack(to io.Writer, files map[string]BoxFile, s sdk.Snapshot) error {
	out := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := files[name]
		header := &tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: file.Mode, Size: int64(len(file.Content)), Typeflag: tar.TypeReg, ModTime: s.CreatedAt}
		if file.Dir {
			header.Name, header.Typeflag = header.Name+"/", tar.TypeDir
		}
		if err := out.WriteHeader(header); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := out.Write(file.Content); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
	}
	return out.Close()
}

// ImportSnapshot makes an image of the files in an archive.
func (e *Extension) ImportSnapshot(ctx context.Context, opts sdk.ImportSnapshotOptions) (result sdk.ImportSnapshotResult, err error) {
	if opts.ExpiresAt.IsZero() {
		return result, sdk.Invalid("ttl", "there is no snapshot without a retention")
	}
	archive, err := portable.Open(ctx, opts.Archive, portable.OpenOptions{MaxSize: maxCopy})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	files, lost, err := unpack(archive)
	if err != nil {
		return result, err
	}
	result.Losses = append(archive.Document.Losses, lost.Loss(sdk.LossFiles, "what is neither a file nor a directory: a box has nothing else")...)
	identity := archive.Document.Identify(opts.Identity)
	identity.ID = opts.SnapshotID
	tags := identity.ToLabels()
	tags[tagSource], tags[tagProfile], tags[tagLost] = archive.Document.SandboxID, encode(archive.Document.Profile), encode(portable.Lines(result.Losses))
	var made Image
	err = e.try(ctx, func(api API) (err error) {
		made, err = api.UploadImage(ctx, Image{Name: opts.SnapshotID, Tags: tags, DeleteAt: opts.ExpiresAt}, files)
		return err
	})
	if answerLost(err) {
		if found, findErr := e.findImage(ctx, opts.SnapshotID, opts.Identity.Fleet); findErr == nil {
			made, err = found, nil
		}
	}
	if hasCode(err, CodeNameTaken) {
		err = &sdk.Error{Kind: sdk.ErrConflict, Message: "snapshot " + opts.SnapshotID + " exists already", Err: err}
	}
	if err != nil {
		return sdk.ImportSnapshotResult{}, err
	}
	result.Snapshot, _, err = snapshotOf(made, opts.Identity.Fleet)
	return result, err
}

// The names that say in a layer that something below is gone.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// unpack reads the files of all layers. Their names were checked.
func unpack(archive *portable.Archive) (files map[string]BoxFile, lost portable.Tally, err error) {
	files = map[string]BoxFile{}
	for i := range archive.Layers {
		if err := unpackLayer(archive, i, files, &lost); err != nil {
			return nil, lost, err
		}
	}
	return files, lost, nil
}

func unpackLayer(archive *portable.Archive, i int, files map[string]BoxFile, lost *portable.Tally) error {
	layer, err := archive.OpenLayer(i)
	if err != nil {
		return err
	}
	defer layer.Close()
	forget := func(name string, itself bool) {
		maps.DeleteFunc(files, func(other string, _ BoxFile) bool {
			return strings.HasPrefix(other, strings.TrimSuffix(name, "/")+"/") || itself && other == name
		})
	}
	in := tar.NewReader(layer)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return sdk.Invalid("archive", "layer %d: %s", i, err)
		}
		name := path.Join("/", header.Name)
		dir, base := path.Split(name)
		hidden, hides := strings.CutPrefix(base, whiteout)
		switch {
		case name == "/":
		case base == opaque:
			forget(path.Clean(dir), false)
		case hides:
			forget(path.Join(dir, hidden), true)
		case header.Typeflag == tar.TypeDir:
			files[name] = BoxFile{Mode: header.Mode & 0o7777, Dir: true}
		case header.Typeflag == tar.TypeReg:
			content, err := io.ReadAll(in)
			if err != nil {
				return sdk.Invalid("archive", "layer %d: %s", i, err)
			}
			if old := files[name]; old.Dir {
				forget(name, true)
			}
			files[name] = BoxFile{Content: content, Mode: header.Mode & 0o7777}
		case header.Typeflag == tar.TypeLink:
			linked, ok := files[path.Join("/", header.Linkname)]
			if !ok || linked.Dir {
				lost.Add(name)
				continue
			}
			files[name] = linked
		default:
			lost.Add(name)
		}
	}
}
