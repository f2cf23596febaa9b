// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// size is how much of a test is run: all of it with SANDBOXER_TEST_FULL.
func size(full, ordinary int) int {
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		return full
	}
	return ordinary
}

// However many answers of a create are lost, and whatever the vendor says to
// whoever asks what became of it: there is at most one sandbox for an intent,
// and it is known. Those that the caller was not told of end at their deadline.
func TestLostAnswersOfCreates(t *testing.T) {
	h := newHouse(t)
	random := rand.New(rand.NewPCG(3, 0))
	after := [][]saasstub.Fault{
		nil,
		{{Call: saasstub.CallListBoxes, Lie: saasstub.Broken}, {Call: saasstub.CallGetBox, Lie: saasstub.Broken}},
		{{Call: saasstub.CallListBoxes, Lie: saasstub.StaleList}},
		{{Call: saasstub.CallListBoxes, Lie: saasstub.LoseAnswer, On: 1}},
		{{Call: saasstub.CallDeleteBox, Lie: saasstub.Pretend}},
	}
	intents, told := size(1000, 100), map[string]bool{}
	for range intents {
		h.server.Inject(saasstub.Fault{Call: saasstub.CallCreateBox, Lie: saasstub.LoseAnswer, On: 1})
		h.server.Inject(after[random.IntN(len(after))]...)
		made, err := h.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
		h.server.Heal()
		if (err == nil) != (made.ID != "") {
			t.Fatalf("told of %q, and %v", made.ID, err)
		}
		told[made.ID] = true
	}
	boxes, open := map[string]int{}, map[string]bool{}
	for _, r := range h.open(t) {
		open[r.ID] = true
	}
	for _, b := range h.server.Boxes() {
		if boxes[b.Name]++; boxes[b.Name] > 1 {
			t.Errorf("%d boxes of %s", boxes[b.Name], b.Name)
		}
		if !open[b.Name] {
			t.Errorf("%s is there, and no open log knows it", b.Name)
		}
	}
	if len(boxes) < intents/3 || len(boxes) > intents {
		t.Errorf("%d boxes of %d intents", len(boxes), intents)
	}
	for id := range told {
		if id != "" && boxes[id] == 0 {
			t.Errorf("%s was told of, and is not there", id)
		}
	}
}

// Destroy against each way of lying, of each call, once and for ever: it
// never says gone of what is there, and once the vendor is honest it ends it.
func TestDestroyAgainstEachLie(t *testing.T) {
	lies := []saasstub.Lie{
		saasstub.LoseRequest, saasstub.LoseAnswer, saasstub.Twice, saasstub.Pretend, saasstub.NotFound, saasstub.InTransition, saasstub.RateLimited,
		saasstub.Broken, saasstub.Clamp, saasstub.DieEarly, saasstub.RepeatPage, saasstub.DropPage, saasstub.StaleList,
	}
	calls := []saasstub.Call{saasstub.CallGetBox, saasstub.CallListBoxes, saasstub.CallUpdateBox, saasstub.CallDeleteBox}
	for _, call := range calls {
		for _, lie := range lies {
			for on := range size(4, 2) { // 0 is at every call
				for _, expired := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s/%d/expired=%v", call, lie, on, expired), func(t *testing.T) {
						h := newHouse(t)
						made := h.create(t, CreateOptions{TTL: time.Hour})
						if expired {
							h.clock.Advance(2 * time.Hour)
						}
						h.server.Inject(saasstub.Fault{Call: call, Lie: lie, On: on})
						result, err := h.Destroy(t.Context(), made.ID, DestroyOptions{})
						h.server.Heal()
						if err == nil && result.Unverifiable == "" && len(h.server.Boxes()) > 0 {
							t.Errorf("%+v, and the box is there", result)
						}
						if err != nil && len(h.open(t)) == 0 {
							t.Errorf("the log was closed over a failure: %v", err)
						}
						if _, err := h.Destroy(t.Context(), made.ID, DestroyOptions{}); err != nil || len(h.server.Boxes()) > 0 || len(h.open(t)) > 0 {
							t.Errorf("with an honest vendor: %v, %d boxes, %d open logs", err, len(h.server.Boxes()), len(h.open(t)))
						}
					})
				}
			}
		}
	}
}

// A listing while sandboxes come and go has each that lived throughout, and
// none twice.
func TestAListingWithChurnHasAllWhoLivedThroughout(t *testing.T) {
	c := clock.NewFake(start)
	c.Auto = true
	server := saasstub.NewServer(saasstub.ServerOptions{Clock: c})
	h := newHouseOn(t, c, server, "ci", saasstub.Options{})
	ext, err := h.backends.Open(t.Context(), "cloud")
	if err != nil {
		t.Fatal(err)
	}
	// Made by another machine: a ledger of ten thousand is another test's.
	create := func() string {
		id := sandbox.NewID(start)
		_, err := ext.Create(t.Context(), sdk.CreateOptions{
			ID: id, Identity: sdk.Identity{ID: id, Fleet: "ci", Incarnation: 1, CreatedAt: start}, Profile: profile(),
			ExpiresAt: start.Add(time.Hour), MaxExpiresAt: start.Add(time.Hour),
		})
		if err != nil {
			t.Error(err)
		}
		return id
	}
	var lasting, passing []string
	for range size(3000, 600) / 2 {
		lasting, passing = append(lasting, create()), append(passing, create())
	}
	slices.Sort(lasting)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, id := range passing {
			if _, err := ext.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: id, Fleet: "ci"}}); err != nil {
				t.Error(err)
			}
			create()
		}
	}()
	for listing := true; listing; {
		select {
		case <-done:
			listing = false
		default:
		}
		list, err := h.List(t.Context(), ListOptions{})
		if err != nil || len(list.Unreachable) > 0 {
			t.Fatalf("%v, %v", list.Unreachable, err)
		}
		// Listed in the order of their ids.
		at := 0
		for i, s := range list.Sandboxes {
			if i > 0 && list.Sandboxes[i-1].ID == s.ID {
				t.Fatalf("%s is there twice", s.ID)
			}
			if at < len(lasting) && lasting[at] == s.ID {
				at++
			}
		}
		if at < len(lasting) {
			t.Fatalf("%s lived throughout and was not listed", lasting[at])
		}
	}
}

// Extends within 5 ms of the deadline: what is accepted lives on, and what
// comes too late is refused and stays refused.
func TestAnExtendAtTheDeadlineIsNeverAcceptedAndDead(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 0))
	for range size(10_000, 150) {
		h := newHouse(t)
		h.clock.Auto = false
		made := h.create(t, CreateOptions{TTL: time.Hour})
		at := time.Duration(random.Int64N(int64(10*time.Millisecond))) - 5*time.Millisecond
		h.clock.Advance(made.ExpiresAt.Sub(h.clock.Now()) + at)
		extended, err := h.Extend(t.Context(), made.ID, ExtendOptions{TTL: time.Hour})
		h.clock.Advance(10 * time.Millisecond) // past the old deadline, whichever
		got, getErr := h.Get(t.Context(), made.ID, GetOptions{})
		switch {
		case getErr != nil:
			t.Fatal(getErr)
		case err == nil && (at >= 0 || !got.Alive() || !extended.ExpiresAt.After(made.ExpiresAt)):
			t.Fatalf("%s from the deadline: accepted until %s, and it is %s", at, extended.ExpiresAt, got.Status)
		case err != nil && (at < 0 || !errors.Is(err, sdk.ErrExpired) || got.Alive()):
			t.Fatalf("%s from the deadline: %v, and it is %s", at, err, got.Status)
		}
	}
}
