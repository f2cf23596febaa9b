// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Images by path. Whatever the file is, the engine gets an archive that it
// can load since long before OCI layouts, tagged with what the content is
// known by: so the same file is loaded once.

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
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
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// fileRepository is where images from files are tagged.
const fileRepository = "sandboxer.local/file"

// source is an image file.
type source struct {
	path     string
	key      string        // what its content is known by
	manifest *saveManifest // of an archive or a layout; nil is a root filesystem
	layout   bool
}

// saveManifest is the entry of an image in the manifest.json of an archive.
type saveManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (e *Extension) imageFile(ctx context.Context, eng engine, name string, progress func(sdk.Progress)) (image, error) {
	file := name
	if home := e.opts.Getenv("HOME"); strings.HasPrefix(file, "~/") && home != "" {
		file = filepath.Join(home, file[2:])
	}
	src, err := openSource(file)
	if err != nil {
		return image{}, &sdk.Error{Kind: sdk.ErrInvalid, Path: "image", Message: clip(name) + " can't be used", Err: err}
	}
	tag := fileRepository + ":" + src.key
	img, err := e.inspectImage(ctx, eng, tag)
	if !errdefs.IsNotFound(err) {
		return img, e.imageError(err, "image "+clip(name))
	}
	if progress != nil {
		progress(sdk.Progress{Phase: "unpack", Message: "loading " + clip(name) + " into the engine"})
	}
	if err := e.load(ctx, eng, src, tag); err != nil {
		return image{}, err
	}
	img, err = e.inspectImage(ctx, eng, tag)
	return img, e.imageError(err, "image "+clip(name))
}

// load streams an image file to the engine.
func (e *Extension) load(ctx context.Context, eng engine, src source, tag string) error {
	read, write := io.Pipe()
	go func() { write.CloseWithError(src.writeTo(write, tag)) }()
	defer read.Close()
	var answer io.ReadCloser
	var err error
	if src.manifest == nil {
		answer, err = eng.ImageImport(ctx, client.ImageImportSource{Source: read, SourceName: "-"}, tag, client.ImageImportOptions{})
	} else {
		answer, err = eng.ImageLoad(ctx, read, client.ImageLoadWithQuiet(true))
	}
	if err != nil {
		return e.imageError(err, "load "+clip(src.path))
	}
	defer answer.Close()
	return answered(answer, "load "+clip(src.path))
}

// answered reads the engine's account of a load to its end.
func answered(answer io.Reader, what string) error {
	decoder := json.NewDecoder(answer)
	for {
		var line struct {
			Error string `json:"error"`
		}
		err := decoder.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: the engine's answer broke off: %w", what, err)
		case line.Error != "":
			return &sdk.Error{Kind: sdk.ErrInvalid, Path: "image", Message: fmt.Sprintf("%s: %s", what, clip(line.Error))}
		}
	}
}

// openSource finds out what a path is.
func openSource(name string) (source, error) {
	absolute, err := filepath.Abs(name)
	if err != nil {
		return source{}, err
	}
	info, err := os.Stat(absolute)
	if err != nil {
		return source{}, err
	}
	src := source{path: absolute}
	if info.IsDir() {
		src.layout = true
		src.manifest, src.key, err = readLayout(absolute)
		return src, err
	}
	err = src.archive(func(tree *tar.Reader) error {
		src.manifest, err = findManifest(tree)
		return err
	})
	if err != nil {
		return src, err
	}
	if src.manifest != nil {
		src.key = keyOf(src.manifest.Config, src.manifest.Layers...)
		return src, nil
	}
	src.key, err = hashFile(absolute)
	return src, err
}

func keyOf(first string, more ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{first}, more...), "\n")))
	return hex.EncodeToString(sum[:])
}

func hashFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// archive opens a tar, packed with gzip or not.
func (s source) archive(read func(*tar.Reader) error) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	var head [2]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return errors.New("it is no tar archive")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if head == [2]byte{0x1f, 0x8b} {
		unpacked, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
		if err != nil {
			return err
		}
		return read(tar.NewReader(unpacked))
	}
	return read(tar.NewReader(f)) // which seeks over content
}

// maxManifest bounds the JSON of an image.
const maxManifest = 4 << 20

