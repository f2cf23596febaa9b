// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

// Writing EROFS, as much of it as gVisor reads: uncompressed files at block
// boundaries, 64-byte inodes, directories and links inline where they fit.
// The format is described in the kernel's Documentation/filesystems/erofs.rst.
//
//	block 0     superblock, at byte 1024
//	block 1...  file contents, in the order they came; blocks of zeros are holes
//	then        directories that are larger than a block
//	then        inodes; meta_blkaddr points here

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	blockSize   = 4096
	inodeSize   = 64
	superMagic  = 0xe0f5e1e2
	superOffset = 1024
	direntSize  = 12
	slotSize    = 32

	layoutPlain  = 0
	layoutInline = 2
)

// dataWriter writes file contents.
type dataWriter struct {
	file  *os.File
	buf   []byte
	next  int64 // offset, a block boundary
	total int64
	limit int64
	room  int64 // bytes on disk, 0 is no bound
	wrote int64
}

func newDataWriter(f *os.File, limit int64) *dataWriter {
	return &dataWriter{file: f, buf: make([]byte, 64*blockSize), next: blockSize, limit: limit}
}

// add writes one file's content and returns where it is.
func (w *dataWriter) add(content io.Reader) (block uint32, size int64, err error) {
	start := w.next
	buf := w.buf
	for {
		n, err := io.ReadFull(content, buf)
		if n > 0 {
			if w.total += int64(n); w.total > w.limit {
				return 0, 0, refused("more than %d bytes of content", w.limit)
			}
			if err := w.writeBlocks(buf[:n]); err != nil {
				return 0, 0, err
			}
			size += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && n < len(buf) && isEnd(content) {
			break
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read the archive: %w", err)
		}
	}
	if size == 0 {
		return 0, 0, nil
	}
	return uint32(start / blockSize), size, nil
}

// isEnd tells the end of an entry from an archive that was cut off: tar's
// reader answers the first with EOF.
func isEnd(r io.Reader) bool {
	n, err := r.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, io.EOF)
}

var zeroBlock [blockSize]byte

// writeBlocks writes whole blocks; the last one of a file is padded. Blocks
// of zeros stay holes, so a file of nothing takes no room.
func (w *dataWriter) writeBlocks(data []byte) error {
	for len(data) > 0 {
		run := 0
		for run < len(data) {
			end := min(run+blockSize, len(data))
			if bytes.Equal(data[run:end], zeroBlock[:end-run]) {
				break
			}
			run = end
		}
		if run > 0 {
			if w.wrote += int64(run); w.room > 0 && w.wrote > w.room {
				return ErrNoRoom
			}
			if _, err := w.file.WriteAt(data[:run], w.next); err != nil {
				return err
			}
		} else {
			run = min(blockSize, len(data))
		}
		w.next += (int64(run) + blockSize - 1) / blockSize * blockSize
		data = data[run:]
	}
	return nil
}

// finish writes directories, inodes and superblock.
func (t *tree) finish() error {
	w := t.data
	order := t.order()
	// Where everything lies, then what it holds.
	dirs := map[*node][]byte{}
	var off int64 = inodeSize // number 0 stays unused
	place := func(n *node, inline int) {
		need := int64(inodeSize + inline)
		if off%blockSize+need > blockSize {
			off = (off + blockSize - 1) / blockSize * blockSize
		}
		n.nid = uint64(off / slotSize)
		off += (need + slotSize - 1) / slotSize * slotSize
	}
	for _, n := range order {
		inline := 0
		switch {
		case n.isLink():
			inline = len(n.target)
		case n.isDir():
			n.size = dirSize(n)
			if n.size <= blockSize-inodeSize {
				inline = int(n.size)
			}
		}
		place(n, inline)
	}
	for _, n := range order {
		if !n.isDir() {
			continue
		}
		content := dirContent(n, t.parents[n])
		dirs[n] = content
		if n.size > blockSize-inodeSize {
			n.block = uint32(w.next / blockSize)
			if _, err := w.file.WriteAt(content, w.next); err != nil {
				return err
			}
			w.next += (n.size + blockSize - 1) / blockSize * blockSize
			dirs[n] = nil
		}
	}
	meta := w.next
	if meta/blockSize > math.MaxUint32 {
		return refused("too large for the format")
	}
	if err := writeInodes(w.file, meta, order, dirs); err != nil {
		return err
	}
	end := (meta + off + blockSize - 1) / blockSize * blockSize
	if err := w.file.Truncate(end); err != nil {
		return err
	}
	return writeSuper(w.file, t.root.nid, uint64(len(order)), uint32(end/blockSize), uint32(meta/blockSize))
}

