// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
)

// errEnding is what a use of a sandbox gets whose end has begun.
var errEnding = errors.New("the sandbox is ending")

// noteEvery is how often the time of the last use is written down at most.
const noteEvery = 500 * time.Millisecond

// activity is when the sandbox was last used: a command or a copy that runs,
// bytes of a published port. Nothing else moves the idle clock, and least of
// all a look at the sandbox.
type activity struct {
	dir string // of the file whose time shows the last use; clients read that
	now func() time.Time

	mu    sync.Mutex
	busy  int // uses that go on
	last  time.Time
	noted time.Time
	over  bool // no use begins any more
}

// begin marks the beginning of a use, and end its end.
func (a *activity) begin() (end func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return nil, errEnding
	}
	a.busy++
	a.mark()
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.busy--
		a.mark()
	}, nil
}

// touch marks a use that takes no time.
func (a *activity) touch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.mark()
	}
}

// since returns when the sandbox was last used: now, while it is.
func (a *activity) since() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy > 0 {
		a.mark()
	}
	return a.last
}

// stop lets no further use begin. With idle it does so only when the sandbox
// has not been used for that long: a use that comes at the same time wins, or
// is refused.
func (a *activity) stop(idle time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if idle > 0 && (a.busy > 0 || a.now().Before(a.last.Add(idle))) {
		return false
	}
	a.over = true
	return true
}

// resume undoes stop. It counts as a use: the idle clock begins anew.
func (a *activity) resume() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = false
	a.mark()
}

// mark notes a use. The lock is held.
func (a *activity) mark() {
	a.last = a.now()
	if a.dir == "" || a.last.Sub(a.noted) < noteEvery {
		return
	}
	// For people: what decides is in this process. So it is not synced, and a
	// disk that can't take it is no reason to refuse the use.
	if err := os.Chtimes(record.UsedPath(a.dir), a.last, a.last); err != nil {
		fmt.Fprintln(os.Stderr, "note the last use:", err)
	}
	a.noted = a.last
}

// wallClock is the time without the monotonic clock, which stands still while
// the machine is suspended.
func wallClock() time.Time { return time.Now().Round(0) }
