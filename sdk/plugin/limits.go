// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import "time"

// Bounds on what one side takes from the other. An extension is someone
// else's program: what it sends is bounded in size and checked before use.
const (
	// maxMessage bounds one message, in bytes, on both sides. A profile with
	// files in it and a map of secrets fit.
	maxMessage = 16 << 20
	// chunkSize bounds the data of one frame of a stream, in bytes. It is
	// what one HTTP/2 flow-control window of a fresh stream holds.
	chunkSize = 64 << 10
	// maxItems bounds the length of a listing.
	maxItems = 100_000
	// maxListing bounds the size of a listing on the wire, in bytes.
	maxListing = 256 << 20
	// maxEntries bounds any other list or map in an answer.
	maxEntries = 4096
	// maxIdentity bounds an identity's JSON, in bytes. Label stores of
	// backends are smaller by far.
	maxIdentity = 256 << 10
	// maxText bounds a text for people, in bytes; what is longer is cut.
	maxText = 16 << 10
	// maxRetryAfter bounds the wait that an extension may wish for.
	maxRetryAfter = 24 * time.Hour
)

// How long things may take once their end was asked for.
const (
	// cancelGrace is how long a cancelled call may go on before the host
	// stops waiting for its answer.
	cancelGrace = 5 * time.Second
	// saveGrace is how long calls in flight may go on in an extension that
	// was told to end, or whose host is gone, and how long Close may take.
	saveGrace = 5 * time.Second
	// flushGrace is how long the last answers may take to leave.
	flushGrace = time.Second
)
