// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestDestroyOnAFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256m,mode=0700"); err != nil {
		t.Skipf("no disk of our own to fill: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	state := filepath.Join(disk, "state")
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	f, err := os.Create(filepath.Join(disk, "fill"))
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
	if _, err := e.Claim(t.Context(), sdk.ClaimOptions{Target: target(s.ID), Generation: 1}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("claim: %v, and this test is about a full disk", err)
	}
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
