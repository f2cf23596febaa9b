// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package copytar makes, unpacks and checks the archives of sdk.Copier: for
// an extension that runs a program of its own inside of its sandboxes.
//
// An archive that goes in is hostile as far as the host is concerned, but it
// is unpacked in the sandbox, where it can harm only that. Names are still
// checked, so that a mistake is an error and not a file in a surprising place.
// What comes out is hostile too, and is checked on the host.
package copytar

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// baseOf returns what the names in an archive of a path begin with. The root
// has no name.
func baseOf(name string) string {
	if name = path.Clean(name); name == "/" {
		return "."
	}
	return path.Base(name)
}

// Check copies an archive of a path that came out of a sandbox, entry by entry,
// and returns how many bytes of content it has. It ends with an error before
// an entry whose name is not below the path's base name, or that is no file,
// directory or link. It reads no further than to the end of the archive.
func Check(to io.Writer, from io.Reader, name string) (int64, error) {
	base := baseOf(name)
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
		entry := path.Clean(strings.TrimSuffix(header.Name, "/"))
		// By the sandbox's rules for names, whatever system this runs on.
		leaves := path.IsAbs(entry) || entry == ".." || strings.HasPrefix(entry, "../")
		if leaves || base != "." && entry != base && !strings.HasPrefix(entry, base+"/") {
			return total, fmt.Errorf("the sandbox sent %.80q, outside of %.80q", header.Name, base)
		}
		switch header.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
		default:
			return total, fmt.Errorf("the sandbox sent %.80q of type %q", header.Name, header.Typeflag)
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