// findManifest reads the manifest.json of an archive; nil when there is none.
func findManifest(tree *tar.Reader) (*saveManifest, error) {
	layout := false
	for {
		header, err := tree.Next()
		if errors.Is(err, io.EOF) && !layout {
			return nil, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is an OCI archive without a manifest.json: unpack it and name the directory")
		}
		if err != nil {
			return nil, fmt.Errorf("it is no tar archive: %w", err)
		}
		switch path.Clean(header.Name) {
		case "oci-layout":
			layout = true
		case "manifest.json":
			var images []saveManifest
			if err := json.NewDecoder(io.LimitReader(tree, maxManifest)).Decode(&images); err != nil {
				return nil, fmt.Errorf("its manifest.json: %w", err)
			}
			if len(images) != 1 || images[0].Config == "" {
				return nil, fmt.Errorf("it holds %d images, and one is wanted", len(images))
			}
			return &images[0], nil
		}
	}
}

// writeTo writes what the engine loads.
func (s source) writeTo(w io.Writer, tag string) error {
	if s.manifest == nil {
		f, err := os.Open(s.path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}
	out := tar.NewWriter(w)
	wanted := append([]string{s.manifest.Config}, s.manifest.Layers...)
	copied := func(name string, size int64, content io.Reader) error {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err := io.Copy(out, content)
		return err
	}
	var err error
	if s.layout {
		err = s.copyBlobs(wanted, copied)
	} else {
		err = s.archive(func(tree *tar.Reader) error { return copyEntries(tree, out, wanted) })
	}
	if err != nil {
		return err
	}
	tagged := *s.manifest
	tagged.RepoTags = []string{tag}
	encoded := encode([]saveManifest{tagged})
	if err := copied("manifest.json", int64(len(encoded)), strings.NewReader(encoded)); err != nil {
		return err
	}
	return out.Close()
}

// copyEntries copies what a manifest names. Archives of old have layers that
// are links to others.
func copyEntries(tree *tar.Reader, out *tar.Writer, wanted []string) error {
	for {
		header, err := tree.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeSymlink && !slices.Contains(wanted, header.Name) {
			continue
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(out, tree); err != nil {
			return err
		}
	}
}

func (s source) copyBlobs(wanted []string, copied func(name string, size int64, content io.Reader) error) error {
	done := map[string]bool{}
	for _, name := range wanted {
		if done[name] {
			continue
		}
		done[name] = true
		f, err := os.Open(filepath.Join(s.path, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			err = copied(name, info.Size(), io.LimitReader(f, info.Size()))
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// descriptor is what OCI documents name others by.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Platform  *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// blob is the path of a descriptor's content in a layout.
func (d descriptor) blob() (string, error) {
	algorithm, sum, ok := strings.Cut(d.Digest, ":")
	if !ok || algorithm != "sha256" || len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%q is no digest", clip(d.Digest))
	}
	return "blobs/sha256/" + sum, nil
}

// readLayout reads an OCI layout: its only image, or the one for Linux.
func readLayout(dir string) (*saveManifest, string, error) {
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := readJSON(filepath.Join(dir, "index.json"), &index); err != nil {
		return nil, "", fmt.Errorf("it is no OCI layout: %w", err)
	}
	for depth := 0; ; depth++ {
		chosen, err := choose(index.Manifests)
		if err != nil {
			return nil, "", err
		}
		name, err := chosen.blob()
		if err != nil {
			return nil, "", err
		}
		var manifest struct {
			Manifests []descriptor `json:"manifests"`
			Config    descriptor   `json:"config"`
			Layers    []descriptor `json:"layers"`
		}
		if err := readJSON(filepath.Join(dir, filepath.FromSlash(name)), &manifest); err != nil {
			return nil, "", err
		}
		if len(manifest.Manifests) > 0 && depth < 3 {
			index.Manifests = manifest.Manifests
			continue
		}
		m := &saveManifest{}
		if m.Config, err = manifest.Config.blob(); err != nil {
			return nil, "", err
		}
		for _, layer := range manifest.Layers {
			if strings.HasSuffix(layer.MediaType, "zstd") {
				return nil, "", errors.New("a layer is packed with zstd, which many engines can't load")
			}
			blob, err := layer.blob()
			if err != nil {
				return nil, "", err
			}
			m.Layers = append(m.Layers, blob)
		}
		return m, keyOf(m.Config, m.Layers...), nil
	}
}

func choose(all []descriptor) (descriptor, error) {
	linux := slices.DeleteFunc(slices.Clone(all), func(d descriptor) bool { return d.Platform != nil && d.Platform.OS != "linux" })
	if len(linux) != 1 {
		return descriptor{}, fmt.Errorf("it holds %d images for Linux, and one is wanted", len(linux))
	}
	return linux[0], nil
}

func readJSON(name string, into any) error {
	data, err := readBounded(name)
	if err != nil {
		return err
	}
	return json.NewDecoder(bytes.NewReader(data)).Decode(into)
}
