// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package portable

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The bounds of an archive.
const (
	maxEntries = 4096
	maxJSON    = 8 << 20
	maxLayers  = 127

	maxVariables = 4096
	maxVariable  = 128 << 10
	// DefaultMaxSize bounds what an archive holds, packed and unpacked.
	DefaultMaxSize = 64 << 30
)

// Layer is one layer of an archive.
type Layer struct {
	Digest string // hex, of the layer as it is in the archive
	DiffID string // "sha256:…", of the tar
	Size   int64  // in the archive
	Zipped bool
}

// Archive is an archive that was read and verified.
type Archive struct {
	Document Document
	Config   Config
	Layers   []Layer
	Digest   string // of the image, "sha256:…"
	Unpacked int64  // bytes of content in the layers
	// Attributes are the files with extended attributes.
	Attributes Tally

	dir string
}

// OpenOptions are the options of [Open].
type OpenOptions struct {
	Dir     string // what to spool below; empty is the system's own
	MaxSize int64  // bytes, packed and unpacked; 0 is [DefaultMaxSize]
}

// Open reads an archive to its end and verifies all of it. What is wrong with
// it is [sdk.ErrInvalid].
func Open(ctx context.Context, from io.Reader, opts OpenOptions) (a *Archive, err error) {
	if opts.MaxSize <= 0 {
		opts.MaxSize = DefaultMaxSize
	}
	dir, err := os.MkdirTemp(opts.Dir, "sandboxer-import-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the archive: %w", err)
	}
	a = &Archive{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
			a = nil
		}
	}()
	root, err := a.spool(reader{ctx, from}, opts.MaxSize)
	if err != nil {
		return a, err
	}
	diffIDs, err := a.describe(root)
	if err != nil {
		return a, err
	}
	scan := scanner{left: opts.MaxSize, attributes: &a.Attributes}
	for i := range a.Layers {
		diffID, err := a.scan(ctx, &scan, i)
		if err != nil {
			return a, err
		}
		if diffID != diffIDs[i] {
			return a, refused("layer %d has the content %s, and its configuration says %s", i, diffID, clip(diffIDs[i]))
		}
		a.Layers[i].DiffID = diffID
	}
	a.Unpacked = opts.MaxSize - scan.left
	return a, nil
}

// Close removes what was spooled.
func (a *Archive) Close() error { return os.RemoveAll(a.dir) }

// Blob returns the path of a layer as it is in the archive. It is there until
// the archive is closed.
func (a *Archive) Blob(i int) string { return filepath.Join(a.dir, a.Layers[i].Digest) }

// Fits returns [sdk.ErrUnsupported] unless the image is for a processor.
func (a *Archive) Fits(architecture string) error {
	if a.Config.Architecture != architecture {
		return sdk.Unsupported("archive", "the snapshot is of a sandbox on %q, and this backend's machine is %q", clip(a.Config.Architecture), architecture)
	}
	return nil
}

// spool copies the parts of an archive, and returns its index.
func (a *Archive) spool(from io.Reader, most int64) (root []byte, err error) {
	archive := tar.NewReader(from)
	for n := 0; ; n++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, broken(err)
		}
		if n >= maxEntries {
			return nil, refused("it has more than %d parts", maxEntries)
		}
		if most -= header.Size; header.Size < 0 || most < 0 {
			return nil, refused("it is larger than what is taken")
		}
		name := path.Clean(header.Name)
		switch {
		case header.Typeflag == tar.TypeDir, header.Typeflag == tar.TypeXGlobalHeader:
		case header.Typeflag != tar.TypeReg || sparse(header):
			return nil, refused("%q is no regular file", clip(header.Name))
		case name == "index.json":
			if root != nil {
				return nil, refused("it has two indexes")
			}
			if root, err = readJSON(archive, name); err != nil {
				return nil, err
			}
		case strings.HasPrefix(name, blobs):
			if err := a.spoolBlob(archive, strings.TrimPrefix(name, blobs)); err != nil {
				return nil, err
			}
		}
	}
	if root == nil {
		return nil, refused("it is no OCI layout: it has no index.json")
	}
	return root, nil
}

