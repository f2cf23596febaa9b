// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Whatever becomes of the answer to a create: there is at most one sandbox for
// it, the answer is the truth, and the request is made once, unless it was
// refused by a rate limit.
func TestCreateAgainstEachLie(t *testing.T) {
	refuse := func(status int, code string) e2btest.Fault {
		return e2btest.Fault{Lie: e2btest.Refuse, Status: status, Code: code}
	}
	for name, row := range map[string]struct {
		fault     e2btest.Fault
		err       error
		sandboxes int
		asked     int
	}{
		"lost request":      {e2btest.Fault{Lie: e2btest.LoseRequest}, sdk.ErrUnreachable, 0, 1},
		"lost answer":       {e2btest.Fault{Lie: e2btest.LoseAnswer}, nil, 1, 1},
		"half an answer":    {e2btest.Fault{Lie: e2btest.Truncate}, nil, 1, 1},
		"a field missing":   {e2btest.Fault{Lie: e2btest.NoEnvdVersion}, nil, 1, 1},
		"a slow answer":     {e2btest.Fault{Lie: e2btest.Slow, For: 300 * time.Millisecond}, nil, 1, 1},
		"rate limit":        {e2btest.Fault{Lie: e2btest.RateLimited}, nil, 1, 2},
		"quota":             {e2btest.Fault{Lie: e2btest.Quota}, sdk.ErrQuota, 0, 1},
		"an empty 404":      {e2btest.Fault{Lie: e2btest.EmptyNotFound}, sdk.ErrUnreachable, 0, 1},
		"a proxy's page":    {e2btest.Fault{Lie: e2btest.ProxyPage}, sdk.ErrUnreachable, 0, 1},
		"clamped":           {e2btest.Fault{Lie: e2btest.Clamp, For: 10 * time.Minute}, nil, 1, 1},
		"dead right after":  {e2btest.Fault{Lie: e2btest.DieEarly}, sdk.ErrUnreachable, 0, 1},
		"400":               {refuse(400, ""), sdk.ErrInvalid, 0, 1},
		"401":               {refuse(401, ""), sdk.ErrUnauthenticated, 0, 1},
		"403":               {refuse(403, ""), sdk.ErrUnauthenticated, 0, 1},
		"500":               {refuse(500, "internal_server_error"), sdk.ErrUnreachable, 0, 1},
		"no capacity":       {refuse(503, "sandbox_capacity_unavailable"), sdk.ErrUnreachable, 0, 1},
		"no node":           {refuse(503, "sandbox_no_compatible_node"), sdk.ErrUnreachable, 0, 1},
		"placement timeout": {refuse(504, "sandbox_placement_timeout"), sdk.ErrUnreachable, 0, 1},
		"in progress":       {refuse(409, "idempotency_in_progress"), sdk.ErrUnreachable, 0, 1},
		"another request":   {refuse(409, "idempotency_request_mismatch"), sdk.ErrUnreachable, 0, 1},
		"outcome unknown":   {refuse(422, "idempotency_outcome_unknown"), sdk.ErrUnreachable, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, e2btest.Options{})
			row.fault.Call, row.fault.On = e2btest.CallCreate, 1
			c.Inject(row.fault)
			opts := c.creation(1)
			made, err := c.Create(t.Context(), opts)
			if !is(err, row.err) || len(c.Sandboxes()) != row.sandboxes {
				t.Fatalf("%v and %d sandboxes, want %v and %d", err, len(c.Sandboxes()), row.err, row.sandboxes)
			}
			if asked := c.calls("POST", "/v2/sandboxes"); asked != row.asked {
				t.Errorf("%d requests to create", asked)
			}
			if err != nil {
				// A new attempt is possible, and finds nothing in its way.
				if _, err := c.Create(t.Context(), opts); err != nil {
					t.Errorf("a new attempt: %v", err)
				}
				return
			}
			if row.fault.Lie == e2btest.Clamp && opts.ExpiresAt.Sub(made.Sandbox.Lease.ExpiresAt) < 9*time.Minute {
				t.Errorf("the lease says %s, and %s was asked for", made.Sandbox.Lease.ExpiresAt, opts.ExpiresAt)
			}
			if row.fault.Lie != e2btest.Clamp && !made.Sandbox.Lease.ExpiresAt.Equal(opts.ExpiresAt) {
				t.Errorf("the lease says %s, and %s was asked for", made.Sandbox.Lease.ExpiresAt, opts.ExpiresAt)
			}
		})
	}
}

