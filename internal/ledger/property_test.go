// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Appenders that act on what they see, through ledgers of their own as
// processes would, are serialized: what one decided on is what it is appended
// to.
func TestADecisionHoldsUntilItIsWritten(t *testing.T) {
	dir := t.TempDir()
	fake := clock.NewFake(start)
	rapid.Check(t, func(rt *rapid.T) {
		id := sandbox.NewID(start)
		plans := rapid.SliceOfN(rapid.SliceOfN(rapid.Bool(), 1, 3), 2, 5).Draw(rt, "which attempts of each appender decline")
		var wg sync.WaitGroup
		for _, plan := range plans {
			wg.Add(1)
			go func() {
				defer wg.Done()
				l := New(dir, fake)
				for _, decline := range plan {
					_, _, err := l.Append(t.Context(), id, func(present Record) (Event, error) {
						runtime.Gosched()
						if decline {
							return Event{}, nil
						}
						seen := fmt.Sprintf(`{"seen":%d,"hash":%q}`, present.Sequence, present.Hash)
						return Event{Type: Extended, Data: json.RawMessage(seen), Lease: &sdk.Lease{Generation: present.Lease.Generation + 1}}, nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			}()
		}
		wg.Wait()
		want := int64(0)
		for _, plan := range plans {
			for _, decline := range plan {
				if !decline {
					want++
				}
			}
		}
		l := New(dir, fake)
		events, err := l.Events(t.Context(), id)
		if err != nil || int64(len(events)) != want {
			rt.Fatalf("%d events, %v; want %d", len(events), err, want)
		}
		for i, e := range events {
			if seen := fmt.Sprintf(`{"seen":%d,"hash":%q}`, i, e.PrevHash); string(e.Data) != seen {
				rt.Fatalf("event %d was decided on %s, not %s", e.Sequence, e.Data, seen)
			}
		}
		r, err := l.Get(t.Context(), id)
		if err != nil || r.Lease.Generation != want {
			rt.Fatalf("generation %d, %v; want %d", r.Lease.Generation, err, want)
		}
	})
}

// Whatever happens in whatever order: what Append returned, what Get reads
// and what Fold makes of Events agree; a closed log is reopened only by the
// sight of the thing; a lease's generation never falls.
func TestEveryViewOfALogAgrees(t *testing.T) {
	dir := t.TempDir()
	fake := clock.NewFake(start)
	l := New(dir, fake)
	rapid.Check(t, func(rt *rapid.T) {
		id := sandbox.NewID(start)
		var before Record
		for i, typ := range rapid.SliceOfN(rapid.SampledFrom(Types()), 1, 6).Draw(rt, "types") {
			if typ == Intended && i > 0 {
				continue
			}
			e := Event{Type: typ}
			if rapid.Bool().Draw(rt, "has a lease") {
				e.Lease = lease(rapid.Int64Range(0, 5).Draw(rt, "generation"), 5)
			}
			_, after, err := l.Append(t.Context(), id, always(e))
			if err != nil {
				rt.Fatal(err)
			}
			if before.Known() && !before.Open && after.Open && typ != OrphanDetected && typ != Adopted {
				rt.Fatalf("%s reopened the log", typ)
			}
			if after.Lease.Generation < before.Lease.Generation {
				rt.Fatalf("%s turned the lease back", typ)
			}
			before = after
			fake.Advance(time.Second)
		}
		events, err := l.Events(t.Context(), id)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := l.Get(t.Context(), id)
		if err != nil || !cmp.Equal(got, before) || !cmp.Equal(Fold(events), before) {
			rt.Fatalf("Append says %+v, Get %+v (%v), Fold %+v", before, got, err, Fold(events))
		}
	})
}

// Prune takes a log away while others append to it: every append is either
// in a log that was pruned when closed, or still there.
func TestPruneAndAppendDoNotLoseEachOther(t *testing.T) {
	l, fake := newLedger(t)
	id := sandbox.NewID(start)
	stop := make(chan struct{})
	pruned := make(chan int)
	go func() {
		total := 0
		for {
			n, err := New(l.Dir(), fake).Prune(t.Context(), -time.Hour)
			if err != nil {
				t.Error(err)
			}
			total += n
			select {
			case <-stop:
				pruned <- total
				return
			default:
			}
		}
	}()
	began := 0
	for range 60 {
		// An open log is never pruned: these three are always one log's.
		for i, typ := range []Type{Intended, Created, Destroyed} {
			e, _, err := l.Append(t.Context(), id, func(present Record) (Event, error) {
				if typ == Intended && present.Known() {
					return Event{Type: Adopted}, nil // not pruned yet
				}
				return Event{Type: typ}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == Intended {
				began++
			}
			if i > 0 && e.Sequence == 1 {
				t.Fatalf("%s begins a log: the open one was lost", typ)
			}
		}
	}
	close(stop)
	total := <-pruned
	r, err := l.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	if r.Known() {
		left = 1
	}
	if began != total+left || total == 0 {
		t.Errorf("%d logs were begun, %d pruned, %d left", began, total, left)
	}
}
