// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package image turns container images and root filesystem archives into one
// read-only EROFS file that a sandbox mounts.
//
// Nothing of an archive is ever unpacked on the host: entries become nodes of
// a tree in memory and their contents become blocks of one file. So names,
// links and devices of a hostile archive have nothing to act on, owners and
// modes are kept without privilege, and the sandbox needs no file server.
package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The bounds of what is taken in. They bound memory and disk, whatever an
// archive says about itself.
const (
	maxEntries = 1_000_000 // also of an archive's own list
	maxNames   = 256 << 20 // bytes of names and link targets
	maxData    = 32 << 30
	maxDepth   = 256
	maxTarget  = blockSize - inodeSize
	maxLinks   = 40 // links followed on the way to one entry
)

// node is one inode.
type node struct {
	mode     uint32 // type and permission
	uid, gid uint32
	mtime    time.Time
	size     int64
	block    uint32 // first data block
	target   string // of a link
	children map[string]*node
	nlink    uint32
	layer    int // that it came with
	nid      uint64
}

func (n *node) isDir() bool  { return n.mode&unix.S_IFMT == unix.S_IFDIR }
func (n *node) isLink() bool { return n.mode&unix.S_IFMT == unix.S_IFLNK }

// tree is a root filesystem that is being put together from layers.
type tree struct {
	root    *node
	data    *dataWriter
	layer   int
	entries int
	names   int64
	// The bounds; fields, so that a test need not make a million entries.
	maxEntries int
	maxNames   int64
	parents    map[*node]*node // of directories, once finished
}

func newTree(data *dataWriter) *tree {
	return &tree{root: newDir(0o755), data: data, maxEntries: maxEntries, maxNames: maxNames}
}

func newDir(perm uint32) *node {
	return &node{mode: unix.S_IFDIR | perm, children: map[string]*node{}, nlink: 1}
}

// errRefused marks an archive that is not taken.
var errRefused = errors.New("the archive is refused")

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errRefused}, args...)...)
}

// apply adds one layer.
func (t *tree) apply(layer io.Reader) error {
	t.layer++
	archive := tar.NewReader(layer)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := t.add(header, archive); err != nil {
			return fmt.Errorf("%q: %w", clip(header.Name), err)
		}
	}
}

func (t *tree) add(header *tar.Header, content io.Reader) error {
	switch header.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	}
	if t.entries++; t.entries > t.maxEntries {
		return refused("more than %d entries", t.maxEntries)
	}
	if t.names += int64(len(header.Name) + len(header.Linkname)); t.names > t.maxNames {
		return refused("more than %d bytes of names", t.maxNames)
	}
	name, err := cleanName(header.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if header.Typeflag == tar.TypeDir {
			t.root.setMeta(header)
		}
		return nil
	}
	parent, err := t.dir(path.Dir(name), true)
	if err != nil {
		return err
	}
	base := path.Base(name)
	if base == ".wh..wh..opq" {
		t.empty(parent)
		return nil
	}
	if hidden, ok := strings.CutPrefix(base, ".wh."); ok {
		if old := parent.children[hidden]; old != nil && old.layer < t.layer {
			t.remove(parent, hidden)
		}
		return nil
	}
	return t.place(parent, base, header, content)
}

func (t *tree) place(parent *node, base string, header *tar.Header, content io.Reader) error {
	n := &node{layer: t.layer, nlink: 1}
	switch header.Typeflag {
	case tar.TypeDir:
		n.mode, n.children = unix.S_IFDIR, map[string]*node{}
		if old := parent.children[base]; old != nil && old.isDir() {
			old.setMeta(header)
			return nil
		}
	case tar.TypeReg, tar.TypeGNUSparse:
		n.mode = unix.S_IFREG
		var err error
		if n.block, n.size, err = t.data.add(content); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if header.Linkname == "" || len(header.Linkname) > maxTarget || strings.ContainsRune(header.Linkname, 0) {
			return refused("a link to %q", clip(header.Linkname))
		}
		n.mode, n.target = unix.S_IFLNK, header.Linkname
		n.size = int64(len(n.target))
	case tar.TypeLink:
		return t.link(parent, base, header.Linkname)
	case tar.TypeFifo:
		n.mode = unix.S_IFIFO
	case tar.TypeChar, tar.TypeBlock:
		if header.Typeflag == tar.TypeChar && header.Devmajor == 0 && header.Devminor == 0 {
			t.remove(parent, base) // overlayfs's way to say that it is gone
			return nil
		}
		if parent == t.root.children["dev"] && ordinaryDevice[base] {
			return nil // the sandbox has a /dev of its own
		}
		return refused("a device file")
	default:
		return refused("an entry of type %q", header.Typeflag)
	}
	n.setMeta(header)
	t.remove(parent, base)
	parent.children[base] = n
	return nil
}

