// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build windows

package extension

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks a file; the lock ends with the open file.
func tryLock(f *os.File) error {
	const flags = windows.LOCKFILE_FAIL_IMMEDIATELY | windows.LOCKFILE_EXCLUSIVE_LOCK
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return errLocked
	}
	return err
}

// syncDir does nothing: the file system journals names by itself.
func syncDir(string) error { return nil }
