// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

import "github.com/sand-boxer/terraform-provider-sandboxer/sdk"

// Metadata is what a sandbox that is made from options carries.
func (e *Extension) Metadata(opts sdk.CreateOptions) (map[string]string, error) {
	o, err := e.objectFor(opts)
	return o.metadata("0123456789abcdef"), err
}
