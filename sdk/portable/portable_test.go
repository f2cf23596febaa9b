// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package portable

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func testDocument() Document {
	return Document{
		SnapshotID: "snp-" + strings.Repeat("a", 20), SandboxID: "sbx-" + strings.Repeat("b", 20), Extension: "test",
		CreatedAt: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Profile: sdk.Profile{Name: "web", Image: "img", Env: map[string]string{"A": "b"}},
		ProfileRevision: "web@sha256:00", Owner: "me", Labels: map[string]string{"suite": "one"}, Volumes: []string{"/data"},
		Losses: []sdk.Loss{{Kind: sdk.LossMemory, Detail: "processes"}},
	}
}

func testConfig() Config {
	return Config{Architecture: "amd64", Env: []string{"PATH=/bin"}, Workdir: "/srv", User: "app"}
}

// layer writes entries as a tar; the content of a file is its name.
func layer(headers ...*tar.Header) func(io.Writer) error {
	return func(to io.Writer) error {
		w := tar.NewWriter(to)
		for _, header := range headers {
			h := *header
			if h.Typeflag == tar.TypeReg {
				h.Size = int64(len(h.Name))
			}
			if err := w.WriteHeader(&h); err != nil {
				return err
			}
			if h.Typeflag == tar.TypeReg {
				if _, err := io.WriteString(w, h.Name); err != nil {
					return err
				}
			}
		}
		return w.Close()
	}
}

func file(name string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}
}

