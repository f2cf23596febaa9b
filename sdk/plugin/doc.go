// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package plugin serves an extension from a process of its own, and is the
// host's client of one.
//
// An author's main is one call:
//
//	func main() { plugin.Serve(acme.New()) }
//
// The binary is named sandboxer-extension-NAME, where NAME is what Describe
// returns. Nothing has to be registered: what the extension can do beyond the
// required methods is announced from the interfaces of package sdk that its
// value implements.
//
// What the process may rely on:
//   - A call's context ends when the caller's does, when the host tells the
//     process to end (SIGTERM), and when the host is gone (its end of the pipe
//     that is standard input closes). Calls in flight then have five seconds for
//     a save step; after that, an extension with a method Close() error is
//     closed, and the process ends.
//   - Standard input is empty. What is written to standard output and error
//     goes to the host's log, and so does what is written to [Logger].
//   - The environment is an allow-list of the host's plus the names that the
//     backend's configuration lists. Configuration comes through Configure and
//     secrets through Create, never through arguments or the environment.
//
// The wire is gRPC over hashicorp/go-plugin, with mutual TLS by certificates
// that are made for one run. The protocol is internal/pb/extension.proto.
package plugin
