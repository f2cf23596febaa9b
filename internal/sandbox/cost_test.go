// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestMoneyReadsAndWrites(t *testing.T) {
	for text, want := range map[string]string{"0": "$0.00", "2.5": "$2.50", "0.0504": "$0.0504", "0.000014": "$0.000014", "1e3": "$1000.00", "0.10": "$0.10", "0.0000004": "$0.00"} {
		if got, err := ParseMoney(text); err != nil || got.String() != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "NaN", "Inf", "1e10", "one", "$2"} {
		if got, err := ParseMoney(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
}

func TestWhatARateComesTo(t *testing.T) {
	rate, err := MoneyOf(0.1089)
	if err != nil {
		t.Fatal(err)
	}
	for d, want := range map[time.Duration]string{0: "$0.00", time.Hour: "$0.1089", 45 * time.Minute: "$0.081675", time.Nanosecond: "$0.000001", -time.Hour: "$0.00"} {
		if got := rate.Over(d); got.String() != want {
			t.Errorf("%s for %s is %s, want %s", rate, d, got, want)
		}
	}
	if got := MaxMoney.Over(math.MaxInt64); got != MaxMoney {
		t.Errorf("%d", got)
	}
}

// A commitment never falls short of what the time costs, and grows with it.
func TestACommitmentIsNeverTooLow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := Money(rapid.Int64Range(0, 1e9).Draw(t, "rate"))
		d := time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "duration"))
		got := float64(rate.Over(d))
		exact := float64(rate) * d.Hours()
		if got < exact-1e-3*math.Max(1, exact/1e9) || got > exact+1.001 {
			t.Fatalf("%d an hour for %s came to %f, exactly %f", rate, d, got, exact)
		}
		if rate.Over(d+time.Minute) < rate.Over(d) {
			t.Fatal("more time costs less")
		}
	})
}

func TestWhatASandboxCosts(t *testing.T) {
	cpu, memory := Money(50_400), Money(16_200)
	price := Price{CPU: cpu, Memory: memory, CPUs: 2, MemoryBytes: 512 << 20, AsOf: "2026-08-06"}
	for name, c := range map[string]struct {
		price  Price
		limits *sdk.Limits
		rate   string
		text   string
	}{
		"default": {price, nil, "$0.1089", "2 CPU × $0.0504 + 0.5 GiB × $0.0162, prices of 2026-08-06"},
		"limits":  {price, &sdk.Limits{CPUs: 0.5, Memory: "2GiB"}, "$0.0576", "0.5 CPU × $0.0504 + 2 GiB × $0.0162, prices of 2026-08-06"},
		"flat":    {Price{Sandbox: 100_000}, &sdk.Limits{CPUs: 8}, "$0.10", "$0.10"},
		"free":    {Price{}, nil, "$0.00", "free"},
		"absurd":  {price, &sdk.Limits{CPUs: math.MaxFloat64}, MaxMoney.String(), ""},
	} {
		rate, text := c.price.Hourly(c.limits)
		if rate.String() != c.rate || (c.text != "" && text != c.text) {
			t.Errorf("%s: %s, %q; want %s, %q", name, rate, text, c.rate, c.text)
		}
	}
}
