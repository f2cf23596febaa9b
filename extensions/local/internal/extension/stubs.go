//go:build linux

package extension

import (
	"context"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (e *Extension) Probe(context.Context, sdk.ProbeOptions) (sdk.ProbeResult, error) {
	return sdk.ProbeResult{}, nil
}
