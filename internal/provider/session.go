// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// defaultTimeout bounds a call whose timeouts the user does not set.
	defaultTimeout = 20 * time.Minute
	// deleteTimeout bounds a destroy, likewise.
	deleteTimeout = 5 * time.Minute
	// saveBudget is how long a step that must finish may go on after Ctrl-C.
	// CI systems kill 7.5 s after their first signal.
	saveBudget = 6 * time.Second
)

// session is one configured provider: what its objects share.
type session struct {
	clock   clock.Clock
	getenv  func(string) string
	unknown []string // attributes of the provider block that are not known yet
	open    func() (*config.Runtime, error)

	mu      sync.Mutex
	opened  *config.Runtime
	closed  bool
	working sync.WaitGroup // calls that change something
	planned *lifecycle.Forecast
}

func newSession(opts Options, block config.Config, unknown []string) *session {
	s := &session{clock: opts.Clock, getenv: opts.Getenv, unknown: unknown}
	if s.clock == nil {
		s.clock = clock.System{}
	}
	if s.getenv == nil {
		s.getenv = os.Getenv
	}
	load := opts.Load
	if load == nil {
		load = func() (config.Config, error) { return config.Load(config.LoadOptions{Getenv: opts.Getenv}) }
	}
	s.open = sync.OnceValues(func() (*config.Runtime, error) {
		base, err := load()
		if err != nil {
			return nil, fmt.Errorf("load the configuration: %w", err)
		}
		runtime, err := config.Open(config.Merge(base, block), config.Options{
			Clock: opts.Clock, Getenv: opts.Getenv, Builtins: opts.Builtins, Budgets: opts.Budgets, Logger: opts.Logger,
		})
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.opened = runtime
		s.mu.Unlock()
		return runtime, nil
	})
	return s
}

// deferred reports whether the provider block is not wholly known, which
// happens at plan: nothing can be asked of a backend then.
func (s *session) deferred() bool { return len(s.unknown) > 0 }

// warnDeferred says once per object what that means.
func (s *session) warnDeferred(diags *diag.Diagnostics, what string) {
	diags.AddWarning("Unknown provider configuration",
		fmt.Sprintf("%s: the provider's %s will be known only at apply. It is checked then, before anything is made.",
			what, strings.Join(s.unknown, ", ")))
}

// runtime puts the configuration to work.
func (s *session) runtime(diags *diag.Diagnostics) *config.Runtime {
	if s.deferred() {
		diags.AddError("Unknown provider configuration",
			fmt.Sprintf("No backend can be asked, since the provider's %s is not known yet. "+
				"Apply what it depends on first, or use -target.", strings.Join(s.unknown, ", ")))
		return nil
	}
	runtime, err := s.open()
	if err != nil {
		addError(diags, "Faulty provider configuration", err, nil)
		return nil
	}
	return runtime
}

// manager returns the verbs.
func (s *session) manager(diags *diag.Diagnostics) *lifecycle.Manager {
	runtime := s.runtime(diags)
	if runtime == nil {
		return nil
	}
	return runtime.Manager
}

// forecast returns the one forecast of all sandboxes that are planned.
func (s *session) forecast(manager *lifecycle.Manager) *lifecycle.Forecast {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.planned == nil {
		s.planned = manager.Forecast()
	}
	return s.planned
}

// work marks a call that changes something; the result ends it. [session.close]
// waits for it, so that a rollback is not cut off by the end of the process.
func (s *session) work() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return func() {}
	}
	s.working.Add(1)
	return s.working.Done
}

func (s *session) close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	opened := s.opened
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.working.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	if opened == nil {
		return nil
	}
	return opened.Close()
}

// surviving returns a context for a step that must not be torn by Ctrl-C
// (which cancels every call in flight): it ends after total, or saveBudget
// after the end of ctx.
func surviving(ctx context.Context, total time.Duration) (context.Context, context.CancelFunc) {
	kept, cancel := context.WithTimeout(context.WithoutCancel(ctx), total)
	var timer *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(saveBudget, cancel)
	})
	return kept, func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		cancel()
	}
}

// progress shows long work in the log.
func progress(ctx context.Context) func(sdk.Progress) {
	return func(p sdk.Progress) {
		tflog.Info(ctx, p.Message, map[string]any{"phase": p.Phase, "done": p.Done, "total": p.Total})
	}
}

// sessionOf returns the session that Configure handed out; nil before that,
// when Terraform validates.
func sessionOf(data any, diags *diag.Diagnostics) *session {
	if data == nil {
		return nil
	}
	s, ok := data.(*session)
	if !ok {
		diags.AddError("Wrong provider data", fmt.Sprintf("A *session was expected, this is %T. This is a fault of the provider.", data))
	}
	return s
}
