// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package extension

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks a file; the lock ends with the open file.
func tryLock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return errLocked
	}
	return err
}

// syncDir makes the names in a directory durable.
func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
