// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Record writes a generation of a lease as a create does.
func (e *Extension) Record(ctx context.Context, identity sdk.Identity, lease sdk.Lease) error {
	eng, err := e.connect()
	if err != nil {
		return err
	}
	_, _, _, err = e.createRecord(ctx, eng, identity, lease, roleLease)
	return err
}
