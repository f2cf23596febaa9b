// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a place for a file that is not there yet.
type File struct {
	name      string
	temporary *os.File
}

// Reserve finds out, before anything is done, whether a file can be written
// later. One that is there is refused with [fs.ErrExist].
func Reserve(name string) (*File, error) {
	if _, err := os.Lstat(name); err == nil {
		return nil, &fs.PathError{Op: "write", Path: name, Err: fs.ErrExist}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// Its mode is 0600.
	temporary, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return nil, err
	}
	return &File{name: name, temporary: temporary}, nil
}

// Write puts the file in place, whole or not at all, and never over another
// one that came meanwhile.
func (f *File) Write(content []byte) error {
	_, err := f.temporary.Write(content)
	if err == nil {
		err = f.temporary.Sync()
	}
	if err = errors.Join(err, f.temporary.Close()); err != nil {
		return err
	}
	err = os.Link(f.temporary.Name(), f.name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	// A file system without links.
	place, err := os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := place.Close(); err != nil {
		return err
	}
	return os.Rename(f.temporary.Name(), f.name)
}

// Abandon gives the place back. After [File.Write] it only tidies up.
func (f *File) Abandon() {
	// Closed already after Write, and gone where it was renamed.
	_ = f.temporary.Close()
	_ = os.Remove(f.temporary.Name())
}

// ReadBounded reads a file that is no larger than most bytes.
func ReadBounded(file string, most int64) ([]byte, error) {
	handle, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	content, err := io.ReadAll(io.LimitReader(handle, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", file, most)
	}
	return content, err
}
