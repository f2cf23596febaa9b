// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package conformancetest runs the conformance kit as a Go test. It is apart
// from the kit so that a program that runs the kit does not link package
// testing.
package conformancetest

import (
	"context"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
)

// Test makes each rule a subtest, which run in parallel, and returns the
// report. A rule that does not apply, or that the suite leaves out, passes as
// a test: the report, which is logged, counts it as what it is.
//
// Rules in known are expected to fail, each for the reason given: a test of
// an extension with a fault that is known is green, and turns red when the
// fault is gone and still in the list.
func Test(t *testing.T, suite conformance.Suite, known map[string]string) conformance.Report {
	t.Helper()
	ctx := t.Context()
	kit, err := conformance.Open(ctx, suite)
	if err != nil {
		t.Fatal(err)
	}
	rules := kit.Rules()
	rows := make([]conformance.Row, len(rules))
	t.Run("rule", func(t *testing.T) {
		for i, rule := range rules {
			// A rule with no row was filtered out by -run.
			t.Run(rule.ID, func(t *testing.T) {
				t.Parallel()
				rows[i] = kit.Check(ctx, rule)
				judge(t, rows[i], known[rule.ID])
			})
		}
	})
	leftovers := kit.Close(context.WithoutCancel(ctx))
	for _, left := range leftovers {
		t.Errorf("left behind: %s", left)
	}
	report := kit.Report(rows, leftovers)
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Error(err)
	}
	t.Log("\n" + text.String())
	return report
}

func judge(t *testing.T, row conformance.Row, known string) {
	t.Helper()
	switch row.Outcome {
	case conformance.Failed, conformance.Errored:
		if known != "" && row.Outcome == conformance.Failed {
			t.Logf("fails as is known: %s", known)
			return
		}
		t.Errorf("%s: %s\n%s", row.Outcome, row.Reason, strings.Join(row.Evidence, "\n"))
	default:
		if known != "" {
			t.Errorf("%s, and the list of known faults says: %s", row.Outcome, known)
		}
	}
}
