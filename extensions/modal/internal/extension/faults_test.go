// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// running counts the sandboxes that truly run, by id.
func (c *cloud) running() map[string]int {
	n := map[string]int{}
	for _, truth := range c.Running() {
		n[truth.Tags["sandboxer-id"]]++
	}
	return n
}

// Every answer to a create is lost: there is one sandbox for each intent, which
// its create has adopted, and no create was made twice. Whether the service
// knows a request again does not matter.
func TestLostCreateAnswers(t *testing.T) {
	n := 60
	if full() {
		n = 1000
	}
	for _, noDedup := range []bool{false, true} {
		t.Run(fmt.Sprintf("no deduplication %v", noDedup), func(t *testing.T) {
			c := newCloud(t, modaltest.Options{NoDedup: noDedup, Concurrent: 2 * n})
			c.mustCreate(t, 0) // makes the app
			c.Forget()
			c.Inject(modaltest.Fault{Call: modaltest.CallCreate, Lie: modaltest.LoseAnswer})
			errs := make([]error, n+1)
			var creates sync.WaitGroup
			slots := make(chan struct{}, 8)
			for i := 1; i <= n; i++ {
				creates.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					made, err := c.Create(t.Context(), c.creation(i))
					if err == nil && (made.Sandbox.ID != sandboxID(i) || made.Sandbox.Ref == "") {
						err = fmt.Errorf("it was adopted as %q", made.Sandbox.ID)
					}
					errs[i] = err
				})
			}
			creates.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			there := c.running()
			for i := range n + 1 {
				if there[sandboxID(i)] != 1 {
					t.Errorf("of %s there are %d", sandboxID(i), there[sandboxID(i)])
				}
			}
			if len(there) != n+1 || len(c.Running()) != n+1 {
				t.Errorf("%d sandboxes run of %d ids, and there are %d intents", len(c.Running()), len(there), n+1)
			}
			if calls := c.Calls()[modaltest.CallCreate]; calls != n {
				t.Errorf("%d creates were sent for %d intents", calls, n)
			}
		})
	}
}

// The caller gives up while a create is under way: what came of it is ended.
func TestInterruptedCreate(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	c.mustCreate(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	c.Inject(modaltest.Fault{Call: modaltest.CallCreate, Lie: modaltest.Slow, For: time.Hour, On: 1})
	done := make(chan error, 1)
	go func() {
		_, err := c.Create(ctx, c.creation(1))
		done <- err
	}()
	for c.running()[sandboxID(1)] == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the create: %v", err)
	}
	if n := c.running()[sandboxID(1)]; n != 0 {
		t.Errorf("%d are left", n)
	}
}

// lies are the ways in which one call can fail.
func lies() map[string]modaltest.Fault {
	all := map[string]modaltest.Fault{
		"lost request":         {Lie: modaltest.LoseRequest},
		"lost answer":          {Lie: modaltest.LoseAnswer},
		"false not found":      {Lie: modaltest.NotFound},
		"throttled":            {Lie: modaltest.Throttle},
		"throttled for a time": {Lie: modaltest.Throttle, For: 50 * time.Millisecond, On: 1},
		"echoes the token":     {Lie: modaltest.Echo},
	}
	for _, code := range []codes.Code{
		codes.Unavailable, codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.FailedPrecondition, codes.InvalidArgument,
		codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted, codes.Unimplemented, codes.AlreadyExists,
	} {
		all[code.String()] = modaltest.Fault{Lie: modaltest.Refuse, Code: code}
	}
	return all
}

// Each call goes wrong in each way, once and always, under each verb: what is
// there is never said to be gone, what is said to be done is done, and what
// fails can be done again when the service is well.
func TestFaults(t *testing.T) {
	calls := []string{
		modaltest.CallCreate, modaltest.CallWait, modaltest.CallTerminate, modaltest.CallList, modaltest.CallListV1, modaltest.CallTagsGet,
		modaltest.CallTagsSet, modaltest.CallFromName, modaltest.CallApp, modaltest.CallImage,
	}
	var under sync.WaitGroup
	var tried atomic.Int64
	slots := make(chan struct{}, 16) // most of the time is the client's pauses
	n := 0
	for _, what := range slices.Sorted(maps.Keys(lies())) {
		for _, call := range calls {
			for _, on := range []int{0, 1} {
				fault := lies()[what]
				n++
				if fault.On == 1 && on == 0 || !full() && n%7 != 0 {
					continue
				}
				fault.Call, fault.On = call, on
				under.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					t.Run(fmt.Sprintf("%s/%s/%d", call, what, on), func(t *testing.T) { tried.Add(underFault(t, fault)) })
				})
			}
		}
	}
	under.Wait()
	t.Logf("%d verbs under faults", tried.Load())
}

