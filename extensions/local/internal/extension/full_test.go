// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// fullDisk mounts a small disk, and returns what fills it to its last byte.
// A user who may not mount has none: then the disk is not there.
func fullDisk(t *testing.T, size string) (disk string, fill func()) {
	t.Helper()
	disk = t.TempDir()
	err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=0700,size="+size)
	if os.Geteuid() != 0 {
		if err == nil {
			t.Error("a user mounted a disk")
		}
		return "", nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	return disk, func() {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(disk, "fill"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, size := range []int{1 << 20, 4096, 1} {
			for block := make([]byte, size); err == nil; {
				_, err = f.Write(block)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			err = nil
		}
	}
}

func TestAFullDiskBreaksNothingButCreation(t *testing.T) {
	disk, fill := fullDisk(t, "256m")
	if disk == "" {
		return
	}
	state := filepath.Join(disk, "state")
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	short := options(sdk.Profile{Name: "shell"})
	short.ExpiresAt, short.MaxExpiresAt = time.Now().Add(3*time.Second), time.Time{}
	create(t, e, short)
	fill()
	// More than one, because each takes the place that the one before it had.
	lease := s.Lease
	for n := range 12 {
		extended, err := e.Extend(t.Context(), sdk.ExtendOptions{Target: target(s.ID), Generation: lease.Generation, ExpiresAt: lease.ExpiresAt.Add(time.Second)})
		if err != nil {
			t.Fatalf("extend %d: %v", n+1, err)
		}
		lease = extended.Lease
	}
	if got, err := e.Get(t.Context(), sdk.GetOptions{Target: target(s.ID)}); err != nil || got.Sandbox.Lease.Generation != lease.Generation || !got.Sandbox.Lease.ExpiresAt.Equal(lease.ExpiresAt) {
		t.Errorf("get: %+v, %v; want %+v", got.Sandbox.Lease, err, lease)
	}
	if list, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet}); err != nil || len(list.Sandboxes) != 2 || len(list.Unreadable) > 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if expired := until(t, e, short.ID, sdk.StatusExpired); !strings.HasPrefix(expired.Reason, "the deadline passed at ") {
		t.Errorf("reason %q", expired.Reason)
	}
	eventually(t, "the supervisor notes the end and ends everything", func() bool {
		r, err := record.Read(filepath.Dir(recordOf(state, short.ID)), short.ID)
		if err != nil {
			t.Fatal(err)
		}
		return r.Status == sdk.StatusExpired && len(hostProcesses(t, short.ID)) == 0
	})
	refused := options(sdk.Profile{Name: "shell"})
	if _, err := e.Create(t.Context(), refused); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("create: %v", err)
	}
	run(t, e, s.ID, "true")
	if result, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil || !result.Existed || len(result.Leftovers) > 0 {
		t.Errorf("destroy: %+v, %v", result, err)
	}
	if left := hostProcesses(t, s.ID); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if there(filepath.Dir(recordOf(state, s.ID))) {
		t.Error("its directory is still there")
	}
}

func TestNothingGoesBeyondTheStateBound(t *testing.T) {
	state := stateDir(t)
	e := configured(t, state, map[string]string{"max_state_size": "140MiB"})
	refused := func(what string, err error) {
		t.Helper()
		var quota *sdk.Error
		if !errors.Is(err, sdk.ErrQuota) || !errors.As(err, &quota) || quota.Path != "max_state_size" || !strings.Contains(err.Error(), "140.0 MiB") {
			t.Errorf("%s: %v, want ErrQuota that names the setting and the figures", what, err)
		}
	}
	small := sdk.Profile{Name: "small", Limits: &sdk.Limits{Disk: "60MiB"}}
	s := create(t, e, options(small))
	second := options(small)
	_, err := e.Create(t.Context(), second)
	refused("a second one that could grow as much", err)
	if _, err := e.Get(t.Context(), sdk.GetOptions{Target: target(second.ID)}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("what was refused: %v", err)
	}
	run(t, e, s.ID, "dd", "if=/dev/urandom", "of=/srv/data", "bs=1M", "count=50")
	id := newID("snp-")
	_, err = e.Snapshot(t.Context(), sdk.SnapshotOptions{Target: target(s.ID), SnapshotID: id, Kind: sdk.SnapshotFilesystem, Identity: sdk.Identity{Fleet: fleet}, ExpiresAt: time.Now().Add(time.Hour)})
	refused("a snapshot of 50 MiB", err)
	if there(filepath.Join(state, "local", "snapshots", id+".partial")) {
		t.Error("the snapshot was begun")
	}
	noise := make([]byte, 90<<20)
	for i := range noise {
		noise[i] = byte(i>>12) ^ byte(i)
	}
	_, err = e.Prepare(t.Context(), sdk.PrepareOptions{Profile: sdk.Profile{Name: "image", Image: write(t, "big.tar", archive(t, file("etc/big", string(noise), 0o644)).Bytes())}})
	refused("an image of 90 MiB", err)
	if keys := images(t, state); len(keys) > 0 {
		t.Errorf("images %v", keys)
	}
	if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	create(t, e, second)
}
