// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"slices"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

func (c *client) Inspect(ctx context.Context, opts sdk.InspectOptions) (sdk.InspectResult, error) {
	resp, err := unary(ctx, c, "Inspect", c.wire.Inspect, &pb.InspectRequest{
		Target: encodeTarget(opts.Target), Canary: opts.Canary, CanaryValue: []byte(string(opts.CanaryValue)),
	})
	if err != nil {
		return sdk.InspectResult{}, err
	}
	d := new(decoder)
	return checked(c, "Inspect", d, sdk.InspectResult{Findings: d.findings(resp.GetFindings())})
}

// findings reads what checks came to. A check, side or verdict that is not
// known here makes the whole answer nonsense: what it means is not known, and
// it may be a failure.
func (d *decoder) findings(list []*pb.Finding) []sdk.Finding {
	d.entries("findings", len(list))
	var out []sdk.Finding
	for _, f := range list {
		found := sdk.Finding{Check: sdk.IsolationCheck(f.GetCheck()), Side: sdk.Side(f.GetSide()), Verdict: sdk.Verdict(f.GetVerdict()), Evidence: []string{}}
		if !slices.Contains(found.Check.Sides(), found.Side) {
			d.fail("findings", "no check %.40q from the side %.40q", f.GetCheck(), f.GetSide())
		}
		if !found.Verdict.Valid() {
			d.fail("findings", "no verdict %.40q", f.GetVerdict())
		}
		d.entries("findings.evidence", len(f.GetEvidence()))
		for _, line := range f.GetEvidence() {
			found.Evidence = append(found.Evidence, cut(line))
		}
		out = append(out, found)
	}
	return out
}

func encodeFindings(list []sdk.Finding) []*pb.Finding {
	out := make([]*pb.Finding, len(list))
	for i, f := range list {
		out[i] = &pb.Finding{Check: string(f.Check), Side: string(f.Side), Verdict: string(f.Verdict), Evidence: encodeTexts(f.Evidence)}
	}
	return out
}
