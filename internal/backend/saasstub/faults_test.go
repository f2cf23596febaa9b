// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Whatever the vendor does with a create: there is at most one box, and the
// answer is the truth or says that it is not known.
func TestCreateAgainstEachLie(t *testing.T) {
	for lie, want := range map[Lie]struct {
		err   error
		boxes int
	}{
		LoseRequest:  {sdk.ErrUnreachable, 0},
		LoseAnswer:   {sdk.ErrUnreachable, 1},
		Twice:        {nil, 1},
		InTransition: {nil, 1},
		RateLimited:  {nil, 1},
		Broken:       {sdk.ErrUnreachable, 0},
		Slow:         {nil, 1},
		Clamp:        {nil, 1},
		DieEarly:     {nil, 1},
	} {
		t.Run(string(lie), func(t *testing.T) {
			c := newCloud(t)
			fault := Fault{Call: CallCreateBox, Lie: lie, On: 1}
			if lie == Clamp {
				fault.For = time.Minute
			}
			c.Inject(fault)
			made, err := c.Create(t.Context(), creation(1))
			if !errors.Is(err, want.err) || len(c.Boxes()) != want.boxes {
				t.Fatalf("%v, %d boxes; want %v, %d", err, len(c.Boxes()), want.err, want.boxes)
			}
			if lie == Clamp && !made.Sandbox.Lease.ExpiresAt.Equal(start.Add(59*time.Minute)) {
				t.Errorf("the lease says %s", made.Sandbox.Lease.ExpiresAt)
			}
			if lie == DieEarly {
				if got := c.status(t, sdk.Target{ID: sandboxID(1), Fleet: "ci"}); got != sdk.StatusLost {
					t.Errorf("a dead box is %s", got)
				}
			}
		})
	}
}

// Destroy never says gone of a box that is there.
func TestDestroyAgainstEachLie(t *testing.T) {
	for _, call := range []Call{CallGetBox, CallListBoxes, CallDeleteBox} {
		for _, lie := range []Lie{LoseRequest, LoseAnswer, Twice, Pretend, NotFound, InTransition, RateLimited, Broken, StaleList, DropPage} {
			for _, on := range []int{0, 1, 2, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d", call, lie, on), func(t *testing.T) {
					c := newCloud(t)
					c.Inject(Fault{Call: call, Lie: lie, On: on}) // a stale list does not know the box
					target := c.mustCreate(t, 1)
					gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
					there := len(c.Boxes())
					if err == nil && there > 0 {
						// One lie alone may be believed only where the vendor
						// tells it in every way there is.
						t.Errorf("%+v, and the box is there", gone)
					}
					if err != nil && on != 0 && lie != StaleList {
						t.Errorf("one lie in passing: %v", err)
					}
				})
			}
		}
	}
}

func TestAListingLacksNothingAndRepeatsNothing(t *testing.T) {
	for _, lie := range []Lie{"", RepeatPage, DropPage, LoseAnswer, RateLimited, Broken} {
		for _, on := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s/%d", lie, on), func(t *testing.T) {
				c := newCloud(t)
				for n := range 250 {
					c.mustCreate(t, n)
				}
				c.Inject(Fault{Call: CallListBoxes, Lie: lie, On: on})
				list, err := c.List(t.Context(), sdk.ListOptions{Fleet: "ci"})
				if err != nil || list.Incomplete != "" || len(list.Sandboxes) != 250 {
					t.Fatalf("%d, %q, %v", len(list.Sandboxes), list.Incomplete, err)
				}
				seen := map[string]bool{}
				for _, s := range list.Sandboxes {
					if seen[s.ID] {
						t.Errorf("%s is there twice", s.ID)
					}
					seen[s.ID] = true
				}
			})
		}
	}
}

func TestAVendorThatNeverListsAllIsSaidToBeIncomplete(t *testing.T) {
	c := newCloud(t)
	for n := range 250 {
		c.mustCreate(t, n)
	}
	c.Inject(Fault{Call: CallListBoxes, Lie: DropPage})
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: "ci"})
	if err != nil || list.Incomplete == "" {
		t.Errorf("%d, %q, %v", len(list.Sandboxes), list.Incomplete, err)
	}
}

