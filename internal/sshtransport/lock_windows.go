// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build windows

package sshtransport

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks one byte far behind any content, because a lock here is
// mandatory: readers without a lock must not be stopped by it. It ends with
// the open file.
func tryLock(f *os.File) (bool, error) {
	const flags = windows.LOCKFILE_FAIL_IMMEDIATELY | windows.LOCKFILE_EXCLUSIVE_LOCK
	at := &windows.Overlapped{Offset: 0, OffsetHigh: 1 << 30}
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}
