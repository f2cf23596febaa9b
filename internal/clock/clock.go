// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package clock is the clock that everything is given, so that tests move
// time instead of waiting for it.
package clock

import (
	"context"
	"sync"
	"time"
)

// Clock tells the time and waits.
type Clock interface {
	Now() time.Time
	// Sleep waits for d or until the context ends, whose error it returns.
	Sleep(ctx context.Context, d time.Duration) error
}

// System is the machine's clock.
type System struct{}

// Now returns the present time.
func (System) Now() time.Time { return time.Now() }

// Sleep waits for d or until the context ends.
func (System) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Fake is a clock that moves only when told to. A sleeper wakes when the
// clock reaches its time.
type Fake struct {
	// Auto makes a sleeper move the clock itself instead of waiting. It is
	// set before the clock is used.
	Auto bool

	mu      sync.Mutex
	now     time.Time
	changed chan struct{}
}

// NewFake returns a fake clock that stands at now.
func NewFake(now time.Time) *Fake { return &Fake{now: now, changed: make(chan struct{})} }

// Now returns where the clock stands.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Advance moves the clock.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	close(f.changed)
	f.changed = make(chan struct{})
}

// Sleep waits until the clock has moved by d or the context ends.
func (f *Fake) Sleep(ctx context.Context, d time.Duration) error {
	if f.Auto {
		f.Advance(d)
		return ctx.Err()
	}
	f.mu.Lock()
	until := f.now.Add(d)
	f.mu.Unlock()
	for {
		f.mu.Lock()
		now, changed := f.now, f.changed
		f.mu.Unlock()
		if !now.Before(until) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
