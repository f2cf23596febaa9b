// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package portable

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"strings"
)

// The bounds of what layers hold.
const (
	maxFiles = 4_000_000
	maxName  = 4096
	maxDepth = 256
	// A file system of zeros compresses a thousand times, a real one five times.
	guardFrom  = 256 << 20
	guardRatio = 100
)

// xattrPrefix is how a tar names an extended attribute.
const xattrPrefix = "SCHILY.xattr."

// HasAttributes reports whether an entry carries extended attributes.
func HasAttributes(header *tar.Header) bool {
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, xattrPrefix) {
			return true
		}
	}
	return false
}

// OpenLayer returns the tar of a layer.
func (a *Archive) OpenLayer(i int) (io.ReadCloser, error) {
	f, err := os.Open(a.Blob(i))
	if err != nil || !a.Layers[i].Zipped {
		return f, err
	}
	plain, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, refused("layer %d: %v", i, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, f}, nil
}

// scan looks at every entry of a layer, and returns the digest of its tar.
func (a *Archive) scan(ctx context.Context, s *scanner, i int) (diffID string, err error) {
	layer, err := a.OpenLayer(i)
	if err != nil {
		return "", err
	}
	defer layer.Close()
	sum := sha256.New()
	guarded := &guard{r: reader{ctx, layer}, most: max(guardFrom, guardRatio*a.Layers[i].Size)}
	if err := s.layer(io.TeeReader(guarded, sum)); err != nil {
		return "", err
	}
	return digestName + hex.EncodeToString(sum.Sum(nil)), nil
}

// guard ends streams that grow out of all proportion.
type guard struct {
	r       io.Reader
	n, most int64
}

func (g *guard) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	if g.n += int64(n); g.n > g.most {
		return 0, refused("a layer unpacks to more than %d times its size", guardRatio)
	}
	return n, err
}

// scanner holds the entries of all layers against the bounds.
type scanner struct {
	files      int
	left       int64 // bytes
	attributes *Tally
}

func (s *scanner) layer(from io.Reader) error {
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return broken(err)
		}
		if err := s.entry(header); err != nil {
			return err
		}
	}
	// The digest is over what follows the end, too.
	if _, err := io.Copy(io.Discard, from); err != nil {
		return broken(err)
	}
	return nil
}

func (s *scanner) entry(header *tar.Header) error {
	if s.files++; s.files > maxFiles {
		return refused("more than %d files", maxFiles)
	}
	if s.left -= header.Size; header.Size < 0 || s.left < 0 {
		return refused("its files are larger than what is taken")
	}
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := checkName(header.Name); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeFifo:
	case tar.TypeSymlink:
		if header.Linkname == "" || len(header.Linkname) > maxName || strings.ContainsRune(header.Linkname, 0) {
			return refused("%q is a link to %q", clip(header.Name), clip(header.Linkname))
		}
	case tar.TypeLink:
		if err := checkName(header.Linkname); err != nil {
			return err
		}
	default:
		return refused("%q is of type %q: neither a file, a directory, a link nor a pipe", clip(header.Name), header.Typeflag)
	}
	if sparse(header) {
		return refused("%q is a sparse file, which may be of any size", clip(header.Name))
	}
	if HasAttributes(header) {
		s.attributes.Add(path.Join("/", header.Name))
	}
	return nil
}

// checkName refuses names that lead out of the root.
func checkName(name string) error {
	if name == "" || len(name) > maxName || strings.ContainsRune(name, 0) || strings.Count(name, "/") > maxDepth {
		return refused("the name %q", clip(name))
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return refused("the name %q leads out of the sandbox", clip(name))
		}
	}
	return nil
}

// sparse reports whether the reader would fill holes in: a few bytes of
// archive can then stand for a file of any size.
func sparse(header *tar.Header) bool {
	if header.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}
