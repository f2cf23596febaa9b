// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package guest

// What the runtime's archive of a writable layer leaves out of a file: the
// fraction of a second of its time, and extended attributes that are no text.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Attributes are those of one file. Names and values are bytes, not text.
type Attributes struct {
	Path     []byte            `json:"path"` // relative to the root
	Modified time.Time         `json:"modified"`
	Extended map[string][]byte `json:"extended,omitempty"`
}

// attributesOut writes the attributes of the files that are named, one JSON
// value a line, and leaves out what is not there any more.
func attributesOut(from io.Reader, to io.Writer) error {
	names := json.NewDecoder(from)
	buffered := bufio.NewWriter(to)
	out := json.NewEncoder(buffered)
	for {
		var name []byte
		if err := names.Decode(&name); errors.Is(err, io.EOF) {
			return buffered.Flush()
		} else if err != nil {
			return err
		}
		a, err := readAttributes(name)
		if err != nil {
			continue // changed under us: the snapshot is of a moment before
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

func readAttributes(name []byte) (Attributes, error) {
	file := path.Join("/", string(name))
	var st unix.Stat_t
	if err := unix.Lstat(file, &st); err != nil {
		return Attributes{}, err
	}
	a := Attributes{Path: name, Modified: time.Unix(st.Mtim.Unix()).UTC()}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return a, nil // the rest has none that anyone may set
	}
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(file, list)
	if err != nil {
		return a, nil //nolint:nilerr // a file system that has none
	}
	value := make([]byte, 64<<10)
	for attribute := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if attribute == "" {
			continue
		}
		n, err := unix.Lgetxattr(file, attribute, value)
		// The archive has those that are text.
		if err != nil || n > 0 && utf8.Valid(value[:n]) && !bytes.ContainsRune(value[:n], 0) {
			continue
		}
		if a.Extended == nil {
			a.Extended = map[string][]byte{}
		}
		a.Extended[attribute] = append([]byte{}, value[:n]...)
	}
	return a, nil
}

// attributesIn gives files the attributes that attributesOut wrote.
func attributesIn(from io.Reader) error {
	in := json.NewDecoder(from)
	for {
		var a Attributes
		if err := in.Decode(&a); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		// What lies under a mount of this sandbox's own is not to be seen, and
		// the mount is read-only.
		if err := writeAttributes(a); err != nil && !errors.Is(err, unix.EROFS) {
			return err
		}
	}
}

func writeAttributes(a Attributes) error {
	file := path.Join("/", string(a.Path))
	for name, value := range a.Extended {
		if err := unix.Lsetxattr(file, name, value, 0); err != nil {
			return fmt.Errorf("attribute %.80q of %.200q: %w", name, file, err)
		}
	}
	if a.Modified.IsZero() {
		return nil
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(a.Modified.UnixNano())}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, file, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("time of %.200q: %w", file, err)
	}
	return nil
}