// underFault tries every verb while one call goes wrong, and returns how many
// that were.
func underFault(t *testing.T, fault modaltest.Fault) int64 {
	c := &cloud{state: t.TempDir()}
	c.Server = serve(t, modaltest.Options{})
	c.Extension = c.machine(t, c.state, extension.Options{})
	made, err := c.Create(t.Context(), creationAt(time.Now(), 1))
	if err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: sandboxID(1), Ref: made.Sandbox.Ref, Fleet: fleet}
	until := made.Sandbox.Lease.ExpiresAt.Add(time.Hour)
	event := sdk.EventRef{LedgerID: "x", Sequence: 9}
	verbs := map[string]func() error{
		"get": func() error {
			_, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
			return err
		},
		"get by id": func() error {
			_, err := c.Get(t.Context(), sdk.GetOptions{Target: sdk.Target{ID: target.ID, Fleet: fleet}})
			return err
		},
		"list": func() error {
			list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
			there := slices.ContainsFunc(list.Sandboxes, func(s sdk.Sandbox) bool { return s.ID == target.ID })
			if err == nil && list.Incomplete == "" && len(list.Unreadable) == 0 && !there {
				t.Error("a complete listing lacks it")
			}
			return err
		},
		"extend": func() error {
			granted, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: until, Event: event})
			if err == nil && !granted.Lease.ExpiresAt.Equal(until) {
				t.Errorf("%s was granted", granted.Lease.ExpiresAt)
			}
			return err
		},
		"claim of a live one": func() error {
			_, err := c.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 1, Holder: "reaper", OnlyExpired: true})
			if err == nil {
				t.Error("it was claimed")
			}
			return err
		},
	}
	for verb, act := range verbs {
		c.Inject(fault)
		err := act()
		c.Heal()
		if errors.Is(err, sdk.ErrNotFound) {
			t.Errorf("%s of what is there is not found: %v", verb, err)
		}
		if err != nil && strings.Contains(err.Error(), testTokenSecret) {
			t.Errorf("%s tells the token: %v", verb, err)
		}
	}
	got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	if got.Sandbox.Lease.Generation > 2 {
		t.Errorf("one extend made generation %d", got.Sandbox.Lease.Generation)
	}
	c.Inject(fault)
	second, createErr := c.Create(t.Context(), creationAt(time.Now(), 2))
	_, destroyErr := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
	c.Heal()
	there := c.running()
	if createErr == nil && (there[sandboxID(2)] != 1 || second.Sandbox.Ref == "") || there[sandboxID(2)] > 1 {
		t.Errorf("of what a create made there are %d (%v)", there[sandboxID(2)], createErr)
	}
	if destroyErr == nil && there[target.ID] != 0 {
		t.Error("a destroy succeeded, and it runs")
	}
	for _, i := range []int{1, 2} {
		if _, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: sandboxID(i), Fleet: fleet}}); err != nil {
			t.Errorf("destroy when all is well: %v", err)
		}
	}
	if left := len(c.Running()); left != 0 {
		t.Errorf("%d are left", left)
	}
	return int64(len(verbs)) + 2
}

