// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package copytar

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
	"time"

	"golang.org/x/sys/unix"
)

// Unpack unpacks a tar stream below a directory, which it makes where it is
// missing, and returns how many bytes of content it wrote. It runs inside of the
// sandbox. Names that leave the directory are an error, links are never
// followed out of it, and devices, pipes and sockets are refused.
func Unpack(dir string, from io.Reader) (int64, error) {
	if !path.IsAbs(dir) {
		return 0, fmt.Errorf("%q is not an absolute path", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	var total int64
	type dirTime struct {
		name string
		time time.Time
	}
	var dirs []dirTime
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return total, fmt.Errorf("archive: %w", err)
		}
		name := strings.TrimSuffix(header.Name, "/")
		if name == "." || name == "" {
			continue
		}
		name = strings.TrimPrefix(name, "./")
		if !filepath.IsLocal(name) {
			return total, fmt.Errorf("archive: %q leaves the directory", header.Name)
		}
		n, err := unpackOne(root, name, header, archive)
		if err != nil {
			return total, fmt.Errorf("archive: %q: %w", header.Name, err)
		}
		total += n
		if header.Typeflag == tar.TypeDir {
			dirs = append(dirs, dirTime{name, header.ModTime})
		}
	}
	for _, d := range dirs {
		_ = root.Chtimes(d.name, d.time, d.time)
	}
	return total, nil
}

func unpackOne(root *os.Root, name string, header *tar.Header, content io.Reader) (int64, error) {
	mode := fs.FileMode(header.Mode).Perm()
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return 0, err
		}
	}
	if header.Typeflag != tar.TypeDir {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	var written int64
	switch header.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return 0, err
		}
	case tar.TypeReg, tar.TypeGNUSparse:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return 0, err
		}
		written, err = io.Copy(f, content)
		if err := errors.Join(err, f.Close()); err != nil {
			return written, err
		}
	case tar.TypeSymlink:
		if err := root.Symlink(header.Linkname, name); err != nil {
			return 0, err
		}
		_ = root.Lchown(name, header.Uid, header.Gid)
		return 0, nil
	case tar.TypeLink:
		target := strings.TrimPrefix(header.Linkname, "./")
		if !filepath.IsLocal(target) {
			return 0, fmt.Errorf("links to %q, outside of the directory", header.Linkname)
		}
		return 0, root.Link(target, name)
	default:
		return 0, fmt.Errorf("entries of type %q are not copied", header.Typeflag)
	}
	// Without the right to give files away they stay the user's.
	_ = root.Lchown(name, header.Uid, header.Gid)
	if err := root.Chmod(name, mode|specialBits(header)); err != nil {
		return written, err
	}
	_ = root.Chtimes(name, header.ModTime, header.ModTime)
	return written, nil
}

func specialBits(header *tar.Header) fs.FileMode {
	return header.FileInfo().Mode() & (fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

// Pack writes a file or a directory as a tar stream whose names begin with the
// path's base name; those of the whole root begin with nothing. It runs inside
// of the sandbox. Links are not followed, and what has no content to copy is
// left out: sockets, pipes, devices, and what lies below /proc and /sys.
func Pack(to io.Writer, name string) error {
	if !path.IsAbs(name) {
		return fmt.Errorf("%q is not an absolute path", name)
	}
	name = path.Clean(name)
	base := baseOf(name)
	archive := tar.NewWriter(to)
	err := filepath.WalkDir(name, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(name, file)
		if err != nil {
			return err
		}
		if err := packOne(archive, file, path.Join(base, rel), info); err != nil {
			return err
		}
		if entry.IsDir() && file != name && ofKernel(file) {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// ofKernel reports whether a directory is a window on the kernel, whose files
// have no content to copy and come and go.
func ofKernel(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && (st.Type == unix.PROC_SUPER_MAGIC || st.Type == unix.SYSFS_MAGIC)
}

func packOne(archive *tar.Writer, file, name string, info fs.FileInfo) error {
	link := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		var err error
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	case !info.IsDir() && !info.Mode().IsRegular():
		return nil // sockets, pipes and devices have no content to copy
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = name
	header.Format = tar.FormatPAX
	if info.IsDir() {
		header.Name += "/"
	}
	if !info.Mode().IsRegular() {
		return archive.WriteHeader(header)
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	// A file that grows meanwhile is cut at the size announced; one that
	// shrinks is an error of the writer.
	_, err = io.Copy(archive, io.LimitReader(f, header.Size))
	return err
}
