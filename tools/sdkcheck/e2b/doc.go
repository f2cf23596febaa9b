// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package e2bcheck proves that the server of internal/backend/e2b/e2btest is
// E2B for the vendor's own client: each row of rows.json is a call that was
// recorded against the vendor's, the requests that it makes and what it gives.
// required.json has the fields that answers have to have, which the client does
// not look at.
//
// It has only a test, which needs Node and npm: `make test-clouds`.
package e2bcheck
