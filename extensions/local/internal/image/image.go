// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

// The cache of unpacked images, by content.
//
//	<dir>/<key>.erofs   the root filesystem
//	<dir>/<key>.json    Meta
//	<dir>/of-<hash>     what a path held when it was last looked at: a key
//	<dir>/.new-*        being written; its writer holds a lock on it
//	<dir>/lock          held to give an image its name, or to take it away
//
// Whoever uses an image holds a lock on its description, so that it is not
// removed; see collect.go.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

// format changes with what we write into an image's file, so that cached ones
// are made again.
const format = "erofs 1, init " + initproc.Version

// Meta is what is known about an unpacked image.
type Meta struct {
	Key    string `json:"key"`
	Source string `json:"source"` // digest of what it was unpacked from
	Config Config `json:"config"`
	Passwd string `json:"passwd,omitempty"`
	Group  string `json:"group,omitempty"`
}

// Cache is a directory of unpacked images.
type Cache struct {
	Dir string
	// Room bounds in bytes what one image's content may take; 0 is no bound
	// but the one for every image.
	Room int64
}

// ErrNoRoom is an image that is larger than the room that there is.
var ErrNoRoom = errors.New("there is no room for it")

// Path returns the file of an image.
func (c Cache) Path(key string) string { return filepath.Join(c.Dir, key+dataSuffix) }

// Image is an image that is in the cache, and stays there until it is closed.
type Image struct {
	Meta
	Path string
	held *os.File
}

// Close lets the image be removed by whoever has to make room.
func (i *Image) Close() {
	if i != nil {
		i.held.Close()
	}
}

// Lookup returns an image that is in the cache.
func (c Cache) Lookup(key string) (*Image, error) {
	if !isKey(key) {
		return nil, fmt.Errorf("%q is not a key", clip(key))
	}
	f, err := record.HoldShared(filepath.Join(c.Dir, key+metaSuffix))
	if err != nil {
		return nil, err
	}
	i := &Image{Path: c.Path(key), held: f}
	err = json.NewDecoder(io.LimitReader(f, 4*maxJSON)).Decode(&i.Meta)
	if err == nil {
		_, err = os.Stat(i.Path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now) // the order that images are removed in
	return i, nil
}

func isKey(key string) bool {
	return len(key) == 64 && strings.Trim(key, "0123456789abcdef") == ""
}

// Unpack returns the image at a path, unpacked. What was unpacked before is
// found without reading it again, unless the file has changed.
func (c Cache) Unpack(ctx context.Context, path string, progress func(message string)) (*Image, error) {
	name, err := c.identity(path)
	if err != nil {
		return nil, err
	}
	if i, err := c.named(name); err == nil {
		return i, nil
	}
	if progress != nil {
		progress("unpack " + path)
	}
	i, err := c.unpack(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", path, err)
	}
	return i, c.remember(name, i)
}

// named returns the image that a name stands for.
func (c Cache) named(name string) (*Image, error) {
	key, err := os.Readlink(name)
	if err != nil {
		return nil, err
	}
	return c.Lookup(key)
}

// remember notes which image a name stands for.
func (c Cache) remember(name string, i *Image) error {
	_ = os.Remove(name)
	if err := os.Symlink(i.Key, name); err != nil && !errors.Is(err, os.ErrExist) {
		i.Close()
		return err
	}
	return nil
}

// identity names a file's content by facts that change with it: the change
// time can't be set by anyone. A layout's content is named by its index.
func (c Cache) identity(path string) (name string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		if info, err = os.Stat(filepath.Join(path, "index.json")); err != nil {
			return "", fmt.Errorf("%s is a directory, but no OCI layout: %w", path, err)
		}
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is neither a file nor a directory", path)
	}
	st := info.Sys().(*syscall.Stat_t)
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%d %d %d %d %d", format, path, st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
	return filepath.Join(c.Dir, ofPrefix+hex.EncodeToString(h.Sum(nil)[:16])), nil
}

// unpack writes an image's file under its key. Two at once do the work twice
// and agree on the result.
func (c Cache) unpack(ctx context.Context, path string) (*Image, error) {
	return c.make(func(t *tree) (Config, string, error) { return c.build(ctx, t, path) })
}

// make puts an image together and gives it its name.
func (c Cache) make(build func(*tree) (config Config, source string, err error)) (*Image, error) {
	out, err := c.temp()
	if err != nil {
		return nil, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	data := newDataWriter(out, maxData)
	data.room = c.Room
	t := newTree(data)
	config, source, err := build(t)
	if err != nil {
		return nil, err
	}
	if err := t.addOurs(); err != nil {
		return nil, err
	}
	if err := t.finish(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(format + "\x00" + source))
	m := Meta{Key: hex.EncodeToString(sum[:]), Source: "sha256:" + source, Config: config, Passwd: t.text("etc/passwd"), Group: t.text("etc/group")}
	if err := errors.Join(out.Chmod(0o644), out.Sync()); err != nil {
		return nil, err
	}
	return c.publish(out, m)
}

// publish gives an image that is on disk its name.
func (c Cache) publish(out *os.File, m Meta) (*Image, error) {
	description, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	temp, err := c.temp()
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	_, err = temp.Write(description)
	if err := errors.Join(err, temp.Sync()); err != nil {
		return nil, err
	}
	// Still a lock against tidying, and one that those who look it up can share.
	if err := flock(temp, unix.LOCK_SH); err != nil {
		return nil, err
	}
	unlock, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	// The same image by someone faster may be in use by now: that one stays.
	if i, err := c.Lookup(m.Key); err == nil {
		return i, nil
	}
	// The description last: it is what a lookup goes by.
	if err := os.Rename(out.Name(), c.Path(m.Key)); err != nil {
		return nil, err
	}
	if err := os.Rename(temp.Name(), filepath.Join(c.Dir, m.Key+metaSuffix)); err != nil {
		return nil, err
	}
	// Under the lock, so nobody can have removed it.
	return c.Lookup(m.Key)
}

// build fills a tree from whatever lies at a path, and returns the digest of
// what it was made from.
func (c Cache) build(ctx context.Context, t *tree, path string) (Config, string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Config{}, "", err
	}
	if info.IsDir() {
		b, err := openLayout(path)
		if err != nil {
			return Config{}, "", err
		}
		defer b.root.Close()
		img, err := ociImage(b)
		if err != nil {
			return Config{}, "", err
		}
		return img.config, img.source(), applyLayers(ctx, t, b, img)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return Config{}, "", err
	}
	defer f.Close()
	source := sha256.New()
	if _, err := io.Copy(source, reader{ctx, f}); err != nil {
		return Config{}, "", err
	}
	config, err := c.buildArchive(ctx, t, f)
	return config, hex.EncodeToString(source.Sum(nil)), err
}

