// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package e2btest plays E2B: the wire protocol and the states of the vendor's
// service, for tests and for whoever wants to try without an account.
//
// [Server] is one http.Handler for everything. A request with the headers
// E2b-Sandbox-Id and E2b-Sandbox-Port, or to a host named PORT-ID.domain, is
// for a sandbox; every other one is for the control plane, of which both
// generations are there (v1 and v2). Where the vendor's own clients can be
// pointed at one address, two variables do it: E2B_API_URL and
// E2B_SANDBOX_URL, both with the address of the server.
//
// What is real: validation, states and transitions, the evictor and the
// plan's maximum by an injected clock, stored images that outlive a sandbox,
// paging, processes that run, files, snapshots that carry files. What is not:
// a sandbox is a directory that commands are confined to by chroot in a mount
// namespace, which is no isolation; a snapshot carries files and no processes;
// network policy is remembered and not kept; templates are all the same root,
// and a build runs nothing.
//
// The behaviour follows E2B's published API specification, its server and
// envd code of August 2026, and the traffic of its npm client 2.51.0.
package e2btest
