// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// Who has the ledger to itself may wait for any log of it: none of their
// places in the gate is taken by itself.
func TestExclusiveHoldsNoPlaceOfALog(t *testing.T) {
	l, _ := newLedger(t)
	mustAppend(t, l, sandbox.NewID(start), Intended) // places are made with the first use
	err := l.Exclusive(t.Context(), func() error {
		for i, slot := range l.gate.slots {
			if len(slot) != 0 {
				t.Errorf("place %d is taken", i)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// One runs at a time, in a process and in several.
func TestExclusiveRunsOneAtATime(t *testing.T) {
	l, c := newLedger(t)
	other := New(l.Dir(), c)
	var inside, ran atomic.Int32
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			err := []*Ledger{l, other}[i%2].Exclusive(t.Context(), func() error {
				if inside.Add(1) != 1 {
					t.Error("two at once")
				}
				runtime.Gosched()
				inside.Add(-1)
				ran.Add(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ran.Load() != 20 {
		t.Errorf("%d of 20 ran", ran.Load())
	}
}
