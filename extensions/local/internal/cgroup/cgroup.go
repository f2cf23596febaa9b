// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package cgroup makes the control groups that hold a sandbox's limits,
// version 1 and version 2. A group is made before the sandbox and held around
// its whole process tree, supervisor included.
//
//	version 1   <controller>/sandboxer/<id>, one for each controller in use
//	version 2   <base>/sandboxer/<id>; the base is the root, or for a user the
//	            nearest group above this process that was delegated to him
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The controllers.
const (
	Memory = "memory"
	CPU    = "cpu"
	Pids   = "pids"
)

// Limits are what a group holds. Zero is no limit.
type Limits struct {
	Memory int64 // bytes
	CPUs   float64
	Pids   int64 // tasks of the host, not processes of the sandbox
}

// controllers lists the ones that limits need.
func (l Limits) controllers() (need []string) {
	if l.Memory > 0 {
		need = append(need, Memory)
	}
	if l.CPUs > 0 {
		need = append(need, CPU)
	}
	if l.Pids > 0 {
		need = append(need, Pids)
	}
	return need
}

// period is the length of a scheduling period in microseconds.
const period = 100_000

// files returns the values of a controller's files by name.
func (l Limits) files(version int, controller string) map[string]string {
	memory, quota := strconv.FormatInt(l.Memory, 10), strconv.FormatInt(int64(math.Round(l.CPUs*period)), 10)
	switch {
	case controller == Pids:
		return map[string]string{"pids.max": strconv.FormatInt(l.Pids, 10)}
	case controller == Memory && version == 2:
		// One process that is killed is the end of all: half a sandbox helps
		// nobody.
		return map[string]string{"memory.max": memory, "memory.oom.group": "1", noSwap: "0"}
	case controller == Memory:
		return map[string]string{"memory.limit_in_bytes": memory}
	case version == 2:
		return map[string]string{"cpu.max": quota + " " + strconv.Itoa(period)}
	}
	return map[string]string{"cpu.cfs_period_us": strconv.Itoa(period), "cpu.cfs_quota_us": quota}
}

// noSwap is missing where swap is not accounted, and then there is none to
// bound.
const noSwap = "memory.swap.max"

// Groups is where groups can be made. At most one of unified and v1 is set.
type Groups struct {
	machine machine
	unified string            // directory to make groups in, version 2
	v1      map[string]string // the same by controller, version 1
	lacks   []string          // controllers that turned out not to work
}

// Version names the version in use, or says "none".
func (g Groups) Version() string {
	switch {
	case g.unified != "":
		return "v2"
	case len(g.v1) > 0:
		return "v1"
	}
	return "none"
}

// Can reports whether groups with a controller can be made.
func (g Groups) Can(controller string) bool {
	if slices.Contains(g.lacks, controller) {
		return false
	}
	if g.unified != "" {
		return has(filepath.Join(g.unified, "cgroup.controllers"), controller)
	}
	return g.v1[controller] != ""
}

// Proven makes a group with each controller and removes it, and returns where
// that worked. What a directory's mode promises is not always so: a group above
// may keep a controller to itself.
func (g Groups) Proven() Groups {
	id := "probe-" + strconv.FormatUint(rand.Uint64(), 36)
	for _, one := range []Limits{{Memory: 1 << 40}, {CPUs: 1}, {Pids: 1 << 20}} {
		controller := one.controllers()[0]
		if !g.Can(controller) {
			continue
		}
		err := g.Make(id, one)
		for _, dir := range g.Paths(id, one) {
			err = errors.Join(err, g.machine.remove(dir))
		}
		if err != nil {
			g.lacks = append(slices.Clone(g.lacks), controller)
		}
	}
	return g
}

const parentName = "sandboxer"

// Paths returns the groups that a sandbox with limits will be in.
func (g Groups) Paths(id string, l Limits) (paths []string) {
	need := l.controllers()
	if len(need) == 0 {
		return nil
	}
	if g.unified != "" {
		return []string{filepath.Join(g.unified, parentName, id)}
	}
	for _, controller := range need {
		paths = append(paths, filepath.Join(g.v1[controller], parentName, id))
	}
	return paths
}