// written is an archive of layers.
func written(t *testing.T, d Document, layers ...func(io.Writer) error) []byte {
	t.Helper()
	w, err := NewWriter(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, layer := range layers {
		if err := w.Layer(layer); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	n, digest, err := w.Write(&out, testConfig(), d)
	if err != nil || n != int64(out.Len()) || !strings.HasPrefix(digest, "sha256:") {
		t.Fatal(n, digest, err)
	}
	return out.Bytes()
}

// open opens an archive, and makes sure that nothing of a refused one stays.
func open(t *testing.T, content io.Reader, opts OpenOptions) (*Archive, error) {
	t.Helper()
	opts.Dir = t.TempDir()
	a, err := Open(t.Context(), content, opts)
	if err == nil {
		t.Cleanup(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
		return a, nil
	}
	if left, readErr := os.ReadDir(opts.Dir); readErr != nil || len(left) > 0 {
		t.Errorf("of a refused archive %d files are left: %v", len(left), readErr)
	}
	return nil, err
}

// What was written is read: image, document and layers.
func TestWhatIsWrittenIsRead(t *testing.T) {
	first := layer(&tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, file("etc/a"), &tar.Header{Name: "etc/b", Linkname: "../etc/a", Typeflag: tar.TypeSymlink},
		&tar.Header{Name: "etc/c", Linkname: "etc/a", Typeflag: tar.TypeLink}, &tar.Header{Name: "pipe", Typeflag: tar.TypeFifo},
		&tar.Header{Name: "cap", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "\x00\xff"}})
	second := layer(file("etc/.wh.a"), file("data/.wh..wh..opq"))
	content := written(t, testDocument(), first, second, second)
	a, err := open(t, bytes.NewReader(content), OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := testDocument()
	want.Format = Format
	if diff := cmp.Diff(want, a.Document); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(testConfig(), a.Config); diff != "" {
		t.Error(diff)
	}
	if a.Attributes.Count != 1 || a.Attributes.Paths[0] != "/cap" || len(a.Layers) != 3 {
		t.Errorf("%+v, %d layers", a.Attributes, len(a.Layers))
	}
	for i, layer := range []func(io.Writer) error{first, second, second} {
		var plain bytes.Buffer
		r, err := a.OpenLayer(i)
		if err == nil {
			_, err = io.Copy(&plain, r)
			r.Close()
		}
		var want bytes.Buffer
		if err := errors.Join(err, layer(&want)); err != nil || !bytes.Equal(plain.Bytes(), want.Bytes()) {
			t.Errorf("layer %d: %v", i, err)
		}
	}
	if err := a.Fits("amd64"); err != nil {
		t.Error(err)
	}
	if err := a.Fits("arm64"); !errors.Is(err, sdk.ErrUnsupported) {
		t.Error(err)
	}
}

// An archive that was cut off anywhere is refused, and so is one of which a
// byte of the content was changed.
func TestDamagedArchivesAreRefused(t *testing.T) {
	content := written(t, testDocument(), layer(file("a"), file("b")))
	end := bytes.LastIndexFunc(content, func(r rune) bool { return r != 0 })
	for cut := 0; cut < end; cut += 97 {
		if _, err := open(t, bytes.NewReader(content[:cut]), OpenOptions{}); !errors.Is(err, sdk.ErrInvalid) {
			t.Fatalf("cut off at %d of %d: %v", cut, len(content), err)
		}
	}
	for name, parts := range unpacked(t, content) {
		if !strings.HasPrefix(name, blobs) {
			continue
		}
		at := bytes.Index(content, parts)
		damaged := bytes.Clone(content)
		damaged[at+len(parts)/2] ^= 1
		if _, err := open(t, bytes.NewReader(damaged), OpenOptions{}); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s with another byte: %v", name, err)
		}
	}
}

// unpacked returns the parts of an archive.
func unpacked(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	parts := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		if parts[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// What a hostile layer holds never reaches a backend.
func TestHostileLayersAreRefused(t *testing.T) {
	for name, header := range map[string]*tar.Header{
		"a name that climbs":       file("../etc/cron.d/x"),
		"a name that climbs later": file("a/../../b"),
		"a hard link that climbs":  {Name: "x", Linkname: "../../etc/shadow", Typeflag: tar.TypeLink},
		"a device":                 {Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8},
		"a character device":       {Name: "dev/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1},
		"a link to nothing":        {Name: "x", Linkname: "", Typeflag: tar.TypeSymlink},
		"a very deep name":         file(strings.Repeat("d/", 300) + "x"),
		"a very long name":         file(strings.Repeat("n", 5000)),
	} {
		content := written(t, testDocument(), layer(header))
		if _, err := open(t, bytes.NewReader(content), OpenOptions{}); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// By hand: Go writes no sparse files.
	if !sparseRefused() {
		t.Error("a sparse file passes")
	}
	// More content than is taken, packed small enough.
	zeros := written(t, testDocument(), zeroFile(1<<20))
	if _, err := open(t, bytes.NewReader(zeros), OpenOptions{MaxSize: int64(len(zeros))}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("larger than the bound: %v", err)
	}
	// A bomb: 400 MiB of zeros in 400 KiB.
	bomb := written(t, testDocument(), zeroFile(400<<20))
	if _, err := open(t, bytes.NewReader(bomb), OpenOptions{}); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "times its size") {
		t.Errorf("a bomb of %d bytes: %v", len(bomb), err)
	}
}

// zeroFile writes a layer with a file of zeros.
func zeroFile(size int64) func(io.Writer) error {
	return func(to io.Writer) error {
		w := tar.NewWriter(to)
		if err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: size}); err != nil {
			return err
		}
		for range size >> 20 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
		return w.Close()
	}
}

func sparseRefused() bool {
	s := scanner{left: 1 << 20, attributes: &Tally{}}
	pax := s.entry(&tar.Header{Name: "x", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"GNU.sparse.major": "1"}})
	gnu := s.entry(&tar.Header{Name: "x", Typeflag: tar.TypeGNUSparse})
	return errors.Is(pax, sdk.ErrInvalid) && errors.Is(gnu, sdk.ErrInvalid)
}

// parts writes an archive of parts, in whatever state they are.
func parts(t *testing.T, headers []*tar.Header, contents map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, header := range headers {
		content := contents[header.Name]
		if header.Typeflag != tar.TypeReg {
			content = nil
		}
		header.Size = int64(len(content))
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// changed rewrites the manifest or configuration of an archive, with digests
// that are right again.
func changed(t *testing.T, content []byte, change func(m *manifest, c *imageConfig)) []byte {
	t.Helper()
	old := unpacked(t, content)
	var top index
	var m manifest
	var c imageConfig
	err := json.Unmarshal(old["index.json"], &top)
	if err == nil {
		err = json.Unmarshal(old[blobs+trimDigest(top.Manifests[0].Digest)], &m)
	}
	if err == nil {
		err = json.Unmarshal(old[blobs+trimDigest(m.Config.Digest)], &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	change(&m, &c)
	contents := map[string][]byte{}
	for _, layer := range m.Layers {
		name := blobs + strings.TrimPrefix(layer.Digest, digestName)
		contents[name] = old[name]
	}
	add := func(value any, mediaType string) descriptor {
		encoded, d := describe(value, mediaType)
		contents[blobs+trimDigest(d.Digest)] = encoded
		return d
	}
	m.Config = add(c, typeConfig)
	top.Manifests[0] = add(m, typeManifest)
	contents["index.json"], _ = json.Marshal(top)
	var headers []*tar.Header
	for name := range contents {
		headers = append(headers, file(name))
	}
	return parts(t, headers, contents)
}

// What the documents of an archive say of its parts has to be so.
func TestContradictionsAreRefused(t *testing.T) {
	good := written(t, testDocument(), layer(file("a")))
	if _, err := open(t, bytes.NewReader(changed(t, good, func(*manifest, *imageConfig) {})), OpenOptions{}); err != nil {
		t.Fatalf("an archive in another order: %v", err)
	}
	with := func(change func(d map[string]any)) func(m *manifest, c *imageConfig) {
		return func(m *manifest, _ *imageConfig) {
			var d map[string]any
			if err := json.Unmarshal([]byte(m.Annotations[Annotation]), &d); err != nil {
				t.Fatal(err)
			}
			change(d)
			encoded, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			m.Annotations[Annotation] = string(encoded)
		}
	}
	for name, change := range map[string]func(m *manifest, c *imageConfig){
		"another content":           func(_ *manifest, c *imageConfig) { c.RootFS.DiffIDs[0] = digestName + strings.Repeat("0", 64) },
		"more layers than named":    func(m *manifest, _ *imageConfig) { m.Layers = append(m.Layers, m.Layers[0]) },
		"a layer that is not there": func(m *manifest, _ *imageConfig) { m.Layers[0].Digest = digestName + strings.Repeat("0", 64) },
		"a digest that is a path":   func(m *manifest, _ *imageConfig) { m.Layers[0].Digest = "sha256:../../x" },
		"another size":              func(m *manifest, _ *imageConfig) { m.Layers[0].Size++ },
		"a layer of another type":   func(m *manifest, _ *imageConfig) { m.Layers[0].MediaType = "application/zip" },
		"another system":            func(_ *manifest, c *imageConfig) { c.OS = "windows" },
		"a variable without a name": func(_ *manifest, c *imageConfig) { c.Config.Env = []string{"=x"} },
		"no document":               func(m *manifest, _ *imageConfig) { m.Annotations = nil },
		"a format of tomorrow":      with(func(d map[string]any) { d["format"] = 2 }),
		"an id that is a path":      with(func(d map[string]any) { d["sandbox_id"] = "../../x" }),
		"a volume that is a root":   with(func(d map[string]any) { d["volumes"] = []string{"/"} }),
		"a volume that climbs":      with(func(d map[string]any) { d["volumes"] = []string{"/a/../../b"} }),
		"losses without measure":    with(func(d map[string]any) { d["losses"] = make([]sdk.Loss, 1000) }),
	} {
		if _, err := open(t, bytes.NewReader(changed(t, good, change)), OpenOptions{}); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	content := []byte("x")
	sum := sha256.Sum256(content)
	name := blobs + hex.EncodeToString(sum[:])
	for what, headers := range map[string][]*tar.Header{
		"a part twice":            {file(name), file(name)},
		"a part that is a link":   {{Name: name, Linkname: "/etc/shadow", Typeflag: tar.TypeSymlink}},
		"a name outside":          {file(blobs + "../../x")},
		"two indexes":             {file("index.json"), file("index.json")},
		"no index":                {file(name)},
		"something else entirely": {file("README")},
	} {
		if _, err := open(t, bytes.NewReader(parts(t, headers, map[string][]byte{name: content, "index.json": []byte("{}")})), OpenOptions{}); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write(good)
	_ = w.Close()
	if _, err := open(t, &zipped, OpenOptions{}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a compressed archive: %v", err)
	}
}

// A caller who gives up leaves nothing behind, and no context is an archive's
// fault.
func TestCancelledOpen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	_, err := Open(ctx, bytes.NewReader(written(t, testDocument(), layer(file("a")))), OpenOptions{Dir: dir})
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if !errors.Is(err, context.Canceled) || errors.Is(err, sdk.ErrInvalid) || len(left) > 0 {
		t.Error(err, left)
	}
}

// What is printed of a foreign document is text of one line.
func TestForeignTextIsTame(t *testing.T) {
	d := testDocument()
	d.Losses = []sdk.Loss{{Kind: "x", Detail: "a\x1b[31mb\nc", Paths: []string{"/a\nb"}}}
	a, err := open(t, bytes.NewReader(written(t, d, layer(file("a")))), OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if line := a.Document.Losses[0].String(); strings.ContainsAny(line, "\n\x1b") {
		t.Errorf("%q", line)
	}
}

// A profile that no registry would take is refused with the reason.
func TestDocumentTooLarge(t *testing.T) {
	w, err := NewWriter(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := testDocument()
	d.Profile.Files = map[string]sdk.File{"/big": {Content: strings.Repeat("x", maxDocument)}}
	var out bytes.Buffer
	if _, _, err := w.Write(&out, testConfig(), d); !errors.Is(err, sdk.ErrUnsupported) || out.Len() > 0 {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
}

// The importer's word goes before the archive's.
func TestIdentify(t *testing.T) {
	got := testDocument().Identify(sdk.Identity{ID: "snp", Fleet: "f", Labels: map[string]string{"mine": "1"}})
	if got.Profile != "web" || got.ProfileRevision != "web@sha256:00" || got.Labels["suite"] != "one" || got.Labels["mine"] != "1" || got.Owner != "" {
		t.Errorf("%+v", got)
	}
}
