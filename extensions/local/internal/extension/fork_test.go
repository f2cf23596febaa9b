// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

// What two copies of one memory snapshot share, and what they must not.

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// drawer draws random values all the time, from the first instruction after a
// restore on, and notes with each the generation that it sees.
const drawer = `
import os, time, uuid
def first(path): return open(path).read().strip()
out = open("/srv/drawn", "a", buffering=1)
while True:
    out.write(" ".join([first("/run/sandboxer/generation"), first("/proc/sys/kernel/random/boot_id"), first("/proc/sys/kernel/random/uuid"),
        os.getrandom(16).hex(), os.urandom(16).hex(), open("/dev/random", "rb").read(16).hex(), uuid.uuid4().hex]) + "\n")
    time.sleep(0.001)
`

func TestForksShareNoRandomness(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "drawer", Command: []string{"python3", "-c", drawer}}))
	drawn := func(id string, atLeast int) [][]string {
		run(t, e, id, "sh", "-c", "until [ $(wc -l < /srv/drawn) -gt "+strconv.Itoa(atLeast)+" ]; do sleep 0.05; done")
		var lines [][]string
		for line := range strings.Lines(run(t, e, id, "cat", "/srv/drawn")) {
			if fields := strings.Fields(line); strings.HasSuffix(line, "\n") && len(fields) == 7 {
				lines = append(lines, fields)
			}
		}
		return lines
	}
	drawn(s.ID, 20)
	snapshot := snap(t, e, s.ID, sdk.SnapshotMemory)
	most := len(drawn(s.ID, 0)) // when the snapshot was taken, or more
	var forks [2][][]string
	var generations [2]string
	for i := range forks {
		fork := restore(t, e, snapshot.ID, options(sdk.Profile{Name: "drawer"}))
		forks[i] = drawn(fork.ID, most+1001)
		generations[i] = strings.TrimSpace(run(t, e, fork.ID, "cat", "/run/sandboxer/generation"))
	}
	common := 0
	for slices.Equal(forks[0][common], forks[1][common]) {
		common++
	}
	// The line in which they part was begun before the snapshot.
	seen := map[string]int{}
	for i, lines := range forks {
		after := lines[common+1:]
		if len(after) < 1000 {
			t.Fatalf("fork %d: %d lines after the restore", i, len(after))
		}
		for _, fields := range after {
			if fields[0] != generations[i] || fields[1] != generations[i] {
				t.Fatalf("fork %d saw generation %s and boot id %s, and has %s", i, fields[0], fields[1], generations[i])
			}
			for _, value := range fields[2:] {
				if who, known := seen[value]; known {
					t.Fatalf("fork %d drew %s, as fork %d did", i, value, who)
				}
				seen[value] = i
			}
		}
	}
	if source := strings.TrimSpace(run(t, e, s.ID, "cat", "/run/sandboxer/generation")); generations[0] == generations[1] || slices.Contains(generations[:], source) {
		t.Errorf("generations %v of the forks, %s of the source", generations, source)
	}
}

// clocks shows both clocks in nanoseconds, and what came of a sleep.
const clocks = `
import os, threading, time
def sleeper():
    time.sleep(3)
    open("/srv/slept", "w").write("%d %d" % (time.time_ns(), time.monotonic_ns()))
threading.Thread(target=sleeper).start()
while True:
    open("/srv/now.new", "w").write("%d %d" % (time.time_ns(), time.monotonic_ns()))
    os.rename("/srv/now.new", "/srv/now")
    time.sleep(0.01)
`

// A copy wakes up now, not when it was taken: both clocks have gone on by the
// time between, and what waited for a time in between is due.
func TestClocksAfterARestore(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "clocks", Command: []string{"python3", "-c", clocks}}))
	read := func(id, file string) (wall, steady time.Duration) {
		t.Helper()
		fields := strings.Fields(run(t, e, id, "sh", "-c", "until [ -s "+file+" ]; do sleep 0.02; done; cat "+file))
		for i, to := range []*time.Duration{&wall, &steady} {
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			*to = time.Duration(n)
		}
		return wall, steady
	}
	wall, steady := read(s.ID, "/srv/now")
	snapshot := snap(t, e, s.ID, sdk.SnapshotMemory)
	read(s.ID, "/srv/slept") // so at least three seconds pass
	begun := time.Now()
	fork := restore(t, e, snapshot.ID, options(sdk.Profile{Name: "clocks"}))
	slept, sleptSteady := read(fork.ID, "/srv/slept")
	if slept < time.Duration(begun.UnixNano()) || slept > time.Duration(time.Now().UnixNano()) {
		t.Errorf("the sleep ended at %d, not between the restore's beginning at %d and now", slept, begun.UnixNano())
	}
	// The steady clock went on by what the other did. They are not read in the
	// same instant, and are calibrated anew.
	if differ := (slept - wall) - (sleptSteady - steady); differ.Abs() > time.Second {
		t.Errorf("since the snapshot's source %v passed by one clock and %v by the other", slept-wall, sleptSteady-steady)
	}
}
