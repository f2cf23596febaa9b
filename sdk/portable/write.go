// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package portable

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// The media types of OCI.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
	typePlain    = "application/vnd.oci.image.layer.v1.tar"
)

const (
	blobs      = "blobs/sha256/"
	digestName = "sha256:"
)

// descriptor is what OCI documents name others by.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// saved is the entry of an image in a manifest.json.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// imageConfig is the configuration of an image.
type imageConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       struct {
		Env        []string            `json:"Env,omitempty"`
		WorkingDir string              `json:"WorkingDir,omitempty"`
		User       string              `json:"User,omitempty"`
		Volumes    map[string]struct{} `json:"Volumes,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// Writer puts an archive together. A layer is packed to a file, since its
// digest and size come before it in the archive.
type Writer struct {
	dir    string
	layers []Layer
}

// NewWriter returns a writer that spools below a directory; empty is the
// system's own for such files.
func NewWriter(dir string) (*Writer, error) {
	dir, err := os.MkdirTemp(dir, "sandboxer-export-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the archive: %w", err)
	}
	return &Writer{dir: dir}, nil
}

// Close removes what was spooled.
func (w *Writer) Close() error { return os.RemoveAll(w.dir) }

// Layer adds a layer: what write writes, a tar. The first layer is the lowest.
func (w *Writer) Layer(write func(io.Writer) error) error {
	f, err := os.CreateTemp(w.dir, "layer-")
	if err != nil {
		return err
	}
	packed, plain := sha256.New(), sha256.New()
	zip, err := gzip.NewWriterLevel(io.MultiWriter(f, packed), gzip.BestSpeed)
	if err == nil {
		err = write(io.MultiWriter(zip, plain))
	}
	if err == nil {
		err = zip.Close()
	}
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil {
		return err
	}
	layer := Layer{Digest: hex.EncodeToString(packed.Sum(nil)), DiffID: digestName + hex.EncodeToString(plain.Sum(nil)), Size: info.Size(), Zipped: true}
	w.layers = append(w.layers, layer)
	return os.Rename(f.Name(), filepath.Join(w.dir, layer.Digest))
}

// Write writes the archive. It returns its size and the digest of the image.
func (w *Writer) Write(to io.Writer, c Config, d Document) (bytes int64, digest string, err error) {
	document, err := d.encode()
	if err != nil {
		return 0, "", err
	}
	config := imageConfig{Created: d.CreatedAt.UTC(), Architecture: c.Architecture, OS: "linux"}
	config.Config.Env, config.Config.WorkingDir, config.Config.User = c.Env, c.Workdir, c.User
	for _, volume := range d.Volumes {
		if config.Config.Volumes == nil {
			config.Config.Volumes = map[string]struct{}{}
		}
		config.Config.Volumes[volume] = struct{}{}
	}
	m := manifest{SchemaVersion: 2, MediaType: typeManifest, Annotations: map[string]string{Annotation: document}, Layers: []descriptor{}}
	config.RootFS.Type, config.RootFS.DiffIDs = "layers", []string{}
	old := saved{RepoTags: []string{}, Layers: []string{}}
	for _, layer := range w.layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.DiffID)
		m.Layers = append(m.Layers, descriptor{MediaType: typeLayer, Digest: digestName + layer.Digest, Size: layer.Size})
		old.Layers = append(old.Layers, blobs+layer.Digest)
	}
	configJSON, configDescriptor := describe(config, typeConfig)
	m.Config = configDescriptor
	old.Config = blobs + trimDigest(configDescriptor.Digest)
	manifestJSON, manifestDescriptor := describe(m, typeManifest)
	manifestDescriptor.Platform = &platform{OS: "linux", Architecture: c.Architecture}
	manifestDescriptor.Annotations = map[string]string{"org.opencontainers.image.ref.name": d.SnapshotID}
	indexJSON, _ := describe(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{manifestDescriptor}}, typeIndex)
	oldJSON, _ := describe([]saved{old}, "")

	counted := &counter{w: to}
	out := tar.NewWriter(counted)
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", indexJSON}, {"manifest.json", oldJSON},
		{blobs + trimDigest(manifestDescriptor.Digest), manifestJSON}, {old.Config, configJSON},
	} {
		if err := out.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.content)), Typeflag: tar.TypeReg}); err != nil {
			return counted.n, "", err
		}
		if _, err := out.Write(file.content); err != nil {
			return counted.n, "", err
		}
	}
	written := map[string]bool{}
	for _, layer := range w.layers {
		if !written[layer.Digest] {
			written[layer.Digest] = true
			if err := w.copyLayer(out, layer); err != nil {
				return counted.n, "", err
			}
		}
	}
	err = out.Close()
	return counted.n, manifestDescriptor.Digest, err
}

func (w *Writer) copyLayer(out *tar.Writer, layer Layer) error {
	f, err := os.Open(filepath.Join(w.dir, layer.Digest))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := out.WriteHeader(&tar.Header{Name: blobs + layer.Digest, Mode: 0o644, Size: layer.Size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}

// describe encodes a document and describes it. Values of our own types
// always encode.
func describe(value any, mediaType string) ([]byte, descriptor) {
	encoded, _ := json.Marshal(value)
	sum := sha256.Sum256(encoded)
	return encoded, descriptor{MediaType: mediaType, Digest: digestName + hex.EncodeToString(sum[:]), Size: int64(len(encoded))}
}

func trimDigest(digest string) string { return digest[len(digestName):] }

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
