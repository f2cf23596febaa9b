// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Two machines of one fleet create, extend, snapshot, destroy and sweep on a
// vendor that lies in every third call. Whatever they were told: once the
// vendor is honest and the deadlines have passed, two sweeps leave nothing
// at the vendor and nothing of the fleet open in a ledger, and another fleet
// has lost nothing. The full size is a thousand runs.
func TestNothingOutlivesItsDeadlineWhateverTheVendorSays(t *testing.T) {
	seeds := 6
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		seeds = 1000
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			here := newYard(t)
			there := newYardOn(t, here.clock, here.clouds, "ci", nil)
			foreign := newYardOn(t, here.clock, here.clouds, "cd", nil).create(t, 23*time.Hour)
			cloud := here.clouds["cloud"]
			random := rand.New(rand.NewPCG(seed, 1))
			cloud.InjectRandom(seed, 0.33, saasstub.LoseRequest, saasstub.LoseAnswer, saasstub.Twice, saasstub.Pretend,
				saasstub.NotFound, saasstub.InTransition, saasstub.RateLimited, saasstub.Broken)
			var known []string
			// What was honestly called unverifiable stays closed in that ledger
			// until a sweep sees it again.
			unverifiable := map[string]bool{}
			for range 25 {
				y := here
				if random.IntN(2) == 0 {
					y = there
				}
				// What these say is checked elsewhere; here counts what is left.
				switch pick := random.IntN(6); {
				case pick <= 1 || len(known) == 0:
					made, _ := y.manager.Create(t.Context(), lifecycle.CreateOptions{Profile: sdk.Profile{Name: "e2e"}, TTL: time.Duration(1+random.IntN(60)) * time.Minute})
					if made.ID != "" {
						known = append(known, made.ID)
					}
				case pick == 2:
					_, _ = y.manager.Extend(t.Context(), known[random.IntN(len(known))], lifecycle.ExtendOptions{TTL: time.Hour})
				case pick == 3:
					_, _ = y.manager.Snapshot(t.Context(), known[random.IntN(len(known))], lifecycle.SnapshotOptions{TTL: time.Hour})
				case pick == 4:
					id := known[random.IntN(len(known))]
					destroyed, err := y.manager.Destroy(t.Context(), id, lifecycle.DestroyOptions{})
					unverifiable[id] = unverifiable[id] || destroyed.Unverifiable != ""
					if err == nil && !unverifiable[id] {
						for _, name := range y.alive() {
							if name == id {
								t.Errorf("%s was said to be destroyed", id)
							}
						}
					}
				case pick == 5:
					report, _ := y.Sweep(t.Context(), Options{})
					for _, result := range report.Results {
						id := result.ID
						unverifiable[id] = unverifiable[id] || result.Outcome == OutcomeUnverifiable
						for _, name := range y.alive() {
							if name == id && !unverifiable[id] && (result.Outcome == OutcomeRemoved || result.Outcome == OutcomeGone) {
								t.Errorf("%s was said to be %s", name, result.Outcome)
							}
						}
					}
				}
				here.clock.Advance(time.Duration(random.IntN(5)) * time.Minute)
			}
			cloud.Heal()
			here.clock.Advance(3 * time.Hour)
			here.sweep(t)
			for name, y := range map[string]yard{"here": here, "there": there} {
				if report := y.sweep(t); !report.Clean() {
					t.Errorf("%s: %+v", name, report)
				}
				open, unreadable, err := y.ledger.List(t.Context(), ledger.Filter{Open: true})
				if err != nil || len(unreadable) > 0 || len(open) > 0 {
					t.Errorf("%s: open %+v, unreadable %+v, %v", name, open, unreadable, err)
				}
				if leaks, err := y.Leaks(t.Context(), ""); err != nil || !leaks.Clean() {
					t.Errorf("%s: %+v, %v", name, leaks, err)
				}
			}
			if left := here.alive(); len(left) != 1 || left[0] != foreign {
				t.Errorf("left at the vendor: %v; want only %s", left, foreign)
			}
		})
	}
}
