// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

// Making room in the cache. A use holds a shared lock on the image's
// description; a removal takes it alone or not at all. Between the two names
// of an image nothing is seen, because giving and taking them is under one
// lock; what a killed one left between them is removed by the next.

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dataSuffix = ".erofs"
	metaSuffix = ".json"
	ofPrefix   = "of-"
	newPrefix  = ".new-"
	lockName   = "lock"
	// beginGrace is how long a new file may be without its writer's lock.
	beginGrace = 10 * time.Second
)

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// temp makes a file to write to, with a lock that ends with its writer.
func (c Cache) temp() (*os.File, error) {
	f, err := os.CreateTemp(c.Dir, newPrefix+"*")
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		f.Close()
		_ = os.Remove(f.Name())
		return nil, err
	}
	return f, nil
}

// lock is held while names are given or taken, which takes no time.
func (c Cache) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// Entry is one image of the cache.
type Entry struct {
	Key  string
	Size int64 // bytes on disk
	Used time.Time
}

// List returns the images, those first that were not used for longest.
func (c Cache) List() ([]Entry, error) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, err
	}
	var list []Entry
	for _, entry := range entries {
		key, ok := strings.CutSuffix(entry.Name(), metaSuffix)
		if !ok || !isKey(key) {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			continue // removed meanwhile
		}
		list = append(list, Entry{Key: key, Size: onDisk(c.Path(key)), Used: info.ModTime()})
	}
	slices.SortFunc(list, func(a, b Entry) int { return a.Used.Compare(b.Used) })
	return list, nil
}

// onDisk returns what a file takes: an image of much nothing has holes.
func onDisk(path string) int64 {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0
	}
	return st.Blocks * 512
}

// Remove removes an image that nobody holds, and reports whether it did.
func (c Cache) Remove(key string) (bool, error) {
	if !isKey(key) {
		return false, nil
	}
	unlock, err := c.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	name := filepath.Join(c.Dir, key+metaSuffix)
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return false, nil // it is held, which is no failure
	}
	if err := os.Remove(name); err != nil {
		return false, err
	}
	return true, os.Remove(c.Path(key))
}

// Tidy removes what belongs to no image: what killed writers and removals
// left, and names of images that are gone. It is best effort.
func (c Cache) Tidy() {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(c.Dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), newPrefix):
			removeDead(path)
		case strings.HasPrefix(entry.Name(), ofPrefix):
			if key, err := os.Readlink(path); err == nil && (!isKey(key) || missing(filepath.Join(c.Dir, key+metaSuffix))) {
				_ = os.Remove(path)
			}
		case strings.HasSuffix(entry.Name(), dataSuffix):
			c.removeHalf(path, strings.TrimSuffix(path, dataSuffix)+metaSuffix)
		case strings.HasSuffix(entry.Name(), metaSuffix):
			c.removeHalf(path, strings.TrimSuffix(path, metaSuffix)+dataSuffix)
		}
	}
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// removeHalf removes a file whose other half is missing.
func (c Cache) removeHalf(path, other string) {
	if !missing(other) {
		return
	}
	unlock, err := c.lock()
	if err != nil {
		return
	}
	defer unlock()
	if missing(other) {
		_ = os.Remove(path)
	}
}

// removeDead removes a new file whose writer is gone.
func removeDead(path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || time.Since(info.ModTime()) < beginGrace && info.Size() == 0 {
		return
	}
	if flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(path)
	}
}
