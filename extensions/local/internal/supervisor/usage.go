// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// What a sandbox takes. Its writable layer and its memory are files without a
// name, which nobody but its processes can reach, so they are asked for.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

// Usage is what a sandbox takes, in bytes.
type Usage struct {
	Disk   int64 // the writable layer
	Memory int64 // processes, and files on tmpfs
}

// usage looks at the files that the sandbox process has open.
func (s *supervisor) usage() (Usage, error) {
	var own unix.Stat_t
	if err := unix.Stat(rootfs.PrivateSandbox, &own); err != nil {
		return Usage{}, err
	}
	dir := fmt.Sprintf("/proc/%d/fd", s.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	seen := map[[2]uint64]bool{}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 0 {
			continue
		}
		id := [2]uint64{st.Dev, st.Ino}
		if seen[id] {
			continue
		}
		seen[id] = true
		name, err := os.Readlink(path)
		switch {
		case err != nil:
		case strings.HasPrefix(name, "/memfd:"):
			u.Memory += st.Blocks * 512
		case st.Dev == own.Dev:
			u.Disk += st.Blocks * 512
		}
	}
	return u, nil
}

// Used asks what a sandbox takes.
func Used(ctx context.Context, dir string) (Usage, error) {
	a, err := ask(ctx, dir, request{Op: "usage"}, nil)
	if err != nil || a.Usage == nil {
		return Usage{}, err
	}
	return *a.Usage, nil
}