// Make makes the groups of a sandbox and sets their limits.
func (g Groups) Make(id string, l Limits) error {
	for _, controller := range l.controllers() {
		if !g.Can(controller) {
			return fmt.Errorf("no group for %s can be made here", controller)
		}
		version, base := 1, g.v1[controller]
		if g.unified != "" {
			version, base = 2, g.unified
		}
		parent := filepath.Join(base, parentName)
		dir := filepath.Join(parent, id)
		if version == 2 {
			if err := os.MkdirAll(parent, 0o755); err != nil {
				return err
			}
			for _, above := range []string{base, parent} {
				if err := enable(above, controller); err != nil {
					return err
				}
			}
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for file, value := range l.files(version, controller) {
			err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
			if errors.Is(err, os.ErrNotExist) && file == noSwap {
				continue
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// enable hands a controller on to a group's children.
func enable(dir, controller string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	if has(file, controller) {
		return nil
	}
	return os.WriteFile(file, []byte("+"+controller), 0o644)
}

// Join returns what puts a process into groups.
func Join(dirs []string) func(pid int) error {
	return func(pid int) error {
		for _, dir := range dirs {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
}

// Of returns the groups of a sandbox that are there. They follow from its id:
// what its record says is not trusted. Only for a user who is not root, whose
// groups lie below wherever each was delegated, is a recorded one taken, and
// only a control group of this id.
func (g Groups) Of(id string, recorded []string) (groups []string) {
	all := Limits{Pids: 1}
	if g.unified == "" {
		all = Limits{}
		for controller := range g.v1 {
			switch controller {
			case Memory:
				all.Memory = 1
			case CPU:
				all.CPUs = 1
			case Pids:
				all.Pids = 1
			}
		}
	}
	candidates := g.Paths(id, all)
	if g.machine.uid != 0 {
		candidates = append(candidates, recorded...)
	}
	for _, dir := range candidates {
		if !slices.Contains(groups, dir) && g.machine.isGroupOf(dir, id) {
			groups = append(groups, dir)
		}
	}
	return groups
}

// RemoveStale removes groups of ours that hold no process and were made so
// long ago. The kernel refuses where there is a process.
func (g Groups) RemoveStale(age time.Duration) {
	bases := []string{g.unified}
	for _, base := range g.v1 {
		bases = append(bases, base)
	}
	for _, base := range bases {
		if base == "" {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(base, parentName))
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil && entry.IsDir() && time.Since(info.ModTime()) >= age {
				_ = unix.Rmdir(filepath.Join(base, parentName, entry.Name()))
			}
		}
	}
}

// Remove removes a group. It is busy for a moment after its last process has
// gone. Nothing but a directory is ever removed.
func Remove(ctx context.Context, dir string) error {
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

// Exceeded is a limit that the kernel ended processes for.
type Exceeded struct {
	Controller string
	Peak       int64 // the most that was measured; 0 where the kernel does not say
}

// OutOf says which limit of its groups a sandbox ran into.
func OutOf(dirs []string) (Exceeded, bool) {
	for _, dir := range dirs {
		for _, file := range []string{"memory.events", "memory.oom_control"} { // v2, v1
			if count(filepath.Join(dir, file), "oom_kill") > 0 {
				return Exceeded{Memory, max(number(filepath.Join(dir, "memory.peak")), number(filepath.Join(dir, "memory.max_usage_in_bytes")))}, true
			}
		}
		if count(filepath.Join(dir, "pids.events"), "max") > 0 {
			return Exceeded{Pids, max(number(filepath.Join(dir, "pids.peak")), number(filepath.Join(dir, "pids.max")))}, true
		}
	}
	return Exceeded{}, false
}

// count reads one counter of a file of names and values.
func count(path, name string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n
}

// has reports whether a file lists a controller.
func has(file, controller string) bool {
	data, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(data)), controller)
}
