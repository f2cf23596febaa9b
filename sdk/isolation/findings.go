// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The bounds of findings.
const (
	// MaxEvidence is the most lines of evidence of one finding; one more says
	// how many were left out.
	MaxEvidence = 16
	// MaxLine is the most that a line of evidence has, in bytes.
	MaxLine = 300
)

// Findings collects what the checks of one side come to. A check that nobody
// has said anything about is not among them.
type Findings struct {
	side  sdk.Side
	order []sdk.IsolationCheck
	made  map[sdk.IsolationCheck]*sdk.Finding
	left  map[sdk.IsolationCheck]int
}

// New returns the findings of a side, which are none.
func New(side sdk.Side) *Findings {
	return &Findings{side: side, made: map[sdk.IsolationCheck]*sdk.Finding{}, left: map[sdk.IsolationCheck]int{}}
}

// rank orders verdicts: a failure stands, and what is not known is not passed.
func rank(v sdk.Verdict) int {
	switch v {
	case sdk.VerdictFailed:
		return 2
	case sdk.VerdictUnknown:
		return 1
	}
	return 0
}

func (f *Findings) add(check sdk.IsolationCheck, verdict sdk.Verdict, line string) {
	found := f.made[check]
	if found == nil {
		found = &sdk.Finding{Check: check, Side: f.side, Verdict: verdict}
		f.made[check] = found
		f.order = append(f.order, check)
	}
	line = Line(line)
	switch {
	case rank(verdict) > rank(found.Verdict):
		// What speaks against it is what people have to read.
		found.Verdict, found.Evidence, f.left[check] = verdict, []string{line}, 0
	case rank(verdict) < rank(found.Verdict):
	case len(found.Evidence) == MaxEvidence:
		f.left[check]++
	default:
		found.Evidence = append(found.Evidence, line)
	}
}

// Passed notes what was looked at and was as it should be.
func (f *Findings) Passed(check sdk.IsolationCheck, line string) {
	f.add(check, sdk.VerdictPassed, line)
}

// Failed notes what speaks against a sandbox.
func (f *Findings) Failed(check sdk.IsolationCheck, line string) {
	f.add(check, sdk.VerdictFailed, line)
}

// Unknown notes what could not be looked at, and why.
func (f *Findings) Unknown(check sdk.IsolationCheck, line string) {
	f.add(check, sdk.VerdictUnknown, line)
}

// List returns the findings in the order in which they were begun.
func (f *Findings) List() []sdk.Finding {
	list := make([]sdk.Finding, 0, len(f.order))
	for _, check := range f.order {
		found := *f.made[check]
		found.Evidence = append([]string{}, found.Evidence...)
		if n := f.left[check]; n > 0 {
			found.Evidence = append(found.Evidence, "and "+strconv.Itoa(n)+" more")
		}
		list = append(list, found)
	}
	return list
}

// Line makes one bounded line that can be printed out of a text that may hold
// anything.
func Line(text string) string {
	var b strings.Builder
	for _, r := range text {
		if b.Len() >= MaxLine {
			b.WriteString("…")
			break
		}
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Quote returns a name from a sandbox as it may stand in a line of evidence:
// one that looks like a credential itself is left out.
func Quote(name string) string {
	if kind, ok := LooksSecret(name); ok {
		return "[a name that looks like " + kind + "]"
	}
	const most = 120
	if len(name) > most {
		name = name[:most] + "…"
	}
	return strconv.QuoteToGraphic(name)
}
