// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxEntries bounds an archive that comes out of a sandbox.
const maxEntries = 1 << 20

// pack writes a file or directory as a tar archive under a new name, and
// names what it left out. Links within a directory stay links; a link that
// is the source itself is followed.
func pack(to io.Writer, source, name string, info fs.FileInfo) (skipped []string, err error) {
	archive := tar.NewWriter(to)
	if !info.IsDir() {
		err = packOne(archive, source, name, info)
		return nil, errors.Join(err, archive.Close())
	}
	// The trailing separator makes the walk follow a source that is a link.
	err = filepath.WalkDir(source+string(filepath.Separator), func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		within, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if within == "." {
			if info, err = os.Stat(source); err != nil {
				return err
			}
		}
		if kind := info.Mode().Type(); kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink {
			skipped = append(skipped, file)
			return nil
		}
		return packOne(archive, file, path.Join(name, filepath.ToSlash(within)), info)
	})
	return skipped, errors.Join(err, archive.Close())
}

func packOne(archive *tar.Writer, file, name string, info fs.FileInfo) error {
	target := ""
	if info.Mode().Type() == fs.ModeSymlink {
		var err error
		if target, err = os.Readlink(file); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
	}
	// The users of this machine mean nothing in there.
	header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	defer content.Close()
	// A file that grows while it is read ends where it ended when the copy began.
	if _, err := io.CopyN(archive, content, header.Size); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// unpack writes an archive, whose names all begin with one name, to target.
//
// The archive comes out of a sandbox and may be hostile. Everything is
// written through an [os.Root] at the target, which no name and no link
// leads out of; besides, links that point out of the target are refused, so
// that nobody follows them later.
func unpack(from io.Reader, target string) error {
	u := unpacker{target: target}
	defer u.close()
	archive := tar.NewReader(from)
	for entries := 0; ; entries++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the archive from the sandbox: %w", err)
		}
		if entries == maxEntries {
			return fmt.Errorf("the archive from the sandbox has more than %d entries", maxEntries)
		}
		if err := u.entry(archive, header); err != nil {
			return fmt.Errorf("%.200q from the sandbox: %w", header.Name, err)
		}
	}
	return u.finish()
}

type unpacker struct {
	target string
	first  string   // name that all others begin with
	root   *os.Root // the target, when it is a directory
	single bool     // the target is one file; nothing may follow
	modes  []mode   // of directories, set at the end: one may be read-only
}

type mode struct {
	name string
	mode fs.FileMode
}

func (u *unpacker) close() {
	if u.root != nil {
		_ = u.root.Close()
	}
}

// finish gives the directories their modes, the innermost first.
func (u *unpacker) finish() error {
	if u.first == "" {
		return errors.New("the archive from the sandbox is empty")
	}
	for i := len(u.modes) - 1; i >= 0; i-- {
		if err := u.root.Chmod(u.modes[i].name, u.modes[i].mode); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) entry(content io.Reader, header *tar.Header) error {
	name := path.Clean(strings.TrimSuffix(header.Name, "/"))
	first, within, nested := strings.Cut(name, "/")
	switch {
	case !fs.ValidPath(name):
		return errors.New("the name leads out of the destination")
	case header.Typeflag == tar.TypeGNUSparse || sparse(header):
		return errors.New("a sparse file, which may be of any size, is not unpacked")
	case u.single:
		return errors.New("it follows what is a single file")
	case u.first == "":
		u.first = first
		if header.Typeflag != tar.TypeDir && !nested {
			return u.file(content, header)
		}
		if err := u.directory(); err != nil {
			return err
		}
	case first != u.first && u.first != ".":
		return fmt.Errorf("it is not within %.200q", u.first)
	}
	if u.first == "." {
		within = name
	}
	if within == "" || within == "." {
		return nil
	}
	return u.within(content, header, within)
}

// directory makes the target a directory.
func (u *unpacker) directory() (err error) {
	if err := os.MkdirAll(u.target, 0o755); err != nil {
		return err
	}
	u.root, err = os.OpenRoot(u.target)
	return err
}

// file makes the target a file.
func (u *unpacker) file(content io.Reader, header *tar.Header) (err error) {
	if header.Typeflag == tar.TypeSymlink || header.Typeflag == tar.TypeLink {
		return errors.New("it is a link: copy what it leads to")
	}
	u.single = true
	if err := os.MkdirAll(filepath.Dir(u.target), 0o755); err != nil {
		return err
	}
	if u.root, err = os.OpenRoot(filepath.Dir(u.target)); err != nil {
		return err
	}
	return u.within(content, header, filepath.Base(u.target))
}

// within writes one entry below the root.
func (u *unpacker) within(content io.Reader, header *tar.Header, name string) error {
	perm := fs.FileMode(header.Mode) & fs.ModePerm
	if parent := path.Dir(name); parent != "." {
		if err := u.parents(parent); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		if err := u.root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		// What is unpacked into it needs the owner's bits until the end.
		u.modes = append(u.modes, mode{name, perm | 0o700})
		return nil
	case tar.TypeReg:
		if err := u.clear(name); err != nil {
			return err
		}
		file, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	case tar.TypeSymlink:
		if path.IsAbs(header.Linkname) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), header.Linkname)) {
			return fmt.Errorf("the link to %.200q leads out of the destination", header.Linkname)
		}
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Symlink(header.Linkname, name)
	case tar.TypeLink:
		linked := path.Clean(header.Linkname)
		if u.first != "." {
			var found bool
			if linked, found = strings.CutPrefix(linked, u.first+"/"); !found {
				return fmt.Errorf("the link to %.200q leads out of the destination", header.Linkname)
			}
		}
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Link(linked, name)
	}
	return errors.New("it is neither a file, a directory nor a link")
}

// parents makes the directories that an entry stands in. None may be a link:
// where an entry really is decides where a relative link in it leads.
func (u *unpacker) parents(dir string) error {
	for i, c := range dir + "/" {
		if c != '/' {
			continue
		}
		if info, err := u.root.Lstat(dir[:i]); err == nil && !info.IsDir() {
			return fmt.Errorf("%.200q is not a directory", dir[:i])
		}
	}
	return u.root.MkdirAll(dir, 0o755)
}

// clear removes a file or link that stands where another shall: writing
// through a link would write somewhere else.
func (u *unpacker) clear(name string) error {
	info, err := u.root.Lstat(name)
	if err != nil || info.IsDir() {
		return nil //nolint:nilerr // what can't be seen will fail at the write, with its reason
	}
	return u.root.Remove(name)
}

// sparse reports whether the reader would fill holes in: a few bytes of
// archive can then stand for a file of any size.
func sparse(header *tar.Header) bool {
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}
