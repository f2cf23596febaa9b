// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Control groups, both versions, made before the sandbox and held around its
// whole process tree, supervisor included. Exceeding the memory limit ends
// the sandbox, like a machine that has no more of it.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
)

// cgroups is where groups can be made. At most one of the two is set.
type cgroups struct {
	unified string            // directory to make groups in
	v1      map[string]string // the same, by controller
}

const cgroupRoot = "/sys/fs/cgroup"

func (g cgroups) version() string {
	switch {
	case g.unified != "":
		return "v2"
	case len(g.v1) > 0:
		return "v1"
	}
	return "none"
}

func (g cgroups) can(controller string) bool {
	if g.unified != "" {
		return hasController(filepath.Join(g.unified, "cgroup.subtree_control"), controller) || hasController(filepath.Join(g.unified, "cgroup.controllers"), controller)
	}
	return g.v1[controller] != ""
}

func hasController(file, name string) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	for _, c := range strings.Fields(string(data)) {
		if c == name {
			return true
		}
	}
	return false
}

// findCgroups looks for a place where this user may make groups: the root as
// root, below our own group where it was delegated to us.
func findCgroups() cgroups {
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &fs); err != nil {
		return cgroups{}
	}
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		dir := cgroupRoot
		if os.Geteuid() != 0 {
			// Processes and groups do not mix in v2, so a delegated group is used
			// through its parent where that is ours too.
			dir = filepath.Dir(ownCgroup(""))
		}
		if writable(dir) {
			return cgroups{unified: dir}
		}
		return cgroups{}
	}
	g := cgroups{v1: map[string]string{}}
	for _, controller := range []string{"memory", "cpu"} {
		dir := filepath.Join(cgroupRoot, controller)
		if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.CGROUP_SUPER_MAGIC {
			continue
		}
		if os.Geteuid() != 0 {
			dir = ownCgroup(controller)
		}
		if writable(dir) {
			g.v1[controller] = dir
		}
	}
	return g
}

func writable(dir string) bool { return dir != "" && unix.Access(dir, unix.W_OK) == nil }

// ownCgroup returns the directory of our own group.
func ownCgroup(controller string) string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if controller == "" && f[0] == "0" {
			return filepath.Join(cgroupRoot, f[2])
		}
		for _, c := range strings.Split(f[1], ",") {
			if c == controller && c != "" {
				return filepath.Join(cgroupRoot, controller, f[2])
			}
		}
	}
	return ""
}

// paths returns the groups that a sandbox will be in.
func (g cgroups) paths(id string, memory, cpu bool) []string {
	if g.unified != "" {
		return []string{filepath.Join(g.unified, "sandboxer", id)}
	}
	var paths []string
	if memory {
		paths = append(paths, filepath.Join(g.v1["memory"], "sandboxer", id))
	}
	if cpu {
		paths = append(paths, filepath.Join(g.v1["cpu"], "sandboxer", id))
	}
	return paths
}

// makeCgroups makes the groups of a sandbox and sets their limits.
func (p *plan) makeCgroups() error {
	const period = 100000
	quota := int64(math.Round(p.cpus * period))
	for _, dir := range p.cgroups {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if p.groups.unified != "" {
			for _, parent := range []string{p.groups.unified, filepath.Dir(dir)} {
				if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory +cpu"), 0); err != nil {
					return err
				}
			}
		}
		values := map[string]string{}
		switch {
		case p.groups.unified != "":
			if p.memory > 0 {
				values["memory.max"], values["memory.oom.group"] = strconv.FormatInt(p.memory, 10), "1"
				values["memory.swap.max"] = "0"
			}
			if p.cpus > 0 {
				values["cpu.max"] = fmt.Sprintf("%d %d", quota, period)
			}
		case strings.HasPrefix(dir, p.groups.v1["memory"]+"/") && p.memory > 0:
			values["memory.limit_in_bytes"] = strconv.FormatInt(p.memory, 10)
		default:
			values["cpu.cfs_period_us"], values["cpu.cfs_quota_us"] = strconv.Itoa(period), strconv.FormatInt(quota, 10)
		}
		for file, value := range values {
			err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
			if errors.Is(err, os.ErrNotExist) && file == "memory.swap.max" {
				continue // no swap accounting, so no swap to bound
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// joinCgroups puts a process into groups.
func joinCgroups(dirs []string) func(pid int) error {
	return func(pid int) error {
		for _, dir := range dirs {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
				return err
			}
		}
		return nil
	}
}

// of returns the groups that a sandbox may have, where they are there. They
// follow from its id: what its record says is not trusted. Only for a user
// who is not root, whose groups lie below wherever each was delegated, is a
// recorded one taken, and only a control group of this id.
func (g cgroups) of(id string, recorded []string) []string {
	candidates := g.paths(id, g.v1["memory"] != "", g.v1["cpu"] != "")
	if os.Geteuid() != 0 {
		candidates = append(candidates, recorded...)
	}
	var groups []string
	for _, dir := range candidates {
		if !slices.Contains(groups, dir) && isGroupOf(dir, id) {
			groups = append(groups, dir)
		}
	}
	return groups
}

// exhausted says that a sandbox ran into its memory limit, as long as its
// groups are there: the kernel counts the processes that it killed for it.
func exhausted(r record.Record) string {
	if r.Profile.Limits == nil || r.Profile.Limits.Memory == "" {
		return ""
	}
	for _, dir := range findCgroups().of(r.ID, r.Cgroups) {
		for _, file := range []string{"memory.events", "memory.oom_control"} { // v2, v1
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(data)) {
				if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" && f[1] != "0" {
					return "memory limit of " + clip(r.Profile.Limits.Memory) + " exceeded"
				}
			}
		}
	}
	return ""
}

// isGroupOf reports whether dir is a control group of ours that is there.
func isGroupOf(dir, id string) bool {
	if filepath.Clean(dir) != dir || !strings.HasPrefix(dir, cgroupRoot+"/") || !strings.HasSuffix(dir, "/sandboxer/"+id) {
		return false
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.CGROUP_SUPER_MAGIC || fs.Type == unix.CGROUP2_SUPER_MAGIC)
}

// removeCgroup removes a group. It is busy for a moment after its last
// process has gone. Nothing but a directory is ever removed.
func removeCgroup(ctx context.Context, dir string) error {
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}