// At full size a thousand.
func TestLostCreateAnswersLeaveOneSandboxEach(t *testing.T) {
	n := size(1000, 60)
	c := newCloud(t, e2btest.Options{Concurrent: n})
	c.Inject(e2btest.Fault{Call: e2btest.CallCreate, Lie: e2btest.LoseAnswer})
	unknown := 0
	var mu sync.Mutex
	next := make(chan int)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range next {
				if _, err := c.Create(t.Context(), c.creation(i)); err != nil {
					t.Errorf("%s: %v", sandboxID(i), err)
					mu.Lock()
					unknown++
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	c.Heal()
	made := map[string]int{}
	for _, truth := range c.Sandboxes() {
		made[truth.Metadata["dev.sandboxer.id"]]++
	}
	for i := range n {
		if made[sandboxID(i)] != 1 {
			t.Errorf("%d sandboxes of %s", made[sandboxID(i)], sandboxID(i))
		}
	}
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || list.Incomplete != "" || len(list.Sandboxes) != n || len(made) != n {
		t.Errorf("%d listed of %d made for %d intents, %q, %v", len(list.Sandboxes), len(made), n, list.Incomplete, err)
	}
	t.Logf("counted: %d lost answers: %d sandboxes, %d unknown", n, len(made), unknown)
}

// Destroy never says gone of a sandbox that is there, whatever is told, how
// often, and by which call.
func TestDestroyAgainstEachLie(t *testing.T) {
	for _, call := range []e2btest.Call{e2btest.CallGet, e2btest.CallList, e2btest.CallDelete} {
		for _, lie := range []e2btest.Lie{
			e2btest.LoseRequest, e2btest.LoseAnswer, e2btest.Pretend, e2btest.NotFound, e2btest.EmptyNotFound, e2btest.ProxyPage,
			e2btest.RateLimited, e2btest.Quota, e2btest.Refuse, e2btest.Truncate, e2btest.StaleList, e2btest.DropPage, e2btest.RepeatPage, e2btest.EndlessPages,
		} {
			for _, on := range []int{0, 1, 2} {
				t.Run(fmt.Sprintf("%s/%s/%d", call, lie, on), func(t *testing.T) {
					t.Parallel()
					c := newCloud(t, e2btest.Options{})
					_, target := c.mustCreate(t, 1)
					c.Inject(e2btest.Fault{Call: call, Lie: lie, On: on, Status: 409})
					gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
					if there := len(c.Sandboxes()); err == nil && there > 0 {
						t.Errorf("%+v, and the sandbox is there", gone)
					}
					passing := on != 0 && lie != e2btest.Quota && (lie != e2btest.Refuse || call == e2btest.CallDelete)
					if err != nil && passing {
						t.Errorf("one lie in passing: %v", err)
					}
				})
			}
		}
	}
}

// Get never says gone of a sandbox that is there.
func TestGoneIsSaidOnlyOfWhatIsGone(t *testing.T) {
	for _, lie := range []e2btest.Lie{
		e2btest.LoseRequest, e2btest.LoseAnswer, e2btest.NotFound, e2btest.EmptyNotFound, e2btest.ProxyPage, e2btest.RateLimited, e2btest.Quota, e2btest.Truncate, e2btest.StaleList, e2btest.DropPage,
	} {
		for _, call := range []e2btest.Call{e2btest.CallGet, e2btest.CallList} {
			t.Run(fmt.Sprintf("%s/%s", call, lie), func(t *testing.T) {
				t.Parallel()
				c := newCloud(t, e2btest.Options{})
				_, target := c.mustCreate(t, 1)
				c.Inject(e2btest.Fault{Call: call, Lie: lie})
				for _, look := range []sdk.Target{target, {ID: target.ID, Fleet: fleet}} {
					if _, err := c.Get(t.Context(), sdk.GetOptions{Target: look}); errors.Is(err, sdk.ErrNotFound) {
						t.Errorf("it is said to be gone: %v", err)
					}
				}
			})
		}
	}
}

// A listing that lacks something says so, repeats nothing, and ends. Seen from
// a machine that knows none of the sandboxes, so that nothing but the listing
// tells.
func TestAListingLacksNothingInSilence(t *testing.T) {
	const n = 230
	c := newCloud(t, e2btest.Options{Concurrent: n})
	for i := range n {
		c.mustCreate(t, i)
	}
	elsewhere := c.machine(t, t.TempDir(), e2b.Options{})
	for _, lie := range []e2btest.Lie{
		"", e2btest.RepeatPage, e2btest.DropPage, e2btest.EndlessPages, e2btest.LoseAnswer, e2btest.LoseRequest, e2btest.RateLimited, e2btest.Refuse, e2btest.Truncate, e2btest.ProxyPage,
	} {
		for _, on := range []int{0, 1, 2} {
			t.Run(fmt.Sprintf("%s/%d", lie, on), func(t *testing.T) {
				c.Forget()
				c.Inject(e2btest.Fault{Call: e2btest.CallList, Lie: lie, On: on, Status: 503})
				defer c.Heal()
				list, err := elsewhere.List(t.Context(), sdk.ListOptions{Fleet: fleet})
				if err == nil && list.Incomplete == "" && len(list.Sandboxes) != n {
					t.Errorf("%d of %d, and nothing is said", len(list.Sandboxes), n)
				}
				seen := map[string]bool{}
				for _, s := range list.Sandboxes {
					if seen[s.ID] {
						t.Errorf("%s is there twice", s.ID)
					}
					seen[s.ID] = true
				}
				if asked := c.calls("GET", "/v2/sandboxes"); asked > 20 {
					t.Errorf("%d requests", asked)
				}
			})
		}
	}
}

// An extend whose answer goes wrong is found out by a look: never shorter,
// never twice, and what is said is what is there.
func TestExtendAgainstEachLie(t *testing.T) {
	for _, fault := range []e2btest.Fault{
		{Lie: e2btest.LoseRequest}, {Lie: e2btest.LoseAnswer}, {Lie: e2btest.RateLimited}, {Lie: e2btest.ProxyPage}, {Lie: e2btest.EmptyNotFound},
		{Lie: e2btest.NotFound}, {Lie: e2btest.Refuse, Status: 409}, {Lie: e2btest.Refuse, Status: 500}, {Lie: e2btest.Quota}, {Lie: e2btest.Refuse, Status: 400},
	} {
		t.Run(fmt.Sprintf("%s/%d", fault.Lie, fault.Status), func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, e2btest.Options{})
			s, target := c.mustCreate(t, 1)
			fault.Call, fault.On = e2btest.CallTimeout, 1
			c.Inject(fault)
			until := s.Lease.ExpiresAt.Add(time.Hour)
			got, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until, Event: sdk.EventRef{LedgerID: "l", Sequence: 9}})
			c.Heal()
			seen := mustGet(t, c, target).Lease
			switch {
			case fault.Lie == e2btest.Quota || fault.Status == 400:
				if err == nil || seen != s.Lease {
					t.Errorf("%v, and the lease went from %+v to %+v", err, s.Lease, seen)
				}
			case err != nil || got.Lease != seen || !seen.ExpiresAt.Equal(until) || seen.Generation != 2:
				t.Errorf("%v: %+v was answered, %+v is there", err, got.Lease, seen)
			}
		})
	}
}

