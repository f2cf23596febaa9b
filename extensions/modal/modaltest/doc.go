// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package modaltest plays Modal: the wire protocol and the states of the
// vendor's service, for tests and for whoever wants to try without an account.
//
// [Server] is one gRPC server in plain text that speaks both of the vendor's
// services: the control plane (modal.client.ModalClient) and the router that
// commands and files go through (modal.task_command_router.TaskCommandRouter).
// The vendor's own clients are pointed at it by MODAL_SERVER_URL, which has to
// be [Server.URL]: they dial the router in plain text only for a loopback
// address.
//
// What is real: validation, states and transitions, both generations of
// sandboxes, the end of a lifetime and of an idle time by an injected clock,
// names, tags, pages, processes that run, their streams, files, filesystem
// snapshots that carry files and their retention. What is not: a sandbox is a
// directory that commands are confined to by chroot in a mount namespace,
// which is no isolation; limits and network policy are remembered and not
// kept; images are all the same root and a build runs nothing; a memory
// snapshot carries files and no processes; a tunnel is the port itself.
//
// The behaviour follows Modal's Go and npm clients 0.11.1: what they send, what
// they refuse to do without, and what their own tests expect. Where those say
// nothing it is a choice, named in the comments.
package modaltest
