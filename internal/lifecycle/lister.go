// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// listingAge is how long a listing serves batched reads of a process that
// writes nothing. It covers one refresh of Terraform, also one of many
// sandboxes on a busy machine.
const listingAge = time.Minute

// listingBudget bounds one listing, whoever waits for it.
const listingBudget = 60 * time.Second

// lister shares listings of one backend among concurrent callers: a refresh
// of many sandboxes costs one call, and so do many destroys that each want
// to see the sandbox gone.
type lister struct {
	clock clock.Clock
	list  func(ctx context.Context) (sdk.ListResult, error)

	mu       sync.Mutex
	epoch    int64 // grows with each write and each demand for a fresh listing
	last     *listing
	inflight *listing
}

// listing is one call of List, in flight or ended.
type listing struct {
	epoch int64 // of the lister when it began
	done  chan struct{}
	at    time.Time
	byID  map[string]sdk.Sandbox
	all   []sdk.Sandbox
	// incomplete is why the listing proves no absence; empty when it does.
	incomplete string
	// unreadable are there, and the backend can't tell about them.
	unreadable map[string]bool
	err        error
}

// invalidate makes every later read see the writes before it, and returns the
// epoch that listings of such reads have at least.
func (l *lister) invalidate() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
	return l.epoch
}

// fresh returns a listing that began after the call.
func (l *lister) fresh(ctx context.Context) (*listing, error) {
	return l.wait(ctx, l.invalidate())
}

// shared returns a listing that began after the last write of this process.
func (l *lister) shared(ctx context.Context) (*listing, error) {
	l.mu.Lock()
	want := l.epoch
	l.mu.Unlock()
	return l.wait(ctx, want)
}

// wait returns a listing that began in an epoch or later.
func (l *lister) wait(ctx context.Context, want int64) (*listing, error) {
	for {
		l.mu.Lock()
		if l.last != nil && l.last.epoch >= want && l.clock.Now().Sub(l.last.at) < listingAge {
			got := l.last
			l.mu.Unlock()
			return got, got.err
		}
		if l.inflight == nil {
			l.start(ctx)
		}
		running := l.inflight
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-running.done:
		}
		if running.epoch >= want {
			return running, running.err
		}
	}
}

// start begins a listing. It outlives the caller's context, since others may
// wait for it too. The lock is held.
func (l *lister) start(ctx context.Context) {
	running := &listing{epoch: l.epoch, done: make(chan struct{})}
	l.inflight = running
	ctx, cancel := detached(ctx, listingBudget)
	go func() {
		defer cancel()
		result, err := l.list(ctx)
		running.err = err
		running.all, running.incomplete = result.Sandboxes, result.Incomplete
		running.unreadable = make(map[string]bool, len(result.Unreadable))
		for _, id := range result.Unreadable {
			running.unreadable[id] = true
		}
		running.byID = make(map[string]sdk.Sandbox, len(result.Sandboxes))
		for _, s := range result.Sandboxes {
			running.byID[s.ID] = s
		}
		l.mu.Lock()
		running.at = l.clock.Now()
		l.inflight = nil
		if err == nil {
			l.last = running
		}
		l.mu.Unlock()
		close(running.done)
	}()
}

// lister returns the lister of a backend.
func (m *Manager) lister(backend string) *lister {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.listers[backend]
	if !ok {
		l = &lister{clock: m.clock, list: func(ctx context.Context) (sdk.ListResult, error) {
			ext, err := m.backends.Open(ctx, backend)
			if err != nil {
				return sdk.ListResult{}, err
			}
			return ext.List(ctx, sdk.ListOptions{Fleet: m.settings.Fleet})
		}}
		m.listers[backend] = l
	}
	return l
}
