// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package cgroup

// Where this user may make groups on this machine.

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what is looked at; a test has one of its own.
type machine struct {
	root string // where control groups are mounted
	self string // the file that names the groups of this process
	uid  int
	// version returns the version of the file system at a path, 0 for none.
	version func(path string) int
	// remove removes a group that holds no process.
	remove func(path string) error
}

func thisMachine() machine {
	return machine{root: "/sys/fs/cgroup", self: "/proc/self/cgroup", uid: os.Geteuid(), version: mounted, remove: unix.Rmdir}
}

// mounted returns the version of the control group file system at a path.
func mounted(path string) int {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0
	}
	switch fs.Type {
	case unix.CGROUP_SUPER_MAGIC:
		return 1
	case unix.CGROUP2_SUPER_MAGIC:
		return 2
	}
	return 0
}

// Find looks for a place where this user may make groups.
func Find() Groups { return thisMachine().find() }

func (m machine) find() Groups {
	if m.version(m.root) == 2 {
		return Groups{machine: m, unified: m.delegated()}
	}
	g := Groups{machine: m, v1: map[string]string{}}
	for _, controller := range []string{Memory, CPU, Pids} {
		dir := filepath.Join(m.root, controller)
		if m.version(dir) != 1 {
			continue
		}
		if m.uid != 0 {
			dir = m.own(controller)
		}
		if writable(dir) {
			g.v1[controller] = dir
		}
	}
	return g
}

// delegated returns the group of version 2 to make others in, or nothing.
//
// The real root takes any. Elsewhere processes and groups do not mix: a group
// that hands controllers on holds no process itself. And whoever moves a
// process needs to write to a group above both ends. So it is the nearest
// group above this process that belongs to this user and is empty.
func (m machine) delegated() string {
	own := m.own("")
	if own == "" {
		return ""
	}
	_, err := os.Stat(filepath.Join(m.root, "cgroup.type"))
	if m.uid == 0 && os.IsNotExist(err) {
		if writable(m.root) {
			return m.root
		}
		return ""
	}
	for dir := own; dir != m.root && strings.HasPrefix(dir, m.root+"/"); {
		dir = filepath.Dir(dir)
		if !writable(dir) || !writable(filepath.Join(dir, "cgroup.procs")) || !writable(filepath.Join(dir, "cgroup.subtree_control")) {
			return "" // nor is anything above
		}
		if procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil && strings.TrimSpace(string(procs)) == "" {
			return dir
		}
	}
	return ""
}

// own returns the directory of this process's group.
func (m machine) own(controller string) string {
	data, err := os.ReadFile(m.self)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || strings.Contains(f[2], "..") {
			continue // one outside of this namespace
		}
		if controller == "" && f[0] == "0" {
			return filepath.Join(m.root, f[2])
		}
		if controller != "" && slices.Contains(strings.Split(f[1], ","), controller) {
			return filepath.Join(m.root, controller, f[2])
		}
	}
	return ""
}

func writable(path string) bool { return path != "" && unix.Access(path, unix.W_OK) == nil }

// isGroupOf reports whether dir is a control group of ours that is there.
func (m machine) isGroupOf(dir, id string) bool {
	return filepath.Clean(dir) == dir && strings.HasPrefix(dir, m.root+"/") && strings.HasSuffix(dir, "/"+parentName+"/"+id) && m.version(dir) != 0
}