// Whatever a listing does, it names nothing twice, ends, and says so when it may
// lack something.
func TestListings(t *testing.T) {
	for _, page := range []int{1, 2, 3, 100} {
		for _, n := range []int{0, 1, 2, 3, 7} {
			c := newCloud(t, modaltest.Options{Page: page})
			for i := range n {
				c.mustCreate(t, i)
			}
			list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
			if err != nil || list.Incomplete != "" || len(list.Sandboxes) != n {
				t.Errorf("pages of %d: %d of %d listed, incomplete: %q, %v", page, len(list.Sandboxes), n, list.Incomplete, err)
			}
			for _, lie := range []modaltest.Lie{modaltest.RepeatPage, modaltest.DropPage, modaltest.SkipPage, modaltest.NoTags, modaltest.TooLong} {
				c.Inject(modaltest.Fault{Call: modaltest.CallList, Lie: lie})
				list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
				c.Heal()
				seen := map[string]bool{}
				for _, s := range list.Sandboxes {
					if seen[s.ID] {
						t.Errorf("pages of %d, %d sandboxes, %s: %s is listed twice", page, n, lie, s.ID)
					}
					seen[s.ID] = true
				}
				if err == nil && list.Incomplete == "" && len(seen) != n {
					t.Errorf("pages of %d, %d sandboxes, %s: a complete listing has %d", page, n, lie, len(seen))
				}
				if lie == modaltest.NoTags && len(seen) != n {
					t.Errorf("pages of %d, %d sandboxes, without tags %d are seen", page, n, len(seen))
				}
			}
		}
	}
}

// Many sandboxes have one time of creation: none is lost without a word.
func TestTiedTimes(t *testing.T) {
	c := newCloud(t, modaltest.Options{Page: 3})
	c.mustCreate(t, 0)
	c.Inject(modaltest.Fault{Call: modaltest.CallCreate, Lie: modaltest.TieTimes})
	for i := 1; i < 9; i++ {
		c.mustCreate(t, i)
	}
	c.Heal()
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || (list.Incomplete == "" && len(list.Sandboxes) != 9) {
		t.Errorf("%d of 9 listed, incomplete: %q, %v", len(list.Sandboxes), list.Incomplete, err)
	}
}

// A listing lags behind a create: the sandbox is found all the same, by its ref
// and by its name, and a destroy by id ends it.
func TestStaleListing(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	c.mustCreate(t, 0)
	c.Inject(modaltest.Fault{Call: modaltest.CallList, Lie: modaltest.StaleList})
	_, target := c.mustCreate(t, 1)
	byID := sdk.Target{ID: target.ID, Fleet: fleet}
	for _, look := range []sdk.Target{target, byID} {
		if _, err := c.Get(t.Context(), sdk.GetOptions{Target: look}); err != nil {
			t.Errorf("get: %v", err)
		}
	}
	if _, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: byID}); err != nil || c.running()[target.ID] != 0 {
		t.Errorf("destroy by id: %v, and %d run", err, c.running()[target.ID])
	}
}

// The service gives a shorter life than was asked for: it is not taken.
func TestClampedLifetime(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	c.Inject(modaltest.Fault{Call: modaltest.CallCreate, Lie: modaltest.Clamp, For: 10 * time.Minute})
	_, err := c.Create(t.Context(), c.creation(1))
	if !errors.Is(err, sdk.ErrQuota) || !strings.Contains(err.Error(), "3h51m") {
		t.Errorf("the create: %v", err)
	}
	if n := len(c.Running()); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A stream that ends early is taken up where it ended; a command whose end can't
// be learnt is no success.
func TestCutStreams(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	_, target := c.mustCreate(t, 1)
	c.Inject(modaltest.Fault{Call: modaltest.CallRead, Lie: modaltest.CutStream, On: 1})
	var out bytes.Buffer
	result, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"echo", "whole"}, Stdout: &out})
	if err != nil || result.ExitCode != 0 || out.String() != "whole\n" {
		t.Errorf("%q, exit code %d, %v", out.String(), result.ExitCode, err)
	}
	c.Inject(modaltest.Fault{Call: modaltest.CallExec, Lie: modaltest.Refuse, Code: codes.Internal})
	if _, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"true"}}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a command that could not be started: %v", err)
	}
}

// The sandbox is terminated by somebody else while a command runs: the command
// ends and says why.
func TestSandboxEndsUnderACommand(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	_, target := c.mustCreate(t, 1)
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sleep", "600"}})
		done <- err
	}()
	for c.Calls()["TaskExecStart"] == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := c.Kill(target.Ref); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, sdk.ErrNotFound) {
			t.Errorf("the command: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the command goes on")
	}
}
