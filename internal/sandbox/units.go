// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseDuration reads a Go duration that is longer than zero.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration (want for example \"45m\" or \"1h30m\"; days are 24h)", clip(s))
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q is not longer than zero", clip(s))
	}
	return d, nil
}

// units are the suffixes of a size: binary with an i, decimal without.
var units = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1},
}

// ParseSize reads a size with a unit ("512MiB", "2GB", "4096B") and returns
// bytes, more than zero.
func ParseSize(s string) (int64, error) {
	for _, unit := range units {
		number, ok := strings.CutSuffix(s, unit.suffix)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		bytes := value * float64(unit.factor)
		if err != nil || math.IsNaN(bytes) || bytes < 1 || bytes > math.MaxInt64/2 {
			break
		}
		return int64(bytes), nil
	}
	return 0, fmt.Errorf("%q is not a size (want a number and a unit, for example \"512MiB\" or \"2GB\")", clip(s))
}