// ordinaryDevice are those that every root filesystem made by a
// bootstrapping tool holds.
var ordinaryDevice = map[string]bool{
	"console": true, "full": true, "null": true, "ptmx": true, "random": true, "tty": true, "tty0": true, "tty1": true,
	"urandom": true, "zero": true,
}

// link adds a hard link.
func (t *tree) link(parent *node, base, to string) error {
	if path.IsAbs(to) {
		return refused("a hard link to the absolute name %q", clip(to))
	}
	name, err := cleanName(to)
	if err != nil {
		return err
	}
	if name == "" {
		return refused("a hard link to a directory")
	}
	dir, err := t.dir(path.Dir(name), false)
	if err != nil {
		return err
	}
	target := dir.children[path.Base(name)]
	if target == nil {
		return refused("a hard link to %q, which is not there", clip(to))
	}
	if target.isDir() {
		return refused("a hard link to a directory")
	}
	if parent.children[base] == target {
		return nil
	}
	t.remove(parent, base)
	target.nlink++
	parent.children[base] = target
	return nil
}

// dir finds a directory, following links inside the tree as the sandbox's
// kernel would, and makes what is missing.
func (t *tree) dir(name string, makeMissing bool) (*node, error) {
	stack := []*node{t.root}
	todo := split(name)
	links := 0
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		at := stack[len(stack)-1]
		if part == ".." {
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
			continue
		}
		next := at.children[part]
		switch {
		case next == nil && !makeMissing:
			return nil, refused("%q is not there", clip(name))
		case next == nil:
			if t.entries++; t.entries > t.maxEntries {
				return nil, refused("more than %d entries", t.maxEntries)
			}
			next = newDir(0o755)
			next.layer = t.layer
			at.children[part] = next
		case next.isLink():
			if links++; links > maxLinks {
				return nil, refused("a loop of links at %q", clip(name))
			}
			todo = append(split(next.target), todo...)
			if path.IsAbs(next.target) {
				stack = stack[:1]
			}
			continue
		case !next.isDir():
			if !makeMissing {
				return nil, refused("%q is not a directory", clip(name))
			}
			t.remove(at, part)
			next = newDir(0o755)
			next.layer = t.layer
			at.children[part] = next
		}
		if stack = append(stack, next); len(stack) > maxDepth {
			return nil, refused("more than %d directories deep", maxDepth)
		}
	}
	return stack[len(stack)-1], nil
}

func split(name string) (parts []string) {
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// empty removes what lower layers put into a directory.
func (t *tree) empty(dir *node) {
	for name, child := range dir.children {
		if child.layer < t.layer {
			t.remove(dir, name)
		}
	}
}

func (t *tree) remove(dir *node, name string) {
	if old := dir.children[name]; old != nil {
		old.nlink--
		delete(dir.children, name)
	}
}

func (n *node) setMeta(header *tar.Header) {
	n.mode = n.mode&unix.S_IFMT | uint32(header.Mode)&0o7777
	n.uid, n.gid = uint32(header.Uid), uint32(header.Gid)
	n.mtime = header.ModTime
}

// cleanName returns a name relative to the root, or "" for the root. What
// climbs is refused even where it would stay inside.
func cleanName(name string) (string, error) {
	if strings.ContainsRune(name, 0) || len(name) > 4096 {
		return "", refused("a name that is no name")
	}
	parts := split(name)
	if len(parts) > maxDepth {
		return "", refused("more than %d directories deep", maxDepth)
	}
	for _, part := range parts {
		if part == ".." {
			return "", refused("a name that climbs out")
		}
		if len(part) > 255 {
			return "", refused("a name of %d bytes", len(part))
		}
	}
	return strings.Join(parts, "/"), nil
}

func clip(s string) string {
	if len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}
