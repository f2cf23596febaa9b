// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Price is what a running sandbox costs on a backend, in US dollars.
type Price struct {
	SandboxHour float64 `json:"sandbox_hour"`    // for being there
	CPUHour     float64 `json:"cpu_hour"`        // for each CPU
	MemoryHour  float64 `json:"memory_gib_hour"` // for each GiB
	CPUs        float64 `json:"cpus"`            // of a sandbox whose profile sets no limits.cpus
	Memory      string  `json:"memory"`          // of one that sets no limits.memory
}

// PriceAttributes returns the schema of one entry of prices.
func PriceAttributes() []Attribute {
	return []Attribute{
		{Name: "sandbox_hour", Type: TypeMoney, Description: "For a sandbox being there, for each hour. Default: `0`."},
		{Name: "cpu_hour", Type: TypeMoney, Description: "For each CPU and hour. Default: `0`."},
		{Name: "memory_gib_hour", Type: TypeMoney, Description: "For each GiB of memory and hour. Default: `0`."},
		{Name: "cpus", Type: TypeMoney, Description: "CPUs of a sandbox whose profile sets no `limits.cpus`. Default: `1`."},
		{Name: "memory", Type: TypeString, Description: "Memory of a sandbox whose profile sets no `limits.memory`, as `512MiB`. Default: `1GiB`."},
	}
}

// parse returns the price in whole millionths of a dollar.
func (p Price) parse(at string) (sandbox.Price, error) {
	price := sandbox.Price{CPUs: 1, MemoryBytes: 1 << 30}
	var err error
	for name, amount := range map[string]struct {
		from float64
		into *sandbox.Money
	}{"sandbox_hour": {p.SandboxHour, &price.Sandbox}, "cpu_hour": {p.CPUHour, &price.CPU}, "memory_gib_hour": {p.MemoryHour, &price.Memory}} {
		if *amount.into, err = sandbox.MoneyOf(amount.from); err != nil {
			return price, sdk.Invalid(at+"."+name, "%s", err)
		}
	}
	if p.CPUs != 0 {
		if !(p.CPUs > 0 && p.CPUs <= 4096) {
			return price, sdk.Invalid(at+".cpus", "%g is not a number of CPUs up to 4096", p.CPUs)
		}
		price.CPUs = p.CPUs
	}
	if p.Memory != "" {
		if price.MemoryBytes, err = sdk.ParseSize(p.Memory); err != nil {
			return price, sdk.Invalid(at+".memory", "%s", err)
		}
	}
	return price, nil
}

// prices reads the map of prices.
func (d *decoder) prices(config *Config, at hcl.Range, value cty.Value) {
	raw, ok := d.extension(at, "prices", value)
	if !ok {
		return
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil {
		d.add(at, "prices", "%s", err)
		return
	}
	for name, entry := range entries {
		price, err := readPrice(entry)
		if err != nil {
			d.add(at, fmt.Sprintf("prices.%.80s", name), "%s", err)
			continue
		}
		if _, err := price.parse("prices." + name); err != nil {
			d.add(at, "", "%s", err)
			continue
		}
		config.Prices = overlay(config.Prices, map[string]Price{name: price})
	}
}

func readPrice(raw json.RawMessage) (price Price, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return price, fmt.Errorf("an object is wanted")
	}
	var known []string
	for _, attribute := range PriceAttributes() {
		known = append(known, attribute.Name)
	}
	for name := range fields {
		if !slices.Contains(known, name) {
			return price, fmt.Errorf("no such attribute as %.80q%s", name, sandbox.DidYouMean(name, known))
		}
	}
	if err := json.Unmarshal(raw, &price); err != nil {
		return price, fmt.Errorf("numbers are wanted, and a size as memory")
	}
	return price, nil
}

// listPrices are the vendors' prices of sandboxes, as they were published on
// the day that each names. What runs on a machine of one's own is free.
//
// E2B: e2b.dev/docs/faq/calculate-sandbox-price. Modal: three times the rates
// of its functions, for a physical core; a sandbox that uses more than it asks
// for is billed for what it uses, and some regions cost up to 1.75 times this.
func listPrices() map[string]sandbox.Price {
	free := sandbox.Price{}
	return map[string]sandbox.Price{
		ExtensionLocal: free, ExtensionDocker: free, "saas-stub": free,
		ExtensionE2B:   {CPU: 50_400, Memory: 16_200, CPUs: 2, MemoryBytes: 512 << 20, AsOf: "2026-08-06"},
		ExtensionModal: {CPU: 141_480, Memory: 23_976, CPUs: 0.125, MemoryBytes: 128 << 20, AsOf: "2026-06-27"},
	}
}

// prices returns the price of each configured backend that has one.
func (c Config) prices() map[string]sandbox.Price {
	prices := map[string]sandbox.Price{}
	listed := listPrices()
	for name, backend := range c.Backends {
		if price, ok := listed[backend.Extension]; ok {
			prices[name] = price
		}
	}
	for name, given := range c.Prices {
		// It has been validated.
		if price, err := given.parse(name); err == nil {
			prices[name] = price
		}
	}
	return prices
}
