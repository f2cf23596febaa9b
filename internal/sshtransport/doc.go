// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package sshtransport reaches hosts over SSH. There is one connection for
// each host and process, and everything is multiplexed on it: streams to unix
// sockets and TCP ports of the host, and commands that run there.
//
//	pool := sshtransport.NewPool(sshtransport.Options{})
//	host, err := pool.Host(address, config) // no network yet
//	conn, err := host.DialUnix(ctx, "/var/run/docker.sock")
//	result, err := host.Exec(ctx, sshtransport.ExecOptions{Command: []string{"uname", "-r"}})
//
// The connection is made when it is first needed. Keepalives notice a peer
// that went silent and close the connection, which ends everything that waits
// on it; the next use dials again. Only dials are ever repeated, and only when
// the server dropped the connection before authentication: what a caller asked
// for is done once or fails.
//
// The server's host key is always verified, against known_hosts or against a
// key in the configuration.
package sshtransport