// At full size ten thousand live throughout or pass.
func TestListingWithChurnMissesNobodyWhoLivedThroughout(t *testing.T) {
	c := newCloud(t)
	lasting := size(10_000, 800) / 2
	var passing []sdk.Target
	for n := range 2 * lasting {
		target := c.mustCreate(t, n)
		if n%2 == 1 {
			passing = append(passing, target)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		api := honest{c.Server}
		for i, target := range passing {
			if err := api.DeleteBox(t.Context(), target.Ref); err != nil {
				t.Error(err)
			}
			c.mustCreate(t, 1_000_000+i)
		}
	}()
	for listing := true; listing; {
		select {
		case <-done:
			listing = false
		default:
		}
		list, err := c.List(t.Context(), sdk.ListOptions{Fleet: "ci"})
		if err != nil || list.Incomplete != "" {
			t.Fatalf("%q, %v", list.Incomplete, err)
		}
		count := 0
		seen := map[string]bool{}
		for _, s := range list.Sandboxes {
			if seen[s.ID] {
				t.Fatalf("%s is there twice", s.ID)
			}
			seen[s.ID] = true
		}
		for n := 0; n < 2*lasting; n += 2 {
			if seen[sandboxID(n)] {
				count++
			}
		}
		if count != lasting {
			t.Fatalf("%d of %d were listed", count, lasting)
		}
	}
}

func TestALostAnswerToAnExtendIsFoundOut(t *testing.T) {
	for _, lie := range []Lie{LoseRequest, LoseAnswer, Twice, InTransition, RateLimited, Broken} {
		t.Run(string(lie), func(t *testing.T) {
			c := newCloud(t)
			target := c.mustCreate(t, 1)
			c.Inject(Fault{Call: CallUpdateBox, Lie: lie, On: 1})
			ref := sdk.EventRef{LedgerID: "ldg-test", Sequence: 2}
			extended, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: start.Add(2 * time.Hour), Event: ref})
			if err != nil || extended.Lease.Generation != 2 || !extended.Lease.ExpiresAt.Equal(start.Add(2*time.Hour)) {
				t.Errorf("%+v, %v", extended, err)
			}
		})
	}
}

func TestAClampedExtendSaysWhatWasGranted(t *testing.T) {
	c := newCloud(t)
	target := c.mustCreate(t, 1)
	c.Inject(Fault{Call: CallUpdateBox, Lie: Clamp, On: 1, For: 10 * time.Minute})
	extended, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: start.Add(2 * time.Hour)})
	want := start.Add(110 * time.Minute)
	if err != nil || !extended.Lease.ExpiresAt.Equal(want) {
		t.Errorf("%+v, %v", extended, err)
	}
	if got, err := c.Get(t.Context(), sdk.GetOptions{Target: target}); err != nil || !got.Sandbox.Lease.ExpiresAt.Equal(want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Every call goes wrong now and then. Creates leave at most one box each,
// destroys that succeed leave none.
func TestASeededStormOfLies(t *testing.T) {
	c := newCloud(t)
	c.InjectRandom(7, 0.3, LoseRequest, LoseAnswer, Twice, Pretend, NotFound, InTransition, RateLimited, Broken)
	destroyed := 0
	for n := range 300 {
		_, _ = c.Create(t.Context(), creation(n)) // the truth is looked up below
	}
	boxes := map[string]int{}
	for _, b := range c.Boxes() {
		boxes[b.Name]++
	}
	for n := range 300 {
		id := sandboxID(n)
		if boxes[id] > 1 {
			t.Errorf("%d boxes of %s", boxes[id], id)
		}
		if _, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: id, Fleet: "ci"}}); err == nil {
			destroyed++
			for _, b := range c.Boxes() {
				if b.Name == id {
					t.Errorf("%s was said to be gone", id)
				}
			}
		}
	}
	if destroyed < 200 {
		t.Errorf("only %d of 300 could be destroyed", destroyed)
	}
}
