// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Outcome is what came of a rule. See the package's documentation.
type Outcome string

// The outcomes.
const (
	Passed        Outcome = "passed"
	Failed        Outcome = "failed"
	NotApplicable Outcome = "not_applicable"
	SuiteExcluded Outcome = "suite_excluded"
	Errored       Outcome = "error"
)

func outcomes() []Outcome {
	return []Outcome{Passed, Failed, Errored, NotApplicable, SuiteExcluded}
}

// Claim is what the document says about a feature that a rule is about.
type Claim struct {
	Feature sdk.Feature `json:"feature"`
	Class   sdk.Class   `json:"class"`
}

// Row is the result of one rule.
type Row struct {
	ID      string  `json:"id"`
	Title   string  `json:"title"`
	Claims  []Claim `json:"claims"`
	Outcome Outcome `json:"outcome"`
	// Reason says why, when the rule neither passed nor failed.
	Reason string `json:"reason,omitempty"`
	// Evidence is what was seen, in order. The last of a failed rule is what
	// broke it.
	Evidence []string      `json:"evidence"`
	Duration time.Duration `json:"duration_ns"`
}

// Report is the result of a run.
type Report struct {
	Extension string `json:"extension"`
	Version   string `json:"version"`
	// Document is the static capability document, Digest what it is known by:
	// sha256 of its JSON, in which features are sorted.
	Document sdk.Capabilities `json:"capabilities"`
	Digest   string           `json:"capabilities_digest"`
	// Probed is the document for the machine that the run was made on, which
	// is what the rules are held against.
	Probed       sdk.Capabilities `json:"probed_capabilities"`
	ProbedDigest string           `json:"probed_capabilities_digest"`
	Began        time.Time        `json:"began"`
	Duration     time.Duration    `json:"duration_ns"`
	Rows         []Row            `json:"rules"` // in the order of [Rules]
	Counts       map[Outcome]int  `json:"counts"`
	// Unseen are the features that are claimed and that no rule saw.
	Unseen []Claim `json:"claimed_and_unseen"`
	// Leftovers is what the run made and could not remove, or what was there
	// after a destroy that said otherwise.
	Leftovers []string `json:"leftovers"`
}

// Failed reports whether the extension does not conform: a rule failed, could
// not be tried, or something was left behind.
func (r Report) Failed() bool {
	return r.Counts[Failed] > 0 || r.Counts[Errored] > 0 || len(r.Leftovers) > 0
}

// Row returns the row of a rule.
func (r Report) Row(id string) (Row, bool) {
	for _, row := range r.Rows {
		if row.ID == id {
			return row, true
		}
	}
	return Row{}, false
}

// IDs returns the rules with an outcome, in order.
func (r Report) IDs(outcome Outcome) (ids []string) {
	for _, row := range r.Rows {
		if row.Outcome == outcome {
			ids = append(ids, row.ID)
		}
	}
	return ids
}

// finish counts, and finds what was claimed and not seen.
func (r *Report) finish() {
	r.Counts = map[Outcome]int{}
	seen := map[sdk.Feature]bool{}
	for _, row := range r.Rows {
		r.Counts[row.Outcome]++
		for _, claim := range row.Claims {
			if row.Outcome == Passed || row.Outcome == Failed {
				seen[claim.Feature] = true
			}
		}
	}
	r.Unseen = []Claim{}
	for _, feature := range sdk.Features() {
		if class := r.Probed.Of(feature).Class; class != sdk.ClassUnsupported && !seen[feature] {
			r.Unseen = append(r.Unseen, Claim{feature, class})
		}
	}
}

// WriteText writes the report for people: the verdict, then each rule on one
// line, with what was seen under those that did not pass.
func (r Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	verdict := "conforms"
	if r.Failed() {
		verdict = "does not conform"
	}
	fmt.Fprintf(&b, "%s %s %s\ncapabilities %s", r.Extension, r.Version, verdict, r.Digest)
	if r.ProbedDigest != r.Digest {
		fmt.Fprintf(&b, "\non this machine %s", r.ProbedDigest)
	}
	b.WriteString("\n\n")
	width := 0
	for _, row := range r.Rows {
		width = max(width, len(row.ID))
	}
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "%-14s  %6.2fs  %-*s  %s\n", row.Outcome, row.Duration.Seconds(), width, row.ID, row.Title)
		if row.Reason != "" {
			fmt.Fprintf(&b, "%25s%s\n", "", row.Reason)
		}
		if row.Outcome == Failed || row.Outcome == Errored {
			for _, seen := range row.Evidence {
				fmt.Fprintf(&b, "%25s- %s\n", "", strings.ReplaceAll(seen, "\n", "\n"+strings.Repeat(" ", 27)))
			}
		}
	}
	b.WriteByte('\n')
	for _, claim := range r.Unseen {
		fmt.Fprintf(&b, "claimed as %s and seen by no rule: %s\n", claim.Class, claim.Feature)
	}
	for _, left := range r.Leftovers {
		fmt.Fprintf(&b, "left behind: %s\n", left)
	}
	for _, outcome := range outcomes() {
		fmt.Fprintf(&b, "%d %s  ", r.Counts[outcome], outcome)
	}
	fmt.Fprintf(&b, "in %s\n", r.Duration.Round(time.Millisecond))
	_, err := w.Write(b.Bytes())
	return err
}

// digest is what a document is known by. JSON sorts the features.
func digest(document sdk.Capabilities) string {
	encoded, _ := json.Marshal(document) // a map of strings always encodes
	return sum(encoded)
}
