// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Probe implements [sdk.Extension].
func (e *Extension) Probe(ctx context.Context, _ sdk.ProbeOptions) (sdk.ProbeResult, error) {
	result := sdk.ProbeResult{Capabilities: staticCapabilities()}
	_, f, err := e.ask(ctx)
	if ctx.Err() != nil {
		return result, ctx.Err()
	}
	if err == nil {
		_, err = e.guest(f.arch)
	}
	if err != nil {
		result.Reason = err.Error()
		var said *sdk.Error
		if errors.As(err, &said) && said.Advice != "" {
			result.Reason, result.Advice = strings.TrimSuffix(result.Reason, " ("+said.Advice+")"), said.Advice
		}
		return result, nil
	}
	result.Usable, result.Capabilities, result.Instance = true, capabilities(f), f.id
	result.Details = []sdk.Detail{
		{Name: "host", Value: e.host.String() + ", from " + e.host.source},
		{Name: "engine", Value: f.name + ", " + f.version},
		{Name: "storage", Value: strings.TrimSpace(f.driver + " " + f.backing)},
		{Name: "reaper", Value: e.settings.Reaper},
	}
	e.mu.Lock()
	remote := e.remote
	e.mu.Unlock()
	if remote != nil {
		result.Details = append(result.Details, sdk.Detail{Name: "connection", Value: remote.String()})
	}
	if f.rootless {
		result.Details = append(result.Details, sdk.Detail{Name: "rootless", Value: "yes"})
	}
	return result, nil
}