func TestASnapshotThatFailsSaysWhatBecameOfItsSource(t *testing.T) {
	for _, row := range []struct {
		fault     e2btest.Fault
		err       error
		snapshots int
	}{
		{e2btest.Fault{Lie: e2btest.LoseAnswer}, nil, 1},
		{e2btest.Fault{Lie: e2btest.Truncate}, nil, 1},
		{e2btest.Fault{Lie: e2btest.LoseRequest}, sdk.ErrUnreachable, 0},
		{e2btest.Fault{Lie: e2btest.KillSource}, sdk.ErrNotFound, 0},
		{e2btest.Fault{Lie: e2btest.Refuse, Status: 503}, sdk.ErrUnreachable, 0},
		{e2btest.Fault{Lie: e2btest.Refuse, Status: 409}, sdk.ErrUnreachable, 0},
		{e2btest.Fault{Lie: e2btest.Quota}, sdk.ErrQuota, 0},
	} {
		t.Run(fmt.Sprintf("%s/%d", row.fault.Lie, row.fault.Status), func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, e2btest.Options{})
			_, target := c.mustCreate(t, 1)
			row.fault.Call, row.fault.On = e2btest.CallSnapshot, 1
			c.Inject(row.fault)
			made, err := c.Snapshot(t.Context(), c.snapshotOptions(target, 1))
			// What was made in spite of a lost answer counts once.
			if !is(err, row.err) || len(c.Snapshots()) < row.snapshots || (err == nil && len(c.Snapshots()) != 1) {
				t.Errorf("%v, %q", err, c.Snapshots())
			}
			if err == nil && made.Snapshot.Ref != c.Snapshots()[0] {
				t.Errorf("%q is not %q", made.Snapshot.Ref, c.Snapshots()[0])
			}
		})
	}
}

func (c *cloud) snapshotOptions(target sdk.Target, n int) sdk.SnapshotOptions {
	now := c.clock.Now().UTC()
	return sdk.SnapshotOptions{
		Target: target, SnapshotID: snapshotID(n), Kind: sdk.SnapshotFilesystem, ExpiresAt: now.Add(time.Hour),
		Identity: sdk.Identity{ID: snapshotID(n), Fleet: fleet, Incarnation: 1, CreatedAt: now},
	}
}

// A command whose stream goes wrong is an error and never a success, and leaves
// nothing running.
func TestACommandThatIsCutIsNoSuccess(t *testing.T) {
	c := newCloud(t, e2btest.Options{})
	_, target := c.mustCreate(t, 1)
	for _, lie := range []e2btest.Lie{e2btest.CutStream, e2btest.NoEndFrame, e2btest.ErrorFrame, e2btest.LoseRequest, e2btest.ProxyPage, e2btest.RateLimited} {
		t.Run(string(lie), func(t *testing.T) {
			c.Inject(e2btest.Fault{Call: e2btest.CallStart, Lie: lie, On: 1})
			got, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"true"}})
			c.Heal()
			if err == nil {
				t.Errorf("%+v", got)
			}
			if errors.Is(err, sdk.ErrNotFound) || errors.Is(err, sdk.ErrExpired) {
				t.Errorf("the sandbox is said to be gone: %v", err)
			}
		})
	}
}
