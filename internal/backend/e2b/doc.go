// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package e2b is the extension for E2B's cloud, with a key of the user's own.
//
// It speaks to the control plane (v2, and v1 where v2 is missing) and to envd,
// the program in each sandbox that runs commands and moves files, over plain
// HTTP and without a client library of the vendor.
//
// What shapes it: metadata is set at the create and never changes, so the only
// part of a lease that the vendor keeps is the end of a running sandbox. The
// rest (generation, claim, the deadline of a paused sandbox) is in a record in
// the state directory, see record.go, and the document says so. A create is
// not repeatable, so one without an answer is searched for by a nonce in its
// metadata. Absence from a listing proves nothing. A sandbox that was ever
// paused or snapshotted leaves a stored image behind when its time is over,
// until it is deleted.
package e2b
