// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package record

// The two locks of a sandbox's directory. flock belongs to the open file, so
// it is inherited with a descriptor and released by the kernel when the last
// holder dies, however it dies.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrHeld is returned when another process holds a lock.
var ErrHeld = errors.New("lock is held")

// Lock takes the record's lock and waits for it. Critical sections are a
// read and a durable write long.
func Lock(dir string) (unlock func(), err error) {
	for {
		f, err := openLock(filepath.Join(dir, "lock"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil, fmt.Errorf("%s: %w", dir, ErrGone)
		}
		if err != nil {
			return nil, err
		}
		if err := flock(f, unix.LOCK_EX); err != nil {
			f.Close()
			return nil, err
		}
		// Whoever held it may have removed the directory meanwhile.
		if same(f, filepath.Join(dir, "lock")) {
			return func() { f.Close() }, nil
		}
		f.Close()
	}
}

// SupervisorLock is the name of the supervisor's lock.
const SupervisorLock = "supervisor.lock"

// WriterLock is the name of the lock of whoever writes into a directory.
const WriterLock = "lock"

// Hold takes one of a directory's locks without waiting.
func Hold(dir, name string) (*os.File, error) {
	f, err := openLock(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	return hold(f, filepath.Join(dir, name))
}

// HoldDead takes the lock of something whose maker died, to remove it. It
// fails with [os.ErrNotExist] where there is no lock, and makes none.
func HoldDead(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return hold(f, filepath.Join(dir, name))
}

// HoldShared opens a file and takes a lock on it that others can share, so
// that nobody who removes such files takes this one: see [HoldDead].
func HoldShared(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	if !same(f, path) {
		f.Close()
		return nil, os.ErrNotExist // it was removed while we waited
	}
	return f, nil
}

// hold locks an open file that still has its name.
func hold(f *os.File, path string) (*os.File, error) {
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	if !same(f, path) {
		f.Close()
		return nil, ErrHeld // whoever had it removed it
	}
	return f, nil
}

// SupervisorAlive reports whether the supervisor's lock is held.
func SupervisorAlive(dir string) bool { return Held(dir, SupervisorLock) }

// Held reports whether one of a directory's locks is held. Where that can't
// be told it is taken to be.
func Held(dir, name string) bool {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
	}
	defer f.Close()
	// Shared, so that two who look do not see each other.
	return flock(f, unix.LOCK_SH|unix.LOCK_NB) != nil
}

func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := chownLike(f, filepath.Dir(path)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrHeld
		default:
			return err
		}
	}
}

func same(f *os.File, path string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(held, now)
}
