// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package modalcheck proves that the server of extensions/modal/modaltest is
// Modal for the vendor's own clients, the one for npm and the one for Go, both
// 0.11.1: each row of rows.json is something that was recorded with them, the
// calls that it makes of the service and what it gives.
//
// It has only a test, which needs Node and npm: `make test-clouds`. It is a
// module of its own because the client for Go is one.
package modalcheck
