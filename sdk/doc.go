// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package sdk is the contract between sandboxer and an extension: code that
// speaks to one kind of place where sandboxes live (an embedded runtime, a
// container engine, a cloud).
//
// An extension implements [Extension]. What it can do beyond that (run
// commands, copy files, snapshot) it says by implementing one of the small
// optional interfaces ([Execer], [Copier], [Logger], [Pauser], [Preparer],
// [Snapshotter], [PortableSnapshotter]) and by the classes in its capability document. Nothing has
// a default that flatters: a feature that the document leaves out counts as
// [ClassUnsupported].
//
// A host finds an optional ability with [As], whether the extension is in
// process or not: of what sdk/plugin hands out for a process, it finds exactly
// the interfaces that the extension announced when it was connected.
//
// The package imports nothing of sandboxer's own and can be used from any
// module. Package sdk/plugin serves an extension from a process of its own.
package sdk
