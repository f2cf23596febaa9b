// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// side is one of the things that are compared; it returns how long one
// measurement took.
type side func(ctx context.Context) (time.Duration, error)

// interleave measures the sides in turn, n times each after one warm-up that
// is thrown away, and returns the durations of each side.
func interleave(ctx context.Context, n int, sides ...side) ([][]time.Duration, error) {
	measured := make([][]time.Duration, len(sides))
	for i := range n + 1 {
		for j, measure := range sides {
			took, err := measure(ctx)
			if err != nil {
				return nil, err
			}
			if i > 0 {
				measured[j] = append(measured[j], took)
			}
		}
	}
	return measured, nil
}

// median returns the middle of the values.
func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// ratio makes a figure of two interleaved sides.
func ratio(name string, bound float64, ours, base []time.Duration) figure {
	a, b := median(ours), median(base)
	return figure{
		name:   name,
		value:  float64(a) / float64(b),
		unit:   "x",
		bound:  bound,
		detail: fmt.Sprintf("%s against %s, medians of %d", short(a), short(b), len(ours)),
	}
}

// short prints a duration as a person reads it.
func short(d time.Duration) string {
	switch {
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d < 10*time.Second:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}

// timed returns how long a function took.
func timed(f func() error) (time.Duration, error) {
	begin := time.Now()
	err := f()
	return time.Since(begin), err
}
