// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package saasstub is an extension for a cloud that does not exist. It is
// the worked example for authors of extensions, the fast backend of our own
// tests, and a vendor that lies on demand.
//
// [Server] plays the vendor: boxes and snapshots in memory, or in a file that
// several processes share, behind an interface with the shape of a vendor's
// API: opaque ids, tags, versions for conditional updates, pages, statuses of
// HTTP. Its clock is injected and [Server.Inject] makes it fail. [New] gives
// the extension that speaks to it, and that is the half to read as an
// example: extension.go first, then one file for each group of verbs.
//
// A box runs no program. Its commands are a few words of an interpreter
// (see shell.go) on files in memory: enough to test faces, not a sandbox.
package saasstub
