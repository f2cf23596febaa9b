// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"strings"
)

// DidYouMean returns ` (did you mean "x"?)` for the known name that is
// nearest to a wrong one, or nothing when none is near.
func DidYouMean(wrong string, known []string) string {
	best, distance := "", 3
	if len(wrong) <= 3 {
		distance = 2
	}
	for _, name := range known {
		if d := edits(strings.ToLower(wrong), name); d < distance {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// edits returns the Levenshtein distance. Names are short: what is longer
// than any of them is far from all of them.
func edits(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
