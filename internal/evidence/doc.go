// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package evidence holds receipts: signed statements that a scope was
// enumerated and found empty, or what was found. A receipt is an in-toto
// Statement v1 in a DSSE envelope with an ed25519 signature, so that it can be
// checked without this program too.
//
// It also holds the verdicts on credential isolation: what the checks of a
// profile came to on a backend, and until when that holds.
//
// DSSE is written out here: what is needed of it is one encoding and one
// signature by the standard library, less than a dependency would cost.
package evidence
