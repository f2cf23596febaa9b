// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The checks of this file use no regular expressions: an extension's program
// may start itself many times for one sandbox, and compiling them each time was
// measured as a sixth of a start.

// Check refuses, on its attribute, what no extension can make: a sandbox
// without an id, a fleet or a deadline that is still to come.
func (o CreateOptions) Check(now time.Time) error {
	switch {
	case !IsSandboxID(o.ID):
		return Invalid("id", "%.80q is not a sandbox id", o.ID)
	case o.Identity.Fleet == "":
		return Invalid("fleet", "no fleet is named")
	case o.ExpiresAt.IsZero():
		return Invalid("ttl", "there is no sandbox without a deadline")
	case !o.ExpiresAt.After(now):
		return Invalid("ttl", "the deadline %s has passed", o.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return nil
}

// IsSandboxID reports whether s has the form of a sandbox's id.
func IsSandboxID(s string) bool { return isID(s, "sbx-") }

// IsSnapshotID reports whether s has the form of a snapshot's id.
func IsSnapshotID(s string) bool { return isID(s, "snp-") }

func isID(s, prefix string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && len(rest) == 20 && strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// IsName reports whether s is a word of at most so many letters, digits, _ .
// and - that begins with none of the last two, as ports and secrets are named.
func IsName(s string, most int) bool {
	if s == "" || len(s) > most || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
		default:
			return false
		}
	}
	return true
}

// sizeUnits are the suffixes of a size: binary with an i, decimal without.
var sizeUnits = []struct {
	suffix string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1},
}

// ParseSize reads a size with a unit ("512MiB", "2GB", "4096B") and returns
// bytes, more than zero.
func ParseSize(s string) (int64, error) {
	for _, unit := range sizeUnits {
		number, ok := strings.CutSuffix(s, unit.suffix)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		bytes := value * unit.factor
		if err != nil || math.IsNaN(bytes) || bytes < 1 || bytes > math.MaxInt64/2 {
			break
		}
		return int64(bytes), nil
	}
	return 0, fmt.Errorf("%.80q is not a size (want a number and a unit, for example \"512MiB\" or \"2GB\")", s)
}
