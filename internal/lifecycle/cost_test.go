// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// dime is ten cents an hour for each CPU, and one CPU unless a profile says.
var dime = sandbox.Price{CPU: 100_000, CPUs: 1, MemoryBytes: 1 << 30, AsOf: "2026-01-01"}

const cent sandbox.Money = 10_000

// refusedCost is refusedAt for what no destroy of another would make possible.
func refusedCost(t *testing.T, err error, setting string, says ...string) {
	t.Helper()
	var refusal *sdk.Error
	if !errors.As(err, &refusal) || refusal.Path != setting {
		t.Fatalf("%v, want a refusal on %s", err, setting)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q lacks %q", err, text)
		}
	}
}

// Many creates and extends at once, in processes of their own, never pass a
// bound together, and use it up.
func TestManyAtOnceKeepTheBudget(t *testing.T) {
	for name, bound := range map[string]CostBound{"per hour": {PerHour: 35 * cent}, "committed": {Committed: 35 * cent}} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			var mu sync.Mutex
			var wg sync.WaitGroup
			made := 0
			for range 12 {
				m := h.process(t, Bounds{Cost: bound})
				wg.Go(func() {
					_, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						made++
					case !errors.Is(err, sdk.ErrQuota):
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if made != 3 || len(h.server.Boxes()) != 3 || len(h.open(t)) != 3 {
				t.Errorf("%d made, %d boxes, %d open logs, 3 are allowed", made, len(h.server.Boxes()), len(h.open(t)))
			}
		})
	}
}

// A refusal shows the arithmetic, and leaves nothing.
func TestARefusalOfCostsShowsTheArithmetic(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Cost: CostBound{PerHour: 15 * cent, Committed: 30 * cent}})
	first, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Minute})
	refusedAt(t, err, "max_cost_per_hour", "it costs $0.10 an hour (1 CPU × $0.10, prices of 2026-01-01), beside $0.10 an hour of 1 that are alive: $0.20 an hour, and $0.15 are allowed", first.ID)
	m.settings.Bounds.Cost.PerHour = 0
	_, err = m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: 90 * time.Minute})
	refusedAt(t, err, "max_committed", "it costs $0.15 until 2026-03-01T13:30:00Z (1h30m0s × $0.10 an hour: 1 CPU × $0.10, prices of 2026-01-01), beside $0.20 of 1 that are alive: $0.35, and $0.30 are allowed", first.ID)
	if len(h.server.Boxes()) != 1 || len(h.open(t)) != 1 {
		t.Error("a refusal left something")
	}
	// What is gone costs no more.
	if _, err := m.Destroy(t.Context(), first.ID, DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: 90 * time.Minute}); err != nil {
		t.Error(err)
	}
}

// An extend is asked for all of its sandbox's life; those who come at once
// never pass the bound together, and the refused leave the deadline alone.
func TestExtendsKeepTheBudget(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Cost: CostBound{Committed: 55 * cent}})
	var ids []string
	for range 4 {
		made, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, made.ID)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	extended := 0
	for _, id := range ids {
		other := h.process(t, Bounds{Cost: CostBound{Committed: 55 * cent}})
		wg.Go(func() {
			_, err := other.Extend(t.Context(), id, ExtendOptions{TTL: 2 * time.Hour})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				extended++
			case !errors.Is(err, sdk.ErrQuota) || !strings.Contains(err.Error(), "it costs $0.20 until 2026-03-01T14:00:00Z"):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if extended != 1 {
		t.Errorf("%d were extended, there is room for 1", extended)
	}
	later := 0
	for _, box := range h.open(t) {
		if box.Lease.ExpiresAt.After(start.Add(time.Hour)) {
			later++
		}
	}
	if later != 1 {
		t.Errorf("%d have a later deadline", later)
	}
}

// A deadline that was asked for by a process that died may have come to be: it
// counts until something says otherwise.
func TestAnUnansweredExtendCounts(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Cost: CostBound{Committed: 35 * cent}})
	made, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.append(t.Context(), made.ID, ledger.Event{Type: ledger.Extending, Until: start.Add(3 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	_, err = m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
	refusedAt(t, err, "max_committed", "beside $0.30 of 1")
	if _, err := m.append(t.Context(), made.ID, ledger.Event{Type: ledger.ExtendDenied, Until: start.Add(3 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour}); err != nil {
		t.Error(err)
	}
}

// What was made elsewhere counts as far as the backend lists it; a deadline
// that was moved elsewhere too.
func TestCostsOfWhatWasMadeElsewhere(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Cost: CostBound{Committed: 35 * cent}})
	own, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := newHouseOn(t, h.clock, h.server, "ci", saasstub.Options{})
	elsewhere.create(t, CreateOptions{TTL: time.Hour})
	if _, err := elsewhere.Extend(t.Context(), own.ID, ExtendOptions{TTL: 90 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	_, err = m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: 70 * time.Minute})
	refusedAt(t, err, "max_committed", "beside $0.25 of 2")
}

// A profile bounds its own sandboxes, and no others.
func TestTheBudgetOfAProfile(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{})
	bounded := profile()
	bounded.MaxCommitted = 0.15
	create := func(p sdk.Profile) error {
		_, err := m.Create(t.Context(), CreateOptions{Profile: p, TTL: time.Hour})
		return err
	}
	if err := errors.Join(create(bounded), create(sdk.Profile{Name: "other"}), create(sdk.Profile{Name: "other"})); err != nil {
		t.Fatal(err)
	}
	refusedAt(t, create(bounded), "profile.max_committed", `beside $0.10 of 1 of the profile "e2e" that are alive: $0.20, and $0.15 are allowed`)
	bounded.MaxCommitted, bounded.MaxCostPerHour = 0, 0.05
	refusedAt(t, create(bounded), "profile.max_cost_per_hour")
	bounded.MaxCostPerHour = -1
	if err := create(bounded); !errors.Is(err, sdk.ErrInvalid) {
		t.Error(err)
	}
}

// A price that nobody knows is no zero.
func TestAnUnknownPriceIsRefused(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Cost: CostBound{PerHour: cent}})
	m.settings.Prices = nil
	_, err := m.Create(t.Context(), CreateOptions{Profile: profile()})
	refusedCost(t, err, "prices", `"cloud"`, "set prices = { cloud =")
	m.settings.Prices = map[string]sandbox.Price{"cloud": {}}
	if _, err := m.Create(t.Context(), CreateOptions{Profile: profile()}); err != nil {
		t.Errorf("free of charge: %v", err)
	}
}

// A forecast counts what it was asked about before, and tells what is
// impossible from what only has no room now.
func TestAForecastAddsUp(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Fleet: 3, Cost: CostBound{Committed: 25 * cent}})
	f := m.Forecast()
	add := func(f *Forecast, ttl time.Duration) error {
		return f.Add(context.Background(), Wanted{Backend: "cloud", Profile: profile(), TTL: ttl})
	}
	if err := errors.Join(add(f, time.Hour), add(f, time.Hour)); err != nil {
		t.Fatal(err)
	}
	refusedAt(t, add(f, time.Hour), "max_committed", "beside $0.20 of 2", "planned")
	refusedAt(t, add(f, time.Minute), "max_sandboxes")
	err := add(m.Forecast(), 3*time.Hour)
	if refusedCost(t, err, "max_committed", "beside $0.00 of 0"); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
