// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"net"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Forward implements [sdk.Forwarder]. A port that is published on loopback of
// a host behind ssh:// is reached through the SSH connection, all others by
// themselves.
func (e *Extension) Forward(ctx context.Context, opts sdk.ForwardOptions) (sdk.ForwardResult, error) {
	_, _, _, s, err := e.find(ctx, opts.Target)
	if err != nil {
		return sdk.ForwardResult{}, err
	}
	endpoint, found := s.Endpoints[opts.Port]
	if !found {
		return sdk.ForwardResult{}, sdk.Errorf(sdk.ErrNotFound, "sandbox %s publishes no port %q: it is %s", clip(opts.Target.ID), clip(opts.Port), s.Status)
	}
	e.mu.Lock()
	remote := e.remote
	e.mu.Unlock()
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return sdk.ForwardResult{}, err
	}
	if remote == nil || host != loopback {
		return sdk.ForwardResult{Address: endpoint}, nil
	}
	return sdk.ForwardResult{
		Address: endpoint,
		Dial:    func(ctx context.Context) (net.Conn, error) { return remote.host.DialTCP(ctx, endpoint) },
	}, nil
}
