// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package lifecycle holds the verbs. It is the only place that orders ledger
// writes, backend calls and events: every face calls it, and no face calls a
// backend.
package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Backends gives access to the configured backends by name. Open starts what
// has to be started on first use; it may be called by many at once.
type Backends interface {
	Open(ctx context.Context, name string) (sdk.Extension, error)
	Names() []string
	// Default is the backend of whoever names none; empty when there is none.
	Default() string
}

// Settings are what all verbs share.
type Settings struct {
	Fleet       string
	Life        sandbox.Life // the provider's default and maximum; zero fields are unset
	Attribution sandbox.Attribution
	Bounds      Bounds
	// OnUnreachable is for destroys that do not say.
	OnUnreachable OnUnreachable
	Prices        map[string]sandbox.Price // by backend
	Verdicts      string                   // directory of the verdicts on credential isolation
	// Budgets bound the steps that must finish even when the caller's
	// context has ended.
	Budgets Budgets
}

// Budgets are durations of single steps.
type Budgets struct {
	Rollback time.Duration // removing what a cancelled create has made, and writing it down, from its cancellation on; default 6 s
	Search   time.Duration // looking for a create whose answer was lost; default 10 s
	Setup    time.Duration // all setup steps together; default 10 min
	Ready    time.Duration // the readiness check, when the profile sets none; default 60 s
	Grace    time.Duration // after a deadline, before an unreachable sandbox counts as expired; default 60 s
}

func (b Budgets) withDefaults() Budgets {
	fill := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	fill(&b.Rollback, 6*time.Second)
	fill(&b.Search, 10*time.Second)
	fill(&b.Setup, 10*time.Minute)
	fill(&b.Ready, time.Minute)
	fill(&b.Grace, time.Minute)
	return b
}

// Manager runs the verbs for one fleet. It is safe for concurrent use, and
// making one costs nothing.
type Manager struct {
	ledger   *ledger.Ledger
	backends Backends
	clock    clock.Clock
	settings Settings

	mu       sync.Mutex
	listers  map[string]*lister
	verdicts map[string]*verdict
}

// New returns a manager.
func New(l *ledger.Ledger, backends Backends, c clock.Clock, settings Settings) *Manager {
	settings.Budgets = settings.Budgets.withDefaults()
	return &Manager{
		ledger: l, backends: backends, clock: c, settings: settings,
		listers: map[string]*lister{}, verdicts: map[string]*verdict{},
	}
}

// Fleet returns the fleet that the manager acts for.
func (m *Manager) Fleet() string { return m.settings.Fleet }

// Forgets reports whether destroys give up what can't be reached, unless they
// say otherwise.
func (m *Manager) Forgets() bool { return m.settings.OnUnreachable == UnreachableForget }

// Now returns the manager's time.
func (m *Manager) Now() time.Time { return m.clock.Now() }

// Sleep waits by the manager's clock, until the context ends at the latest,
// whose error it returns.
func (m *Manager) Sleep(ctx context.Context, d time.Duration) error { return m.clock.Sleep(ctx, d) }

// detached returns a context for a step that must finish although ctx may
// have ended, and that may take so long in any case.
func detached(ctx context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), budget)
}

// outliving returns a context for a step that must finish although ctx may
// end meanwhile: it ends a budget after ctx has, and not before.
func outliving(ctx context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	kept, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(budget)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(context.DeadlineExceeded)
		case <-kept.Done():
		}
	})
	return kept, func() {
		stop()
		cancel(context.Canceled)
	}
}
