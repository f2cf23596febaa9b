// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

// The forms that an image by path can have: an OCI layout (a directory or a
// tar of it), a `docker save` archive, or a tar of a root filesystem, each
// archive also compressed with gzip.

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Config is what an image says about the processes in it.
type Config struct {
	Env     []string `json:"env,omitempty"`
	Workdir string   `json:"workdir,omitempty"`
	User    string   `json:"user,omitempty"`
}

const maxJSON = 8 << 20

// blobs gives the parts of an image by name.
type blobs interface {
	open(name string) (io.ReadCloser, error)
}

// layer is one layer and the digest that it has to have, if it is named by
// one.
type layer struct {
	name   string
	digest string
}

// image is an image that was found.
type image struct {
	config Config
	layers []layer
}

// dirBlobs is an OCI layout in a directory.
type dirBlobs struct{ root *os.Root }

func (d dirBlobs) open(name string) (io.ReadCloser, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, refused("%q is not a regular file", clip(name))
	}
	return f, nil
}

// tarBlobs is an archive that is not compressed, by the places of its files.
type tarBlobs struct {
	file  *os.File
	index map[string]place
}

type place struct {
	offset, size int64
	link         string
}

func (t tarBlobs) open(name string) (io.ReadCloser, error) {
	p, ok := t.index[path.Clean(name)]
	if ok && p.link != "" {
		// Old archives name a layer that they hold already by a link.
		p, ok = t.index[p.link]
	}
	if !ok || p.link != "" {
		return nil, fmt.Errorf("%q: %w", clip(name), os.ErrNotExist)
	}
	return io.NopCloser(io.NewSectionReader(t.file, p.offset, p.size)), nil
}

// indexTar lists an archive's files.
func indexTar(f *os.File) (tarBlobs, error) {
	index := map[string]place{}
	archive := tar.NewReader(f)
	for n := 0; ; n++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return tarBlobs{f, index}, nil
		}
		if err != nil {
			return tarBlobs{}, fmt.Errorf("read the archive: %w", err)
		}
		if n >= maxEntries {
			return tarBlobs{}, refused("more than %d entries", maxEntries)
		}
		name := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			// The reader takes whole blocks and nothing ahead, so this is where
			// the content begins.
			offset, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return tarBlobs{}, err
			}
			index[name] = place{offset: offset, size: header.Size}
		case tar.TypeSymlink:
			index[name] = place{link: path.Clean(path.Join(path.Dir(name), header.Linkname))}
		case tar.TypeLink:
			index[name] = place{link: path.Clean(header.Linkname)}
		}
	}
}

// readJSON reads a small document and checks its digest where it has one.
func readJSON(b blobs, name, digest string, into any) error {
	r, err := b.open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxJSON+1))
	if err != nil {
		return err
	}
	if len(data) > maxJSON {
		return refused("%q is larger than %d bytes", clip(name), maxJSON)
	}
	if sum := sha256.Sum256(data); digest != "" && hex.EncodeToString(sum[:]) != digest {
		return refused("%q does not have the digest that names it", clip(name))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%q: %w", clip(name), err)
	}
	return nil
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Platform  *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// blob returns the name and the hex digest of a descriptor's content.
func (d descriptor) blob() (name, digest string, err error) {
	digest, ok := strings.CutPrefix(d.Digest, "sha256:")
	if !ok || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
		return "", "", refused("%q is not a sha256 digest", clip(d.Digest))
	}
	return blobPrefix + digest, digest, nil
}

