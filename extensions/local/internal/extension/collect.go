// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Making room: images and copies of this binary that nothing needs go, those
// first that were not used for longest, while there are more than the bound
// allows. What a sandbox runs from, a snapshot lies on, or a create is about
// to use, stays whatever the bound is.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/snapshot"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// defaultImageCache bounds unpacked images.
	defaultImageCache = 10 << 30
	// programCache bounds copies of this binary, of which each is 40 MB.
	programCache = 256 << 20
)

// collect makes room. It is best effort: what can't be removed now is tried
// again by the next create.
func (e *Extension) collect() {
	e.collectImages(e.imageCache)
	e.collectPrograms(programCache)
}

// collectImages removes images until they take no more than a bound, or none
// is left that may go. It returns what they take.
func (e *Extension) collectImages(bound int64) (size int64) {
	cache := e.store.images()
	list, err := cache.List()
	if err != nil {
		return 0
	}
	for _, entry := range list {
		size += entry.Size
	}
	if size <= bound {
		return size
	}
	used, err := e.store.inUse()
	if err != nil {
		return size // what can't be read may need any of them
	}
	for _, entry := range list {
		if size <= bound {
			break
		}
		if used.images[entry.Key] {
			continue
		}
		if gone, err := cache.Remove(entry.Key); gone && err == nil {
			size -= entry.Size
		}
	}
	cache.Tidy()
	return size
}

// collectPrograms does the same for copies of this binary.
func (e *Extension) collectPrograms(bound int64) {
	entries, err := os.ReadDir(e.store.path("bin"))
	if err != nil {
		return
	}
	type program struct {
		digest string
		size   int64
		last   time.Time
	}
	var list []program
	var size int64
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !isDigest(entry.Name()) {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(e.store.path("bin", entry.Name(), supervisor.ProgramName), &st); err != nil {
			continue
		}
		list = append(list, program{entry.Name(), st.Blocks * 512, info.ModTime()})
		size += st.Blocks * 512
	}
	if size <= bound {
		return
	}
	used, err := e.store.inUse()
	if err != nil {
		return
	}
	slices.SortFunc(list, func(a, b program) int { return a.last.Compare(b.last) })
	for _, p := range list {
		if size <= bound {
			break
		}
		dir := e.store.path("bin", p.digest)
		if used.programs[p.digest] || removeDead(dir, supervisor.ProgramName) != nil {
			continue
		}
		size -= p.size
	}
	for _, entry := range entries {
		path := e.store.path("bin", entry.Name())
		if digest, err := os.Readlink(path); err == nil && strings.HasPrefix(entry.Name(), "of-") {
			if _, err := os.Lstat(e.store.path("bin", filepath.Base(digest))); errors.Is(err, os.ErrNotExist) {
				_ = os.Remove(path)
			}
		}
	}
}

// needed is what sandboxes and snapshots need.
type needed struct {
	images   map[string]bool
	programs map[string]bool
}

// inUse reads every record and manifest. One that can't be read is an error:
// nobody knows what it needs.
func (s store) inUse() (needed, error) {
	n := needed{map[string]bool{}, map[string]bool{}}
	sandboxes, err := os.ReadDir(s.path("sandboxes"))
	if err != nil {
		return n, err
	}
	for _, entry := range sandboxes {
		if !sdk.IsSandboxID(entry.Name()) {
			continue // its maker holds what it needs
		}
		r, err := record.Read(s.sandbox(entry.Name()), entry.Name())
		if errors.Is(err, record.ErrGone) {
			continue
		}
		if err != nil {
			return n, fmt.Errorf("%s: %w", named(entry.Name()), err)
		}
		n.images[r.Image], n.programs[r.Program] = true, true
	}
	snapshots, err := os.ReadDir(s.path("snapshots"))
	if err != nil {
		return n, err
	}
	for _, entry := range snapshots {
		if !sdk.IsSnapshotID(entry.Name()) {
			continue
		}
		m, err := snapshot.Read(s.snapshot(entry.Name()))
		if errors.Is(err, snapshot.ErrGone) {
			continue
		}
		if err != nil {
			return n, fmt.Errorf("snapshot %s: %w", entry.Name(), err)
		}
		n.images[m.Image] = true
	}
	return n, nil
}
