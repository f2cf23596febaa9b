// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"fmt"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// CostBound is what sandboxes that are alive may cost together; zero is no
// bound.
type CostBound struct {
	PerHour   sandbox.Money // max_cost_per_hour
	Committed sandbox.Money // max_committed: from creation to deadline
}

// profileBound returns the bound of a profile for its own sandboxes. Amounts
// that are none have been refused where the profile was validated.
func profileBound(p sdk.Profile) (b CostBound) {
	b.PerHour, _ = sandbox.MoneyOf(p.MaxCostPerHour)
	b.Committed, _ = sandbox.MoneyOf(p.MaxCommitted)
	return b
}

// checkCosts returns the refusal of what is wanted beside others that are
// alive, by the costs of all, and of those of its profile.
//
// A sandbox is committed for all its time until its deadline, used or not and
// paused or not. One that is there is only asked for what it costs more: the
// cost of an hour of it does not change.
func (m *Manager) checkCosts(others []living, want demand) error {
	err := m.checkCost(m.settings.Bounds.Cost, "", "", others, want)
	if err != nil {
		return err
	}
	var same []living
	for _, s := range others {
		if s.Profile == want.profile.Name {
			same = append(same, s)
		}
	}
	return m.checkCost(profileBound(want.profile), "profile.", fmt.Sprintf(" of the profile %q", want.profile.Name), same, want)
}

func (m *Manager) checkCost(bound CostBound, at, whose string, others []living, want demand) error {
	if bound == (CostBound{}) {
		return nil
	}
	rate, how, err := m.rate(want.backend, want.profile)
	if err != nil {
		return err
	}
	if rate == 0 {
		return nil
	}
	var rates, commitments sandbox.Money
	for _, s := range others {
		of, _, err := m.rate(s.Backend, s.document)
		if err != nil {
			return err
		}
		rates += of
		commitments += of.Over(s.until.Sub(s.CreatedAt))
	}
	if sum := rates + rate; bound.PerHour > 0 && want.id == "" && sum > bound.PerHour {
		return refuseBound(at+"max_cost_per_hour", fmt.Sprintf("it costs %s an hour (%s), beside %s an hour of %d%s that are alive: %s an hour, and %s are allowed",
			rate, how, rates, len(others), whose, sum, bound.PerHour), others)
	}
	life := want.until.Sub(want.from)
	committed := rate.Over(life)
	if sum := commitments + committed; bound.Committed > 0 && sum > bound.Committed {
		return refuseBound(at+"max_committed", fmt.Sprintf("it costs %s until %s (%s × %s an hour: %s), beside %s of %d%s that are alive: %s, and %s are allowed",
			committed, want.until.UTC().Format(time.RFC3339), life.Round(time.Second), rate, how, commitments, len(others), whose, sum, bound.Committed), others)
	}
	return nil
}

// rate returns what a sandbox costs for each hour, and how that is made up.
func (m *Manager) rate(backend string, profile sdk.Profile) (sandbox.Money, string, error) {
	price, known := m.settings.Prices[backend]
	if !known {
		return 0, "", &sdk.Error{Kind: sdk.ErrInvalid, Path: "prices", Message: fmt.Sprintf("costs are bounded, and no price of backend %q is known", backend),
			Advice: fmt.Sprintf("set prices = { %s = { sandbox_hour = … } }, all zero where it is free", backend)}
	}
	rate, how := price.Hourly(profile.Limits)
	return rate, how, nil
}
