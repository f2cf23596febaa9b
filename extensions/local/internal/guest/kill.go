//go:build linux

package guest

// Ending a command means ending everything that it started.

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killTree kills a process and all its descendants, and those that were
// given to init but still are in its session. Everything is stopped before
// anything is killed, so that nothing new appears meanwhile.
func killTree(arg string) error {
	root, err := strconv.Atoi(arg)
	if err != nil || root <= 1 {
		return fmt.Errorf("%q is not a process", arg)
	}
	stopped := map[int]bool{}
	// Each round stops what the last one made; a stopped process makes
	// nothing, so the number of rounds is small. The bound is a failsafe.
	for range 100 {
		found := false
		for pid := range treeOf(root, stopped) {
			if !stopped[pid] {
				stopped[pid], found = true, true
				_ = unix.Kill(pid, unix.SIGSTOP)
			}
		}
		if !found {
			break
		}
	}
	for pid := range stopped {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return nil
}

// treeOf returns the processes that belong to root or to one already known.
func treeOf(root int, known map[int]bool) map[int]bool {
	self := os.Getpid()
	entries, _ := os.ReadDir("/proc")
	parents, sessions := map[int]int{}, map[int]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == 1 || pid == self {
			continue
		}
		data, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		i := strings.LastIndex(string(data), ")")
		fields := strings.Fields(string(data)[i+1:])
		if len(fields) < 4 {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		sessions[pid], _ = strconv.Atoi(fields[3])
	}
	tree := map[int]bool{root: true}
	for pid := range known {
		tree[pid] = true
	}
	for grown := true; grown; {
		grown = false
		for pid, parent := range parents {
			if !tree[pid] && (tree[parent] || sessions[pid] == root) {
				tree[pid], grown = true, true
			}
		}
	}
	return tree
}
