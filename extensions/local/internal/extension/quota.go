// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// The bound on what this backend takes of the disk. It is looked at before
// anything is begun. A sandbox with limits.disk counts with all of that, so
// what was let in never exceeds the bound by growing.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/image"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	quotaKey = "max_state_size"
	// smallest is what a sandbox takes before it writes anything.
	smallest = 1 << 20
	// usageTime is how long a sandbox has to say what it takes.
	usageTime = 2 * time.Second
)

// taken is what is on the disk, in bytes.
type taken struct{ sandboxes, snapshots, images, programs int64 }

func (t taken) total() int64 { return t.sandboxes + t.snapshots + t.images + t.programs }

// admit makes sure that so much more may be taken, and holds that place until
// it is released: others that ask wait meanwhile. Without a bound it does
// nothing.
func (e *Extension) admit(ctx context.Context, what string, need int64) (release func(), err error) {
	if e.maxState == 0 {
		return func() {}, nil
	}
	lock, err := e.lockQuota(ctx)
	if err != nil {
		return nil, err
	}
	t, err := e.taken(ctx)
	if err == nil && t.total()+need > e.maxState {
		t.images = e.collectImages(max(0, e.maxState-need-(t.total()-t.images)))
	}
	if err == nil && t.total()+need > e.maxState {
		err = &sdk.Error{Kind: sdk.ErrQuota, Path: quotaKey,
			Message: fmt.Sprintf("%s needs %s, and of the %s that %s allows, %s are taken: sandboxes %s, snapshots %s, images %s, copies of the extension %s",
				what, mebi(need), mebi(e.maxState), quotaKey, mebi(t.total()), mebi(t.sandboxes), mebi(t.snapshots), mebi(t.images), mebi(t.programs)),
			Advice: "destroy sandboxes, delete snapshots, or raise " + quotaKey}
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return func() { lock.Close() }, nil
}

func mebi(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// lockQuota waits for its turn: what is let in has to be there before the next
// one looks.
func (e *Extension) lockQuota(ctx context.Context) (*os.File, error) {
	for {
		f, err := record.Hold(e.store.root, "quota.lock")
		if !errors.Is(err, record.ErrHeld) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// taken measures.
func (e *Extension) taken(ctx context.Context) (t taken, err error) {
	entries, err := os.ReadDir(e.store.path("sandboxes"))
	if err != nil {
		return t, err
	}
	for _, entry := range entries {
		dir := e.store.path("sandboxes", entry.Name())
		t.sandboxes += onDisk(dir)
		if sdk.IsSandboxID(entry.Name()) {
			t.sandboxes += writable(ctx, dir, entry.Name())
		}
	}
	t.snapshots, t.images, t.programs = onDisk(e.store.path("snapshots")), onDisk(e.store.path("images")), onDisk(e.store.path("bin"))
	return t, ctx.Err()
}

// writable is what a sandbox's writable layer counts: all that it may take,
// or without such a limit what it takes now.
func writable(ctx context.Context, dir, id string) int64 {
	if !record.SupervisorAlive(dir) {
		return 0 // its layer went with it
	}
	r, err := record.Read(dir, id)
	if err == nil && r.Profile.Limits != nil {
		if size, err := sdk.ParseSize(r.Profile.Limits.Disk); err == nil {
			return size
		}
	}
	return used(ctx, dir).Disk
}

// used is nothing for a sandbox that does not answer: it is being started, or
// is about to be gone.
func used(ctx context.Context, dir string) supervisor.Usage {
	ctx, cancel := context.WithTimeout(ctx, usageTime)
	defer cancel()
	u, err := supervisor.Used(ctx, dir)
	if err != nil {
		return supervisor.Usage{}
	}
	return u
}

// onDisk adds up what the files below a directory take. One that goes
// meanwhile takes nothing.
func onDisk(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			size += st.Blocks * 512
		}
		return nil
	})
	return size
}

// withRoom unpacks an image into the room that there is. Where that is not
// enough, images that nothing needs make more of it.
func (e *Extension) withRoom(ctx context.Context, name string, unpack func(image.Cache) (*image.Image, error)) (*image.Image, error) {
	images := e.store.images()
	if e.maxState == 0 {
		return unpack(images)
	}
	for try := 0; ; try++ {
		t, err := e.taken(ctx)
		if err != nil {
			return nil, err
		}
		images.Room = max(1, e.maxState-t.total())
		i, err := unpack(images)
		if !errors.Is(err, image.ErrNoRoom) {
			return i, err
		}
		if before := t.images; try == 0 && e.collectImages(0) < before {
			continue
		}
		return nil, &sdk.Error{Kind: sdk.ErrQuota, Path: quotaKey, Err: err,
			Message: fmt.Sprintf("image %s does not fit: of the %s that %s allows, %s are left", clip(name), mebi(e.maxState), quotaKey, mebi(max(0, e.maxState-t.total()))),
			Advice:  "destroy sandboxes, delete snapshots, or raise " + quotaKey}
	}
}

// snapshotSize is about how much a snapshot will take.
func (e *Extension) snapshotSize(ctx context.Context, dir string, kind sdk.SnapshotKind) int64 {
	u := used(ctx, dir)
	if kind == sdk.SnapshotMemory {
		u.Disk += u.Memory
	}
	return u.Disk + smallest
}