func (a *Archive) spoolBlob(from io.Reader, digest string) error {
	if !isDigest(digest) {
		return refused("%q is no digest", clip(digest))
	}
	f, err := os.OpenFile(filepath.Join(a.dir, digest), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return refused("it has %s twice", digest)
	}
	if err != nil {
		return err
	}
	sum := sha256.New()
	source := &failing{r: from}
	_, err = io.Copy(io.MultiWriter(f, sum), source)
	if source.err != nil {
		err = broken(source.err)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if found := hex.EncodeToString(sum.Sum(nil)); found != digest {
		return refused("the content of %s has the digest %s", digest, found)
	}
	return nil
}

// describe reads what the parts say of each other.
func (a *Archive) describe(root []byte) (diffIDs []string, err error) {
	var top index
	if err := json.Unmarshal(root, &top); err != nil {
		return nil, refused("its index.json: %v", err)
	}
	if len(top.Manifests) != 1 {
		return nil, refused("it holds %d images, and a snapshot is one", len(top.Manifests))
	}
	a.Digest = top.Manifests[0].Digest
	var m manifest
	if err := a.read(top.Manifests[0], &m); err != nil {
		return nil, err
	}
	if a.Document, err = decode(m.Annotations[Annotation]); err != nil {
		return nil, err
	}
	var c imageConfig
	if err := a.read(m.Config, &c); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	a.Config = Config{Architecture: c.Architecture, Env: c.Config.Env, Workdir: c.Config.WorkingDir, User: c.Config.User}
	if n := len(m.Layers); n == 0 || n > maxLayers || n != len(c.RootFS.DiffIDs) {
		return nil, refused("it has %d layers, and its configuration names %d", n, len(c.RootFS.DiffIDs))
	}
	for _, d := range m.Layers {
		digest, err := a.find(d)
		if err != nil {
			return nil, err
		}
		if d.MediaType != typeLayer && d.MediaType != typePlain {
			return nil, refused("a layer of the type %q", clip(d.MediaType))
		}
		a.Layers = append(a.Layers, Layer{Digest: digest, Size: d.Size, Zipped: d.MediaType == typeLayer})
	}
	return c.RootFS.DiffIDs, nil
}

// check refuses what no process can be given.
func (c imageConfig) check() error {
	if c.OS != "linux" {
		return refused("it is for %q, and sandboxes are Linux", clip(c.OS))
	}
	if len(c.Config.Env) > maxVariables {
		return refused("its configuration has %d variables", len(c.Config.Env))
	}
	for _, variable := range c.Config.Env {
		if name, _, ok := strings.Cut(variable, "="); !ok || name == "" || len(variable) > maxVariable || strings.ContainsRune(variable, 0) {
			return refused("its configuration has the variable %q", clip(variable))
		}
	}
	for _, text := range []string{c.Config.User, c.Config.WorkingDir} {
		if len(text) > maxName || strings.ContainsAny(text, "\x00\n") {
			return refused("its configuration says %q", clip(text))
		}
	}
	return nil
}

// find returns the digest of a part that is there in the size that it should
// have. That its content is what the digest says was seen when it was spooled.
func (a *Archive) find(d descriptor) (digest string, err error) {
	digest, ok := strings.CutPrefix(d.Digest, digestName)
	if !ok || !isDigest(digest) {
		return "", refused("%q is no digest", clip(d.Digest))
	}
	info, err := os.Stat(filepath.Join(a.dir, digest))
	if errors.Is(err, os.ErrNotExist) {
		return "", refused("%s is missing: it was cut off, or parts were taken out", d.Digest)
	}
	if err != nil {
		return "", err
	}
	if info.Size() != d.Size {
		return "", refused("%s has %d bytes, and should have %d", d.Digest, info.Size(), d.Size)
	}
	return digest, nil
}

func (a *Archive) read(d descriptor, into any) error {
	digest, err := a.find(d)
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(a.dir, digest))
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := readJSON(f, digest)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return refused("%s: %v", digest, err)
	}
	return nil
}

func readJSON(from io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxJSON+1))
	if err != nil {
		return nil, broken(err)
	}
	if len(data) > maxJSON {
		return nil, refused("%s is larger than %d bytes", clip(name), maxJSON)
	}
	return data, nil
}

func isDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// broken is an error of the reader that an archive comes from.
func broken(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &sdk.Error{Kind: sdk.ErrInvalid, Path: "archive", Message: "it can't be read to its end", Err: err}
}

// failing remembers an error of the reader, to tell it from the writer's.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
