// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The network of a sandbox with an allow-list. It is there before the sandbox
// is, after a restore as after a create.

import (
	"fmt"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/egress"
)

func (s *supervisor) openGateway() error {
	log, err := newLog(NetworkLogName, NetworkLogLimit)
	if err != nil {
		return err
	}
	if s.gateway, err = egress.Open(*s.config.Egress, log); err != nil {
		return fmt.Errorf("network.allow: %w", err)
	}
	return nil
}

// inNetwork runs something where the sandbox's network is.
func (s *supervisor) inNetwork(run func() error) error {
	if s.gateway == nil {
		return run()
	}
	return s.gateway.Run(run)
}
