// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
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

// process is another process on the same ledger and cloud: nothing in memory
// is shared with h.
func (h house) process(t *testing.T, bounds Bounds) *Manager {
	t.Helper()
	ext := saasstub.New(saasstub.Options{Server: h.server})
	if _, err := ext.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: "ci"}); err != nil {
		t.Fatal(err)
	}
	return New(ledger.New(h.ledger.Dir(), h.clock), backends{"cloud": ext}, h.clock, Settings{
		Fleet: "ci", Attribution: sandbox.Attribution{Owner: "payments", Actor: "tester"}, Bounds: bounds,
		Prices: map[string]sandbox.Price{"cloud": dime},
	})
}

// refusedAt fails unless an error is the refusal of a setting.
func refusedAt(t *testing.T, err error, setting string, says ...string) {
	t.Helper()
	var refusal *sdk.Error
	if !errors.Is(err, sdk.ErrQuota) || !errors.As(err, &refusal) || refusal.Path != setting {
		t.Fatalf("%v, want a refusal on %s", err, setting)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q lacks %q", err, text)
		}
	}
}

// Many at once, in processes of their own, never pass the bound together, and
// as many as are allowed are made.
func TestManyAtOnceKeepTheBound(t *testing.T) {
	const bound, at = 3, 12
	h := newHouse(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	made := 0
	for range at {
		m := h.process(t, Bounds{Fleet: bound})
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
	if made != bound || len(h.server.Boxes()) != bound || len(h.open(t)) != bound {
		t.Errorf("%d made, %d boxes, %d open logs, %d are allowed", made, len(h.server.Boxes()), len(h.open(t)), bound)
	}
}

// What is alive counts, whoever made it; what has ended does not, and destroy
// is never refused.
func TestWhatCountsAgainstABound(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Fleet: 2})
	create := func() (Sandbox, error) {
		return m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
	}
	first, err := create()
	if err != nil {
		t.Fatal(err)
	}
	// Made elsewhere: this ledger knows nothing of it.
	foreign := newHouseOn(t, h.clock, h.server, "ci", saasstub.Options{})
	other := foreign.create(t, CreateOptions{TTL: 2 * time.Hour})
	_, err = create()
	refusedAt(t, err, "max_sandboxes", "2 sandboxes and 2 are allowed", first.ID, other.ID)
	if len(h.server.Boxes()) != 2 || len(h.open(t)) != 1 {
		t.Error("a refusal left something")
	}
	refusedAt(t, m.Forecast().Add(t.Context(), Wanted{Backend: "cloud", Profile: profile()}), "max_sandboxes")
	// Another fleet has bounds of its own.
	if _, err := newHouseOn(t, h.clock, h.server, "elsewhere", saasstub.Options{}).Create(t.Context(), CreateOptions{Profile: profile()}); err != nil {
		t.Error(err)
	}
	if _, err := m.Destroy(t.Context(), first.ID, DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	third, err := create()
	if err != nil {
		t.Fatal(err)
	}
	// Past its deadline it takes no place, reaped or not.
	h.clock.Advance(time.Hour)
	if _, err := create(); err != nil {
		t.Errorf("%s has expired: %v", third.ID, err)
	}
}

func TestTheBoundOfAnOwner(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Fleet: 5, Owner: 1})
	for _, owner := range []string{"", "search"} { // the first is the default's
		if _, err := m.Create(t.Context(), CreateOptions{Profile: profile(), Attribution: sandbox.Attribution{Owner: owner}}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := m.Create(t.Context(), CreateOptions{Profile: profile()})
	refusedAt(t, err, "max_sandboxes_per_owner", `"payments"`)
	refusedAt(t, m.Forecast().Add(t.Context(), Wanted{Owner: "search"}), "max_sandboxes_per_owner", `"search"`)
	if err := m.Forecast().Add(t.Context(), Wanted{Owner: "billing"}); err != nil {
		t.Error(err)
	}
}

// An intent whose process was killed takes a place until its deadline: whether
// anything came of it is not known.
func TestAnIntentTakesAPlace(t *testing.T) {
	h := newHouse(t)
	m := h.process(t, Bounds{Fleet: 1})
	h.server.Inject(saasstub.Fault{Call: saasstub.CallCreateBox, Lie: saasstub.LoseRequest}, saasstub.Fault{Call: saasstub.CallGetBox, Lie: saasstub.Broken}, saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken})
	if _, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour}); err == nil {
		t.Fatal("it was made")
	}
	h.server.Heal()
	if len(h.open(t)) != 1 {
		t.Fatal("no intent is open, so this test proves nothing")
	}
	_, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour})
	refusedAt(t, err, "max_sandboxes")
	h.clock.Advance(2 * time.Hour)
	if _, err := m.Create(t.Context(), CreateOptions{Profile: profile(), TTL: time.Hour}); err != nil {
		t.Error(err)
	}
}