// buildArchive fills a tree from an archive. A compressed one is written out
// first: an image's parts come in any order.
func (c Cache) buildArchive(ctx context.Context, t *tree, f *os.File) (Config, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Config{}, err
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil {
		return Config{}, refused("it is no archive")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Config{}, err
	}
	plain, err := decompress(reader{ctx, f})
	if err != nil {
		return Config{}, err
	}
	if _, compressed := plain.(*guarded); compressed {
		temp, err := c.temp()
		if err != nil {
			return Config{}, err
		}
		defer os.Remove(temp.Name())
		defer temp.Close()
		most := int64(maxData)
		if c.Room > 0 {
			most = min(most, c.Room)
		}
		n, err := io.Copy(temp, io.LimitReader(plain, most+1))
		if err != nil {
			return Config{}, err
		}
		if n > most && c.Room > 0 {
			return Config{}, ErrNoRoom
		}
		if n > most {
			return Config{}, refused("more than %d bytes of content", int64(maxData))
		}
		f = temp
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Config{}, err
	}
	b, err := indexTar(f)
	if err != nil {
		return Config{}, err
	}
	var img image
	switch b.kind() {
	case "docker":
		img, err = dockerImage(b)
	case "oci":
		img, err = ociImage(b)
	default:
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return Config{}, err
		}
		return Config{}, t.apply(reader{ctx, f})
	}
	if err != nil {
		return Config{}, err
	}
	return img.config, applyLayers(ctx, t, b, img)
}

// source names an image by the content of its layers and its configuration.
func (i image) source() string {
	h := sha256.New()
	for _, l := range i.layers {
		fmt.Fprintln(h, l.digest)
	}
	fmt.Fprintf(h, "%q", i.config)
	return hex.EncodeToString(h.Sum(nil))
}

func applyLayers(ctx context.Context, t *tree, b blobs, img image) error {
	for _, l := range img.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := applyLayer(t, ctxBlobs{ctx, b}, l); err != nil {
			return fmt.Errorf("layer %s: %w", clip(l.name), err)
		}
	}
	return nil
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

type ctxBlobs struct {
	ctx context.Context
	blobs
}

func (c ctxBlobs) open(name string) (io.ReadCloser, error) {
	r, err := c.blobs.open(name)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{reader{c.ctx, r}, r}, nil
}

// addOurs adds what a sandbox needs and an image may lack.
func (t *tree) addOurs() error {
	t.layer++
	for _, name := range []string{"dev", "proc", "sys", "etc", "run/secrets", "root"} {
		if _, err := t.dir(name, true); err != nil {
			return err
		}
	}
	tmp, err := t.dir("tmp", true)
	if err != nil {
		return err
	}
	tmp.mode = unix.S_IFDIR | 0o1777
	if len(tmp.children) == 0 {
		tmp.children[filepath.Base(rootfs.TmpKeep)] = &node{mode: unix.S_IFREG | 0o644, nlink: 1, layer: t.layer}
	}
	etc, err := t.dir("etc", true)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"hosts":    "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"hostname": "sandbox\n",
	} {
		if old := etc.children[name]; old != nil && old.size > 0 {
			continue
		}
		if err := t.addFile(etc, name, 0o644, []byte(content)); err != nil {
			return err
		}
	}
	return t.addFile(t.root, filepath.Base(initproc.Path), 0o755, initproc.Init())
}

func (t *tree) addFile(dir *node, name string, perm uint32, content []byte) error {
	n := &node{mode: unix.S_IFREG | perm, nlink: 1, layer: t.layer}
	var err error
	if n.block, n.size, err = t.data.add(strings.NewReader(string(content))); err != nil {
		return err
	}
	t.remove(dir, name)
	dir.children[name] = n
	return nil
}

// text returns the content of a small file of the tree.
func (t *tree) text(name string) string {
	dir, err := t.dir(filepath.Dir(name), false)
	if err != nil {
		return ""
	}
	n := dir.children[filepath.Base(name)]
	if n == nil || n.mode&unix.S_IFMT != unix.S_IFREG || n.size == 0 || n.size > maxJSON/4 {
		return ""
	}
	data := make([]byte, n.size)
	if _, err := t.data.file.ReadAt(data, int64(n.block)*blockSize); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return string(data)
}
