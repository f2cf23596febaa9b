// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// files makes an archive of files with content.
func files(t *testing.T, content map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range content {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// saved makes what `docker save` would, of layers in the order of a list.
func saved(t *testing.T, layers map[string][]byte, list []string) []byte {
	t.Helper()
	content := map[string][]byte{
		"config.json":   encoded(t, map[string]any{"architecture": runtime.GOARCH}),
		"manifest.json": encoded(t, []any{map[string]any{"Config": "config.json", "Layers": list}}),
	}
	for name, layer := range layers {
		content[name] = layer
	}
	return files(t, content)
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layout writes an OCI layout of one layer. What spoil returns, if anything,
// takes the manifest's place.
func layout(t *testing.T, layer []byte, spoil func(blobs string, manifest map[string]any) []byte) string {
	t.Helper()
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	blob := func(data []byte) map[string]any {
		digest := fmt.Sprintf("%x", sha256.Sum256(data))
		if err := os.WriteFile(filepath.Join(blobs, digest), data, 0o644); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"digest": "sha256:" + digest, "size": len(data)}
	}
	manifest := map[string]any{"config": blob(encoded(t, map[string]any{"architecture": runtime.GOARCH})), "layers": []any{blob(layer)}}
	text := encoded(t, manifest)
	if spoiled := spoil(blobs, manifest); spoiled != nil {
		text = spoiled
	}
	for name, v := range map[string]any{"index.json": map[string]any{"manifests": []any{blob(text)}}, "oci-layout": map[string]any{"imageLayoutVersion": "1.0.0"}} {
		if err := os.WriteFile(filepath.Join(dir, name), encoded(t, v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestHostileLayoutsAreRefused(t *testing.T) {
	layer := archive(t, &tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 10_000})
	blob := func(blobs string, m map[string]any) string {
		return filepath.Join(blobs, strings.TrimPrefix(m["layers"].([]any)[0].(map[string]any)["digest"].(string), "sha256:"))
	}
	rewrite := func(t *testing.T, path string, data []byte) []byte {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return nil
	}
	digest := func(d string) func(*testing.T, string, map[string]any) []byte {
		return func(t *testing.T, _ string, m map[string]any) []byte {
			m["layers"] = []any{map[string]any{"digest": d}}
			return encoded(t, m)
		}
	}
	for name, test := range map[string]struct {
		spoil func(t *testing.T, blobs string, m map[string]any) []byte
		text  string
	}{
		"a layer of another content": {func(t *testing.T, blobs string, m map[string]any) []byte {
			return rewrite(t, blob(blobs, m), archive(t, &tar.Header{Name: "b", Typeflag: tar.TypeReg, Size: 10_000}))
		}, "digest"},
		"a layer with more at its end": {func(t *testing.T, blobs string, m map[string]any) []byte {
			return rewrite(t, blob(blobs, m), append(bytes.Clone(layer), "more"...))
		}, "digest"},
		"a layer that is cut off": {func(t *testing.T, blobs string, m map[string]any) []byte {
			return rewrite(t, blob(blobs, m), layer[:5000])
		}, "read the archive"},
		"a layer that is a link out": {func(t *testing.T, blobs string, m map[string]any) []byte {
			outside := filepath.Join(t.TempDir(), "secret")
			rewrite(t, outside, layer)
			if err := errors.Join(os.Remove(blob(blobs, m)), os.Symlink(outside, blob(blobs, m))); err != nil {
				t.Fatal(err)
			}
			return nil
		}, "escapes"},
		"a layer that is a pipe": {func(t *testing.T, blobs string, m map[string]any) []byte {
			if err := errors.Join(os.Remove(blob(blobs, m)), unix.Mkfifo(blob(blobs, m), 0o644)); err != nil {
				t.Fatal(err)
			}
			return nil
		}, "regular file"},
		"a layer with zstd": {func(t *testing.T, blobs string, m map[string]any) []byte {
			return rewrite(t, blob(blobs, m), []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa4, 0, 0, 0, 0x40, 0, 0, 0})
		}, "zstd"},
		"a digest that is a path":   {digest("sha256:../../../../etc/passwd"), "not a sha256 digest"},
		"a digest of another kind":  {digest("md5:d41d8cd98f00b204e9800998ecf8427e"), "not a sha256 digest"},
		"a digest of nothing there": {digest("sha256:" + strings.Repeat("0", 64)), "no such file"},
		"more layers than there can be": {func(t *testing.T, _ string, m map[string]any) []byte {
			one, many := m["layers"].([]any)[0], []any{}
			for range maxLayers + 1 {
				many = append(many, one)
			}
			m["layers"] = many
			return encoded(t, m)
		}, "513 layers"},
		"an enormous manifest": {func(*testing.T, string, map[string]any) []byte {
			return bytes.Repeat([]byte(" "), maxJSON+1)
		}, "larger than"},
		"a manifest without a floor": {func(*testing.T, string, map[string]any) []byte {
			return bytes.Repeat([]byte("["), 1<<20)
		}, "depth"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := layout(t, layer, func(blobs string, m map[string]any) []byte { return test.spoil(t, blobs, m) })
			cache := Cache{Dir: t.TempDir()}
			if _, err := cache.Unpack(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%v, want an error about %q", err, test.text)
			}
			if left, _ := filepath.Glob(filepath.Join(cache.Dir, "*e*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestHostileSavedImagesAreRefused(t *testing.T) {
	layer := archive(t, &tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1000})
	bomb := gzipped(t, archive(t, &tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: guardFrom + 64<<20}))
	manifest := func(text string) []byte { return files(t, map[string][]byte{"manifest.json": []byte(text)}) }
	for name, data := range map[string][]byte{
		"a layer outside of the archive":    saved(t, nil, []string{"../../../../etc/passwd"}),
		"a layer by an absolute name":       saved(t, nil, []string{"/etc/passwd"}),
		"a layer more often than can be":    saved(t, map[string][]byte{"layer": layer}, slicesOf("layer", maxLayers+1)),
		"a bomb in a layer":                 saved(t, map[string][]byte{"layer": bomb}, []string{"layer"}),
		"a bomb around a bomb":              gzipped(t, saved(t, map[string][]byte{"layer": bomb}, []string{"layer"})),
		"a manifest that is not JSON":       manifest("["),
		"a manifest of several images":      manifest("[{},{}]"),
		"a manifest of no image":            manifest("[]"),
		"a configuration that is not there": manifest(`[{"Config":"c","Layers":[]}]`),
		"a manifest that is a loop of links": archive(t, &tar.Header{Name: "manifest.json", Typeflag: tar.TypeSymlink, Linkname: "other"},
			&tar.Header{Name: "other", Typeflag: tar.TypeLink, Linkname: "manifest.json"}),
	} {
		if _, m, err := unpackBytes(t, data); err == nil {
			t.Errorf("%s: taken as %+v", name, m)
		}
	}
}

func slicesOf(s string, n int) (list []string) {
	for range n {
		list = append(list, s)
	}
	return list
}

// built applies layers to a tree.
func built(t *testing.T, layers ...[]byte) (*tree, error) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	tree := newTree(newDataWriter(out, maxData))
	for _, layer := range layers {
		if err := tree.apply(bytes.NewReader(layer)); err != nil {
			return tree, err
		}
	}
	return tree, tree.finish()
}

func TestWhatIsMadeHarmless(t *testing.T) {
	reg := func(names ...string) (list []*tar.Header) {
		for _, name := range names {
			list = append(list, &tar.Header{Name: name, Typeflag: tar.TypeReg})
		}
		return list
	}
	lower := archive(t,
		&tar.Header{Name: "etc/", Typeflag: tar.TypeDir}, &tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Size: 3},
		&tar.Header{Name: "keep", Typeflag: tar.TypeReg}, &tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc"})
	for name, test := range map[string]struct {
		upper      []*tar.Header
		has, lacks string
	}{
		"an absolute name lies below the root":     {reg("/abs/olute"), "abs/olute keep", ""},
		"neither the root nor above it is hidden":  {reg(".wh.", ".wh..", ".wh...", "etc/.wh..."), "keep etc/passwd", ""},
		"a hidden name may come twice":             {reg(".wh.keep", ".wh.keep"), "etc/passwd", "keep"},
		"hiding a marker hides nothing":            {reg(".wh..wh.keep"), "keep", ""},
		"what comes with the marker is not hidden": {reg("keep", ".wh.keep"), "keep", ""},
		"a marker acts through a link, inside":     {reg("link/.wh.passwd"), "keep etc", "etc/passwd"},
		"the root can be emptied, and is there":    {reg(".wh..wh..opq", "new"), "new", "keep etc"},
		"a file in the place of a directory":       {reg("etc"), "etc", "etc/passwd"},
		"the last of several entries counts": {append(reg("keep"), &tar.Header{Name: "keep", Typeflag: tar.TypeSymlink, Linkname: "etc"},
			&tar.Header{Name: "keep", Typeflag: tar.TypeReg}), "keep etc/passwd", ""},
		"the ordinary devices are left out": {[]*tar.Header{{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, "keep", "dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := built(t, lower, archive(t, test.upper...))
			if err != nil {
				t.Fatal(err)
			}
			for list, want := range map[string]bool{test.has: true, test.lacks: false} {
				for _, name := range strings.Fields(list) {
					dir, err := tree.dir(filepath.Dir(name), false)
					if there := err == nil && dir.children[filepath.Base(name)] != nil; there != want {
						t.Errorf("%s is there: %v, want %v", name, there, want)
					}
				}
			}
		})
	}
}

// special makes an entry as the writer won't.
func special(flag byte, name string, content []byte) []byte {
	block := make([]byte, 512)
	copy(block, name)
	copy(block[100:], "0000644\x000000000\x000000000\x00")
	copy(block[124:], fmt.Sprintf("%011o\x0000000000000\x00        ", len(content)))
	block[156] = flag
	copy(block[257:], "ustar\x0000")
	sum := 0
	for _, c := range block {
		sum += int(c)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	return slices.Concat(block, content, make([]byte, (512-len(content)%512)%512))
}

// pax makes a header of records before an entry, and the end.
func pax(entry byte, body int, records ...string) []byte {
	var header []byte
	for _, record := range records {
		size := len(record) + 2
		for size != len(fmt.Sprintf("%d %s\n", size, record)) {
			size = len(fmt.Sprintf("%d %s\n", size, record))
		}
		header = fmt.Appendf(header, "%d %s\n", size, record)
	}
	return bytes.Join([][]byte{special('x', "pax", header), special(entry, "a", make([]byte, body)), make([]byte, 1024)}, nil)
}

func TestHostileHeadersAreRefused(t *testing.T) {
	sparse := func(size, pieces string) []byte {
		return pax('0', 512, "GNU.sparse.major=0", "GNU.sparse.minor=1", "GNU.sparse.name=big", "GNU.sparse.size="+size, "GNU.sparse.numblocks=1", "GNU.sparse.map="+pieces)
	}
	for name, data := range map[string][]byte{
		"a PAX header of 2 MiB":              pax('0', 0, "comment="+strings.Repeat("x", 2<<20)),
		"a name of half a MiB":               pax('0', 0, "path="+strings.Repeat("x/", 1<<18)),
		"a GNU name of 2 MiB":                append(special('L', "././@LongLink", bytes.Repeat([]byte("x"), 2<<20)), special('0', "a", nil)...),
		"a name with a zero byte":            pax('0', 0, "path=a\x00b"),
		"a size below zero":                  pax('0', 0, "size=-1"),
		"a size beyond what there is":        pax('0', 0, "size=9223372036854775807"),
		"a sparse file larger than any disk": sparse("9223372036854775807", "0,512"),
		"a sparse file of pieces that cross": sparse("1024", "512,512,0,512"),
		"a sparse piece beyond its file":     sparse("1024", "2048,512"),
		"a sparse piece below zero":          sparse("1024", "-512,512"),
		"an entry of a kind of its own":      append(special('Z', "a", nil), make([]byte, 1024)...),
	} {
		if _, err := built(t, data); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	// Holes are no content, and take no room.
	tree, err := built(t, sparse("67108864", "0,512"))
	if err != nil {
		t.Fatal(err)
	}
	if n := tree.root.children["big"]; n == nil || n.size != 64<<20 || onDisk(tree.data.file.Name()) > 1<<20 {
		t.Errorf("a sparse file of 64 MiB: %+v, %d bytes on disk", n, onDisk(tree.data.file.Name()))
	}
}

// Ten million entries end at the bound, whatever they are, in the memory that
// the bound allows. The whole number is for the full run.
func TestTenMillionEntries(t *testing.T) {
	stream, bound := 200_000, 20_000
	if os.Getenv("SANDBOXER_TEST_FULL") == "1" {
		stream, bound = 10_000_000, maxEntries
	}
	for name, header := range map[string]func(i int) tar.Header{
		"files": func(i int) tar.Header {
			return tar.Header{Name: fmt.Sprintf("d%d/%d", i%1000, i), Typeflag: tar.TypeReg}
		},
		"directories": func(i int) tar.Header { return tar.Header{Name: fmt.Sprintf("d%d/", i), Typeflag: tar.TypeDir} },
		"duplicates":  func(int) tar.Header { return tar.Header{Name: "same", Typeflag: tar.TypeReg} },
		"markers":     func(i int) tar.Header { return tar.Header{Name: fmt.Sprintf(".wh.%d", i), Typeflag: tar.TypeReg} },
	} {
		out, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		made := 0
		tree := newTree(newDataWriter(out, maxData))
		tree.maxEntries = bound
		err = tree.apply(&endless{header: func(i int) *tar.Header { made = i; h := header(i); return &h }})
		if !errors.Is(err, errRefused) || made > bound+1 || made >= stream {
			t.Errorf("%s: %v after %d of %d, want a refusal after %d", name, err, made, stream, bound)
		}
		var memory runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&memory)
		runtime.KeepAlive(tree)
		if most := uint64(64<<20 + 1024*bound); memory.HeapAlloc > most {
			t.Errorf("%s: %d bytes of heap, want at most %d", name, memory.HeapAlloc, most)
		}
		out.Close()
	}
}

// FuzzImage takes whole images, in whichever form they seem to be.
func FuzzImage(f *testing.F) {
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "image")
		cache := Cache{Dir: filepath.Join(dir, "cache"), Room: 1 << 20}
		if err := errors.Join(os.WriteFile(path, data, 0o600), os.Mkdir(cache.Dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		i, err := cache.Unpack(t.Context(), path, nil)
		if err == nil {
			i.Close()
		}
		if left, _ := filepath.Glob(filepath.Join(cache.Dir, newPrefix+"*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}