type manifest struct {
	MediaType string       `json:"mediaType"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
	Manifests []descriptor `json:"manifests"` // of an index
}

type imageConfig struct {
	Architecture string `json:"architecture"`
	Config       struct {
		Env        []string `json:"Env"`
		WorkingDir string   `json:"WorkingDir"`
		User       string   `json:"User"`
	} `json:"config"`
}

// ociImage reads an OCI layout.
func ociImage(b blobs) (image, error) {
	var m manifest
	if err := readJSON(b, "index.json", "", &m); err != nil {
		return image{}, err
	}
	for depth := 0; len(m.Manifests) > 0; depth++ {
		if depth > 4 {
			return image{}, refused("an index of indexes of indexes")
		}
		chosen, err := choose(m.Manifests)
		if err != nil {
			return image{}, err
		}
		name, digest, err := chosen.blob()
		if err != nil {
			return image{}, err
		}
		m = manifest{}
		if err := readJSON(b, name, digest, &m); err != nil {
			return image{}, err
		}
	}
	if len(m.Layers) > maxLayers {
		return image{}, refused("%d layers", len(m.Layers))
	}
	name, digest, err := m.Config.blob()
	if err != nil {
		return image{}, err
	}
	var c imageConfig
	if err := readJSON(b, name, digest, &c); err != nil {
		return image{}, err
	}
	var img image
	for _, d := range m.Layers {
		if strings.Contains(d.MediaType, "zstd") {
			return image{}, refused("its layers are compressed with zstd; gzip and no compression are known")
		}
		name, digest, err := d.blob()
		if err != nil {
			return image{}, err
		}
		img.layers = append(img.layers, layer{name, digest})
	}
	return img, c.into(&img)
}

// blobPrefix is where an OCI layout has its parts.
const blobPrefix = "blobs/sha256/"

const maxLayers = 512

// choose picks the image for this machine.
func choose(list []descriptor) (descriptor, error) {
	var found []string
	for _, d := range list {
		if d.Platform == nil || d.Platform.OS == "" || d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH {
			return d, nil
		}
		found = append(found, d.Platform.OS+"/"+d.Platform.Architecture)
	}
	return descriptor{}, fmt.Errorf("no image for linux/%s; there is %s", runtime.GOARCH, clip(strings.Join(found, ", ")))
}

func (c imageConfig) into(img *image) error {
	if c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return fmt.Errorf("the image is for %q, and this machine is %s", clip(c.Architecture), runtime.GOARCH)
	}
	img.config = Config{Env: c.Config.Env, Workdir: c.Config.WorkingDir, User: c.Config.User}
	return nil
}

// dockerImage reads what `docker save` wrote.
func dockerImage(b blobs) (image, error) {
	var list []struct {
		Config string
		Layers []string
	}
	if err := readJSON(b, "manifest.json", "", &list); err != nil {
		return image{}, err
	}
	if len(list) != 1 {
		return image{}, fmt.Errorf("the archive holds %d images; one is wanted", len(list))
	}
	if len(list[0].Layers) > maxLayers {
		return image{}, refused("%d layers", len(list[0].Layers))
	}
	var c imageConfig
	if err := readJSON(b, list[0].Config, "", &c); err != nil {
		return image{}, err
	}
	var img image
	for _, name := range list[0].Layers {
		img.layers = append(img.layers, layer{name: name})
	}
	return img, c.into(&img)
}

// applyLayer adds one layer of an image to a tree.
func applyLayer(t *tree, b blobs, l layer) error {
	r, err := b.open(l.name)
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	plain, err := decompress(io.TeeReader(r, sum))
	if err != nil {
		return err
	}
	if err := t.apply(plain); err != nil {
		return err
	}
	if l.digest == "" {
		return nil
	}
	return checkDigest(sum, r, l)
}

func checkDigest(sum hash.Hash, rest io.Reader, l layer) error {
	if _, err := io.Copy(sum, rest); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != l.digest {
		return refused("layer %q does not have the digest that names it", clip(l.name))
	}
	return nil
}

// decompress undoes gzip where there is any, with a guard against streams
// that grow out of all proportion.
func decompress(r io.Reader) (io.Reader, error) {
	counted := &counter{r: r}
	head := make([]byte, 4)
	n, err := io.ReadFull(counted, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	all := io.MultiReader(bytes.NewReader(head[:n]), counted)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		plain, err := gzip.NewReader(all)
		if err != nil {
			return nil, err
		}
		return &guarded{r: plain, in: counted}, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, refused("compressed with zstd; gzip and no compression are known")
	case bytes.HasPrefix(head, []byte("BZh")), bytes.HasPrefix(head, []byte{0xfd, '7', 'z'}):
		return nil, refused("compressed with bzip2 or xz; gzip and no compression are known")
	}
	return all, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// A file system of zeros compresses a thousand times, a real one five times.
const (
	guardFrom  = 256 << 20
	guardRatio = 100
)

type guarded struct {
	r   io.Reader
	in  *counter
	out int64
}

func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	if g.out += int64(n); g.out > guardFrom && g.out > guardRatio*g.in.n {
		return 0, refused("it decompresses to more than %d times its size", guardRatio)
	}
	return n, err
}

// kind tells which form of image an archive's names make it.
func (t tarBlobs) kind() string {
	if _, ok := t.index["manifest.json"]; ok {
		return "docker"
	}
	_, layout := t.index["oci-layout"]
	if _, index := t.index["index.json"]; index && layout {
		return "oci"
	}
	return "rootfs"
}

// openLayout opens an OCI layout's directory.
func openLayout(dir string) (dirBlobs, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return dirBlobs{}, err
	}
	if _, err := root.Stat("index.json"); err != nil {
		root.Close()
		return dirBlobs{}, fmt.Errorf("%s is a directory, but no OCI layout: %w", filepath.Base(dir), err)
	}
	return dirBlobs{root}, nil
}
