// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"io"
	"os"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name string
	path string
	mode os.FileMode
}

// stamp is the time of every file in an archive: the same sources give the
// same bytes.
var stamp = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// pack writes an archive in the given format.
func pack(format, path string, entries []entry) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := out.Close(); err == nil {
			err = closeErr
		}
	}()
	if format == "zip" {
		return packZip(out, entries)
	}
	return packTarGz(out, entries)
}

func packZip(out io.Writer, entries []entry) error {
	w := zip.NewWriter(out)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: stamp}
		header.SetMode(e.mode)
		to, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if err := copyFrom(to, e.path); err != nil {
			return err
		}
	}
	return w.Close()
}

func packTarGz(out io.Writer, entries []entry) error {
	compressed := gzip.NewWriter(out)
	w := tar.NewWriter(compressed)
	for _, e := range entries {
		info, err := os.Stat(e.path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), Size: info.Size(), ModTime: stamp, Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if err := copyFrom(w, e.path); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

func copyFrom(to io.Writer, path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(to, in)
	return err
}
