// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// What costs something has a date; a price of the user's goes before the list.
func TestPricesOfBackends(t *testing.T) {
	for extension, price := range listPrices() {
		if _, err := time.Parse(time.DateOnly, price.AsOf); !price.Free() && err != nil {
			t.Errorf("%s: %v", extension, err)
		}
	}
	c, err := Parse("f.hcl", []byte(`
backends = { cloud = { e2b = {} }, mine = { e2b = {} }, acme = { extension = "acme" } }
prices   = { mine = { cpu_hour = 0.04, memory_gib_hour = 0.013, sandbox_hour = 0.001, cpus = 4, memory = "2GiB" } }
max_cost_per_hour = 2.5
`), true)
	if err != nil {
		t.Fatal(err)
	}
	prices := c.prices()
	if prices["cloud"].CPU != 50_400 || prices["cloud"].AsOf == "" {
		t.Errorf("cloud: %+v", prices["cloud"])
	}
	if want := (sandbox.Price{Sandbox: 1000, CPU: 40_000, Memory: 13_000, CPUs: 4, MemoryBytes: 2 << 30}); prices["mine"] != want {
		t.Errorf("mine: %+v", prices["mine"])
	}
	if _, known := prices["acme"]; known {
		t.Error("a price of acme is known")
	}
	if c.MaxCostPerHour.String() != "$2.50" {
		t.Errorf("%s", c.MaxCostPerHour)
	}
}
