// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package dockeracc holds the acceptance tests of the Docker backend: the
// provider's own binary, a real Terraform and a real Docker Engine.
package dockeracc
