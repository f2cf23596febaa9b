// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const id = "sbx-00000000000000000000"

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func got(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

// unified is a machine with version 2 that is a directory of ours: it shows
// what is written where, and not what a kernel makes of it.
func unified(t *testing.T, uid int, own string) machine {
	t.Helper()
	m := machine{root: filepath.Join(t.TempDir(), "cgroup"), uid: uid, version: func(string) int { return 2 }, remove: os.RemoveAll}
	m.self = filepath.Join(t.TempDir(), "self")
	put(t, m.self, "0::"+own+"\n")
	put(t, filepath.Join(m.root, "cgroup.controllers"), "cpu memory pids\n")
	for _, name := range []string{"cgroup.procs", "cgroup.subtree_control"} {
		put(t, filepath.Join(m.root, name), "")
	}
	return m
}

// group makes a group of such a machine.
func group(t *testing.T, m machine, path, procs, controllers string) {
	t.Helper()
	for name, content := range map[string]string{"cgroup.type": "domain\n", "cgroup.procs": procs, "cgroup.controllers": controllers, "cgroup.subtree_control": ""} {
		put(t, filepath.Join(m.root, path, name), content)
	}
}

func TestLimitsOfVersion2(t *testing.T) {
	m := unified(t, 0, "/init.scope")
	g := m.find()
	limits := Limits{Memory: 256 << 20, CPUs: 1.5, Pids: 600}
	if err := g.Make(id, limits); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(m.root, "sandboxer", id)
	if paths := g.Paths(id, limits); len(paths) != 1 || paths[0] != dir {
		t.Errorf("paths %v, want %s", paths, dir)
	}
	for file, want := range map[string]string{
		"memory.max": "268435456", "memory.oom.group": "1", "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "600",
	} {
		if is := got(t, filepath.Join(dir, file)); is != want {
			t.Errorf("%s is %q, want %q", file, is, want)
		}
	}
	for _, above := range []string{m.root, filepath.Dir(dir)} {
		// A file keeps only what was written last; the kernel adds up.
		if is := got(t, filepath.Join(above, "cgroup.subtree_control")); is != "+pids" {
			t.Errorf("%s hands on %q", above, is)
		}
	}
	if err := Join(g.Paths(id, limits))(4711); err != nil || got(t, filepath.Join(dir, "cgroup.procs")) != "4711" {
		t.Errorf("join: %v, %q", err, got(t, filepath.Join(dir, "cgroup.procs")))
	}
	if found := g.Of(id, nil); len(found) != 1 || found[0] != dir {
		t.Errorf("found %v", found)
	}
}

func TestWhereGroupsOfVersion2AreMade(t *testing.T) {
	const (
		service = "/user.slice/user-1000.slice/user@1000.service"
		scope   = service + "/app.slice/term.scope"
	)
	tests := map[string]struct {
		uid    int
		own    string
		groups func(t *testing.T, m machine)
		want   string // below the root
		can    []string
	}{
		"the root as root": {uid: 0, own: "/system.slice/x.service", want: "/", can: []string{CPU, Memory, Pids}},
		"the nearest empty group as a user": {uid: 1000, own: scope, groups: func(t *testing.T, m machine) {
			group(t, m, service, "", "cpu memory pids")
			group(t, m, service+"/app.slice", "", "memory pids")
			group(t, m, scope, "1\n", "memory pids")
		}, want: service + "/app.slice", can: []string{Memory, Pids}},
		"one further up where processes are in the way": {uid: 1000, own: scope, groups: func(t *testing.T, m machine) {
			group(t, m, service, "", "cpu memory pids")
			group(t, m, service+"/app.slice", "12\n", "memory pids")
			group(t, m, scope, "1\n", "memory pids")
		}, want: service, can: []string{CPU, Memory, Pids}},
		"nowhere in a session that was not delegated": {uid: 1000, own: "/user.slice/user-1000.slice/session-2.scope", groups: func(t *testing.T, m machine) {
			// As it is for another user; access() can't be asked for one here.
			put(t, filepath.Join(m.root, "user.slice/user-1000.slice/session-2.scope/cgroup.procs"), "1\n")
			put(t, filepath.Join(m.root, "user.slice/user-1000.slice/cgroup.subtree_control"), "")
		}},
		"nowhere as root in a container, whose root group holds it": {uid: 0, own: "/", groups: func(t *testing.T, m machine) {
			put(t, filepath.Join(m.root, "cgroup.type"), "domain\n")
			put(t, filepath.Join(m.root, "cgroup.procs"), "1\n")
		}},
		"nowhere for one whose group is outside of the namespace": {uid: 1000, own: "/../x"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := unified(t, test.uid, test.own)
			if test.groups != nil {
				test.groups(t, m)
			}
			g := m.find()
			want := ""
			if test.want != "" {
				want = filepath.Join(m.root, test.want)
			}
			if g.unified != want {
				t.Errorf("groups are made in %q, want %q", g.unified, want)
			}
			can := ""
			for _, controller := range []string{CPU, Memory, Pids} {
				if g.Can(controller) {
					can += controller + " "
				}
			}
			if strings.TrimSpace(can) != strings.Join(test.can, " ") {
				t.Errorf("it can %q, want %v", can, test.can)
			}
		})
	}
}