// order lists every inode once, the root first, and remembers parents.
func (t *tree) order() []*node {
	t.parents = map[*node]*node{t.root: t.root}
	order := []*node{t.root}
	seen := map[*node]bool{}
	for i := 0; i < len(order); i++ {
		dir := order[i]
		if !dir.isDir() {
			continue
		}
		dir.nlink = 2
		for _, name := range slices.Sorted(maps.Keys(dir.children)) {
			child := dir.children[name]
			if child.isDir() {
				dir.nlink++
				t.parents[child] = dir
			} else if child.nlink > 1 {
				if seen[child] {
					continue
				}
				seen[child] = true
			}
			order = append(order, child)
		}
	}
	return order
}

// dirNames returns a directory's names in the order of the format.
func dirNames(n *node) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for _, name := range []string{".", ".."} {
			if !yield(name) {
				return
			}
		}
		for name := range n.children {
			if !yield(name) {
				return
			}
		}
	})
}

// dirBlocks cuts names into blocks.
func dirBlocks(names []string) (blocks [][]string, last int) {
	begin := 0
	for i, name := range names {
		if need := direntSize + len(name); last+need > blockSize {
			blocks = append(blocks, names[begin:i])
			begin, last = i, 0
		}
		last += direntSize + len(name)
	}
	return append(blocks, names[begin:]), last
}

func dirSize(n *node) int64 {
	blocks, last := dirBlocks(dirNames(n))
	return int64(len(blocks)-1)*blockSize + int64(last)
}

func dirContent(n, parent *node) []byte {
	blocks, _ := dirBlocks(dirNames(n))
	content := make([]byte, 0, n.size)
	for i, names := range blocks {
		nameOff := len(names) * direntSize
		var entries, text []byte
		for _, name := range names {
			child := n.children[name]
			switch name {
			case ".":
				child = n
			case "..":
				child = parent
			}
			entries = binary.LittleEndian.AppendUint64(entries, child.nid)
			entries = binary.LittleEndian.AppendUint16(entries, uint16(nameOff+len(text)))
			entries = append(entries, fileType(child.mode), 0)
			text = append(text, name...)
		}
		content = append(append(content, entries...), text...)
		if i < len(blocks)-1 {
			content = append(content, make([]byte, (i+1)*blockSize-len(content))...)
		}
	}
	return content
}

func fileType(mode uint32) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFIFO:
		return 5
	case unix.S_IFLNK:
		return 7
	}
	return 0
}

func writeInodes(f *os.File, meta int64, order []*node, dirs map[*node][]byte) error {
	// In order of their place, so buffer and write in large pieces.
	buf := make([]byte, 0, 1<<20)
	begin := meta
	flush := func() error {
		_, err := f.WriteAt(buf, begin)
		begin += int64(len(buf))
		buf = buf[:0]
		return err
	}
	for ino, n := range order {
		at := meta + int64(n.nid)*slotSize
		buf = append(buf, make([]byte, at-begin-int64(len(buf)))...)
		buf = appendInode(buf, n, uint32(ino+1), dirs[n])
		if len(buf) > 1<<20-2*blockSize {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

func appendInode(buf []byte, n *node, ino uint32, inline []byte) []byte {
	layout := layoutPlain
	if n.isLink() {
		inline = []byte(n.target)
	}
	if len(inline) > 0 {
		layout = layoutInline
	}
	le := binary.LittleEndian
	buf = le.AppendUint16(buf, uint16(1|layout<<1)) // extended
	buf = le.AppendUint16(buf, 0)
	buf = le.AppendUint16(buf, uint16(n.mode))
	buf = le.AppendUint16(buf, 0)
	buf = le.AppendUint64(buf, uint64(n.size))
	buf = le.AppendUint32(buf, n.block)
	buf = le.AppendUint32(buf, ino)
	buf = le.AppendUint32(buf, n.uid)
	buf = le.AppendUint32(buf, n.gid)
	sec, nsec := int64(0), 0
	if !n.mtime.IsZero() && n.mtime.Unix() > 0 {
		sec, nsec = n.mtime.Unix(), n.mtime.Nanosecond()
	}
	buf = le.AppendUint64(buf, uint64(sec))
	buf = le.AppendUint32(buf, uint32(nsec))
	buf = le.AppendUint32(buf, n.nlink)
	buf = append(buf, make([]byte, 16)...)
	return append(buf, inline...)
}

func writeSuper(f *os.File, root, inodes uint64, blocks, meta uint32) error {
	b := make([]byte, 128)
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	b[12] = 12 // block size, as a power of two
	le.PutUint16(b[14:], uint16(root))
	le.PutUint64(b[16:], inodes)
	le.PutUint32(b[36:], blocks)
	le.PutUint32(b[40:], meta)
	_, err := f.WriteAt(b, superOffset)
	return err
}
