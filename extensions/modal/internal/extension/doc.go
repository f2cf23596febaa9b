// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package extension is the extension for Modal: sandboxes in the vendor's
// cloud, with a token of one's own.
//
// The vendor's Go client does what it does well: connections, tokens, images,
// commands and their streams. What it hides (the tags, times and lifetimes of a
// listing, how a sandbox has ended) is asked for with its wire types, and all of
// that is in client.go: the vendor does not promise its wire to anybody.
package extension