func TestWhatCanNotBeMadeIsNotPromised(t *testing.T) {
	m := unified(t, 0, "/")
	if g := m.find().Proven(); !g.Can(CPU) || !g.Can(Memory) || !g.Can(Pids) {
		t.Errorf("not promised: %+v", g)
	}
	// A directory in the place of the file stands for a kernel that refuses.
	if err := os.Remove(filepath.Join(m.root, "cgroup.subtree_control")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(m.root, "cgroup.subtree_control"), 0o755); err != nil {
		t.Fatal(err)
	}
	if g := m.find().Proven(); g.Can(CPU) || g.Can(Memory) || g.Can(Pids) {
		t.Errorf("promised: %+v", g)
	}
}

func TestOutOf(t *testing.T) {
	dir := t.TempDir()
	if out, ok := OutOf([]string{dir}); ok {
		t.Errorf("nothing there: %+v", out)
	}
	put(t, filepath.Join(dir, "memory.events"), "low 0\noom 3\noom_kill 0\noom_group_kill 0\n")
	put(t, filepath.Join(dir, "pids.events"), "max 0\n")
	if out, ok := OutOf([]string{dir}); ok {
		t.Errorf("no kill: %+v", out)
	}
	put(t, filepath.Join(dir, "pids.events"), "max 7\n")
	put(t, filepath.Join(dir, "pids.peak"), "88\n")
	if out, ok := OutOf([]string{dir}); !ok || out != (Exceeded{Pids, 88}) {
		t.Errorf("%+v, %v", out, ok)
	}
	put(t, filepath.Join(dir, "memory.events"), "oom_kill 2\n")
	put(t, filepath.Join(dir, "memory.peak"), "1048576\n")
	if out, ok := OutOf([]string{dir}); !ok || out != (Exceeded{Memory, 1 << 20}) {
		t.Errorf("%+v, %v", out, ok)
	}
}

func there(path string) bool { _, err := os.Lstat(path); return err == nil }

// sleeper is a process that is ended with the test.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// A real mount of version 2. Where version 1 has the controllers it has none
// of ours, so this is about the groups themselves: making, joining, removing.
func TestGroupsOfAKernelWithVersion2(t *testing.T) {
	root := t.TempDir()
	err := unix.Mount("none", root, "cgroup2", 0, "")
	if os.Geteuid() != 0 {
		if err == nil {
			t.Error("a user mounted control groups")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	m := thisMachine()
	m.root = root
	if m.version(root) != 2 {
		t.Fatalf("version %d", m.version(root))
	}
	g := m.find().Proven()
	if g.unified != root || g.Version() != "v2" {
		t.Errorf("groups are made in %q (%s)", g.unified, g.Version())
	}
	for _, controller := range []string{CPU, Memory, Pids} {
		if listed := has(filepath.Join(root, "cgroup.controllers"), controller); g.Can(controller) != listed {
			t.Errorf("%s: listed %v, can %v", controller, listed, g.Can(controller))
		}
	}
	one := Limits{Pids: 1}
	dir := g.Paths(id, one)[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Rmdir(dir); _ = unix.Rmdir(filepath.Dir(dir)) })
	for name := range strings.FieldsSeq(got(t, filepath.Join(root, "cgroup.controllers"))) {
		if err := errors.Join(enable(root, name), enable(filepath.Dir(dir), name)); err != nil || !has(filepath.Join(dir, "cgroup.controllers"), name) {
			t.Errorf("hand on %s: %v; the group has %q", name, err, got(t, filepath.Join(dir, "cgroup.controllers")))
		}
	}
	process := sleeper(t)
	if err := Join([]string{dir})(process.Process.Pid); err != nil || strings.TrimSpace(got(t, filepath.Join(dir, "cgroup.procs"))) != strconv.Itoa(process.Process.Pid) {
		t.Errorf("join: %v, %q", err, got(t, filepath.Join(dir, "cgroup.procs")))
	}
	if found := g.Of(id, nil); len(found) != 1 || found[0] != dir {
		t.Errorf("found %v", found)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Remove(ctx, dir); !errors.Is(err, unix.EBUSY) {
		t.Errorf("remove one with a process: %v", err)
	}
	g.RemoveStale(0)
	if !there(dir) {
		t.Error("a group with a process was removed")
	}
	_ = process.Process.Kill()
	_ = process.Wait()
	if g.RemoveStale(time.Hour); !there(dir) {
		t.Error("a young group was removed")
	}
	if g.RemoveStale(0); there(dir) {
		t.Error("a stale group was not removed")
	}
	if err := Remove(t.Context(), dir); err != nil || len(g.Of(id, nil)) > 0 {
		t.Errorf("remove: %v, left %v", err, g.Of(id, nil))
	}
}

// The groups of this machine, whatever it has.
func TestGroupsOfThisMachine(t *testing.T) {
	g := Find().Proven()
	all := Limits{}
	if g.Can(Memory) {
		all.Memory = 128 << 20
	}
	if g.Can(CPU) {
		all.CPUs = 0.5
	}
	if g.Can(Pids) {
		all.Pids = 100
	}
	mine := "sbx-test-" + strconv.Itoa(os.Getpid())
	if err := g.Make(mine, all); err != nil {
		t.Fatal(err)
	}
	paths := g.Paths(mine, all)
	t.Cleanup(func() {
		for _, dir := range paths {
			if err := Remove(context.Background(), dir); err != nil {
				t.Error(err)
			}
		}
	})
	process := sleeper(t)
	if err := Join(paths)(process.Process.Pid); err != nil {
		t.Error(err)
	}
	groups := got(t, "/proc/"+strconv.Itoa(process.Process.Pid)+"/cgroup")
	if n := strings.Count(groups, "/sandboxer/"+mine); n != len(paths) {
		t.Errorf("it is in %d of %d groups:\n%s", n, len(paths), groups)
	}
	_ = process.Process.Kill()
	_ = process.Wait()
}
