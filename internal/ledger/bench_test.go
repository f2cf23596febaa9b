// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package ledger

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// BenchmarkList10000 lists 10,000 sandboxes, half of them open, with a
// profile of ordinary size and the events of an ordinary life.
func BenchmarkList10000(b *testing.B) {
	l, _ := newLedger(b)
	profile := sdk.Profile{
		Name: "e2e", Image: "registry.example/app@sha256:0123456789abcdef", Command: []string{"/app/serve", "--port", "8080"},
		Env:   map[string]string{"STAGE": "e2e", "DATABASE_URL": "postgres://localhost/app"},
		Setup: [][]string{{"/app/migrate"}, {"/app/seed"}}, Ports: map[string]int{"web": 8080},
		Limits: &sdk.Limits{CPUs: 1, Memory: "512MiB", Pids: 256}, Network: &sdk.Network{Egress: "deny", Allow: []string{"api.example:443"}},
	}
	for i := range 10_000 {
		id := sandbox.NewID(start)
		events := []Event{
			{Type: Intended, Intent: &Intent{Fleet: "ci", Profile: profile, Identity: sdk.Identity{ID: id, Fleet: "ci", Owner: "payments", Run: "https://ci.example/runs/1"}}, Lease: lease(0, 30)},
			{Type: Created, Ref: "c0ffee", Lease: lease(1, 30)},
			{Type: Ready},
			{Type: Extended, Lease: lease(2, 60)},
		}
		if i%2 == 0 {
			events = append(events, Event{Type: Claiming, Lease: lease(3, 60)}, Event{Type: Destroying}, Event{Type: Destroyed, Reason: "user"})
		}
		writeLog(b, l, id, events)
	}
	before := processorTime(b)
	for b.Loop() {
		records, unreadable, err := l.List(b.Context(), Filter{Open: true})
		if err != nil || len(records) != 5000 || len(unreadable) != 0 {
			b.Fatal(len(records), unreadable, err)
		}
	}
	b.ReportMetric((processorTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}

// processorTime is what this process has used, which a busy machine does not
// change as much as the time that passes.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkAppend appends one durable event.
func BenchmarkAppend(b *testing.B) {
	l, _ := newLedger(b)
	id := sandbox.NewID(start)
	for b.Loop() {
		if _, _, err := l.Append(b.Context(), id, always(Event{Type: Extended, Lease: lease(1, 1)})); err != nil {
			b.Fatal(err)
		}
	}
}
