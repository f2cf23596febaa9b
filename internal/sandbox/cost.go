// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Money is an amount in millionths of a US dollar. Amounts are added up
// exactly.
type Money int64

// MaxMoney is the largest amount that is accepted, a billion dollars: sums of
// many stay far from overflow.
const MaxMoney Money = 1e15

const dollar = 1_000_000

// MoneyOf returns an amount of dollars, rounded to the nearest millionth.
func MoneyOf(dollars float64) (Money, error) {
	if math.IsNaN(dollars) || dollars < 0 || dollars > MaxMoney.Dollars() {
		return 0, fmt.Errorf("%g is not an amount of US dollars from 0 to %d", dollars, MaxMoney/dollar)
	}
	return Money(math.Round(dollars * dollar)), nil
}

// ParseMoney reads an amount of dollars, as 2.5.
func ParseMoney(s string) (Money, error) {
	dollars, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not an amount of US dollars (want for example 2.5)", clip(s))
	}
	return MoneyOf(dollars)
}

// Dollars returns the amount in dollars.
func (m Money) Dollars() float64 { return float64(m) / dollar }

// String returns the amount with a dollar sign, at least two decimals and at
// most the six that there are.
func (m Money) String() string {
	whole, part := m/dollar, fmt.Sprintf("%06d", m%dollar)
	text := fmt.Sprintf("%d.%s%s", whole, part[:2], strings.TrimRight(part[2:], "0"))
	return "$" + text
}

// Over returns what a rate per hour comes to over a time, rounded up.
func (m Money) Over(d time.Duration) Money {
	if d <= 0 {
		return 0
	}
	product := new(big.Int).Mul(big.NewInt(int64(m)), big.NewInt(int64(d)))
	quotient, rest := product.QuoRem(product, big.NewInt(int64(time.Hour)), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	if !quotient.IsInt64() {
		return MaxMoney
	}
	return min(Money(quotient.Int64()), MaxMoney)
}

// Price is what a running sandbox costs for each hour.
type Price struct {
	Sandbox Money // for being there
	CPU     Money // for each CPU
	Memory  Money // for each GiB
	// What a sandbox has whose profile sets no limits.cpus, limits.memory.
	CPUs        float64
	MemoryBytes int64
	AsOf        string // date of the price, as 2006-01-02; empty for one that the user gave
}

// Free reports whether nothing costs anything.
func (p Price) Free() bool { return p.Sandbox == 0 && p.CPU == 0 && p.Memory == 0 }

const gib = 1 << 30

// Hourly returns what a sandbox with these limits costs for each hour, rounded
// up, and how that is made up. The profile is valid.
func (p Price) Hourly(limits *sdk.Limits) (Money, string) {
	if p.Free() {
		return 0, "free"
	}
	cpus, memory := p.CPUs, p.MemoryBytes
	if limits != nil && limits.CPUs > 0 {
		cpus = limits.CPUs
	}
	if limits != nil && limits.Memory != "" {
		if size, err := sdk.ParseSize(limits.Memory); err == nil {
			memory = size
		}
	}
	ofMemory := float64(memory) / gib
	sum := float64(p.Sandbox) + float64(p.CPU)*cpus + float64(p.Memory)*ofMemory
	total := MaxMoney
	if sum < float64(MaxMoney) {
		// What is less than a thousandth of a millionth comes from the
		// arithmetic of floating point.
		total = Money(math.Ceil(sum - 1e-3))
	}
	var parts []string
	add := func(rate Money, text string) {
		if rate > 0 {
			parts = append(parts, text)
		}
	}
	add(p.Sandbox, p.Sandbox.String())
	add(p.CPU, fmt.Sprintf("%s CPU × %s", number(cpus), p.CPU))
	add(p.Memory, fmt.Sprintf("%s GiB × %s", number(ofMemory), p.Memory))
	text := strings.Join(parts, " + ")
	if p.AsOf != "" {
		text += ", prices of " + p.AsOf
	}
	return total, text
}

func number(f float64) string { return strconv.FormatFloat(math.Round(f*1000)/1000, 'f', -1, 64) }
