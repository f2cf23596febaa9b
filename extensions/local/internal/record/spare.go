// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package record

// Room for one more record, kept beside the present one, so that a lease can
// be extended, claimed or expired on a disk that is full: the record is
// written into room that it has, and the two change names.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	spareName = "record.spare"
	// Records are padded to whole blocks with some room, so that the next one,
	// a few digits longer, fits where this one was.
	padBlock = 4096
	padRoom  = 512
)

// padded adds white space up to the end of a block.
func padded(data []byte) []byte {
	size := (len(data) + padRoom + padBlock - 1) / padBlock * padBlock
	return append(append(data, bytes.Repeat([]byte{' '}, size-len(data)-1)...), '\n')
}

func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// reserve makes room for a record where there is none. What can't be reserved
// now is reserved by the next write.
func reserve(dir string, size int64) {
	path := filepath.Join(dir, spareName)
	if info, err := os.Lstat(path); err == nil && info.Size() >= size {
		return
	}
	// Written, not only allocated: a hole would have to be filled.
	_ = WriteFile(path, bytes.Repeat([]byte{' '}, int(size)), 0o600)
}

// writeSpare writes a record into the room that is kept for it.
func writeSpare(dir string, data []byte) error {
	path := filepath.Join(dir, spareName)
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Size > maxSize {
		return fmt.Errorf("%s is no file of ours", path)
	}
	if room := int(st.Size) - len(data); room > 0 {
		data = append(data, bytes.Repeat([]byte{' '}, room)...)
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, Path(dir), unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s with the record: %w", path, err)
	}
	return SyncDir(dir)
}
