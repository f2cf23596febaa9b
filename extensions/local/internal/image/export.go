// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

// Reading back what erofs.go writes, as a layer of a portable snapshot. It
// reads files of the cache only, which are ours.

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

// errDamaged is a file of the cache that is not what was written.
var errDamaged = errors.New("the unpacked image is damaged")

// Export writes an image as a tar, without what was added to it for sandboxes
// of this backend.
func (i *Image) Export(to io.Writer) error {
	f, err := os.Open(i.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	super := make([]byte, 128)
	if _, err := f.ReadAt(super, superOffset); err != nil {
		return err
	}
	le := binary.LittleEndian
	if le.Uint32(super) != superMagic {
		return errDamaged
	}
	e := exporter{from: f, meta: int64(le.Uint32(super[40:])) * blockSize, out: tar.NewWriter(to), links: map[uint64]string{}}
	root, err := e.inode(uint64(le.Uint16(super[14:])))
	if err != nil {
		return err
	}
	if err := e.dir("", root, 0); err != nil {
		return err
	}
	return e.out.Close()
}

type exporter struct {
	from  *os.File
	meta  int64
	out   *tar.Writer
	links map[uint64]string // the first name of an inode that has several
}

// stored is an inode as it is in the file.
type stored struct {
	node
	inline int64 // offset of inline content; 0 is none
}

func (e *exporter) inode(nid uint64) (s stored, err error) {
	at := e.meta + int64(nid)*slotSize
	b := make([]byte, inodeSize)
	if _, err := e.from.ReadAt(b, at); err != nil {
		return s, err
	}
	le := binary.LittleEndian
	s.node = node{
		mode: uint32(le.Uint16(b[4:])), size: int64(le.Uint64(b[8:])), block: le.Uint32(b[16:]), uid: le.Uint32(b[24:]), gid: le.Uint32(b[28:]),
		mtime: time.Unix(int64(le.Uint64(b[32:])), int64(le.Uint32(b[40:]))), nlink: le.Uint32(b[44:]), nid: nid,
	}
	if le.Uint16(b)>>1 == layoutInline {
		s.inline = at + inodeSize
	}
	if s.size < 0 || s.inline > 0 && s.size > blockSize {
		return s, errDamaged
	}
	return s, nil
}

// content returns what an inode holds.
func (e *exporter) content(s stored) io.Reader {
	at := int64(s.block) * blockSize
	if s.inline > 0 {
		at = s.inline
	}
	return io.NewSectionReader(e.from, at, s.size)
}

func (e *exporter) dir(name string, s stored, depth int) error {
	if depth > maxDepth {
		return errDamaged
	}
	content, err := io.ReadAll(e.content(s))
	if err != nil {
		return err
	}
	for len(content) > 0 {
		block := content[:min(blockSize, len(content))]
		content = content[len(block):]
		if err := e.entries(name, block, depth); err != nil {
			return err
		}
	}
	return nil
}

// entries writes what one block of a directory names.
func (e *exporter) entries(dir string, block []byte, depth int) error {
	le := binary.LittleEndian
	if len(block) < direntSize {
		return errDamaged
	}
	names := int(le.Uint16(block[8:]))
	if names%direntSize != 0 || names > len(block) {
		return errDamaged
	}
	for at := 0; at < names; at += direntSize {
		begin, end := int(le.Uint16(block[at+8:])), len(block)
		if at+direntSize < names {
			end = int(le.Uint16(block[at+direntSize+8:]))
		}
		if begin < names || end > len(block) || begin > end {
			return errDamaged
		}
		name := string(bytes.TrimRight(block[begin:end], "\x00"))
		if name == "." || name == ".." {
			continue
		}
		s, err := e.inode(le.Uint64(block[at:]))
		if err != nil {
			return err
		}
		if err := e.entry(path.Join(dir, name), s, depth); err != nil {
			return fmt.Errorf("%q: %w", clip(name), err)
		}
	}
	return nil
}

// ours are the files that sandboxes of this backend need and others do not.
var ours = map[string]bool{initproc.Path: true, rootfs.TmpKeep: true}

func (e *exporter) entry(name string, s stored, depth int) error {
	if ours["/"+name] {
		return nil
	}
	header := &tar.Header{Name: name, Mode: int64(s.mode & 0o7777), Uid: int(s.uid), Gid: int(s.gid), ModTime: s.mtime, Format: tar.FormatPAX}
	first, linked := e.links[s.nid]
	switch s.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	case unix.S_IFLNK:
		target, err := io.ReadAll(e.content(s))
		if err != nil {
			return err
		}
		header.Typeflag, header.Linkname = tar.TypeSymlink, string(target)
	case unix.S_IFIFO:
		header.Typeflag = tar.TypeFifo
	case unix.S_IFREG:
		header.Typeflag, header.Size = tar.TypeReg, s.size
	default:
		return errDamaged
	}
	if linked {
		header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
	}
	if err := e.out.WriteHeader(header); err != nil {
		return err
	}
	switch {
	case header.Typeflag == tar.TypeDir:
		return e.dir(name, s, depth+1)
	case linked:
		return nil
	case s.nlink > 1:
		e.links[s.nid] = name
	}
	if header.Typeflag == tar.TypeReg && s.size > 0 {
		_, err := io.Copy(e.out, e.content(s))
		return err
	}
	return nil
}
