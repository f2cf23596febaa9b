// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package egress is the way out of a sandbox with an allow-list.
//
// The sandbox gets a network namespace whose only interface beside loopback
// is one end of a veth pair. The other end lies in a second namespace, where
// no address, no route and no process is: what comes out there is read, frame
// by frame, by a TCP/IP stack inside the supervisor, the gateway. It ends each
// TCP connection, decides, and makes one of its own from the host. So there
// is no path on which a packet of the sandbox could leave without the gateway
// carrying it, and none before the gateway is there; nothing is added to the
// host's own network, neither interface nor route nor rule; and with the
// supervisor all of it is gone.
//
//	sandbox's stack ── eth0 ═ veth ═ gw0 ── gateway ── sockets of the host
//	  namespace 1 ─────────┘         └ namespace 2 ┘    host's namespace
//
// Why a stack of our own and not the kernel's: it takes every address and
// port without a packet filter, which a host may not have; it decides on a
// connection before it is accepted, so that what is refused looks refused
// from inside; and it works the same for an unprivileged user. Why veth and
// not TUN/TAP: /dev/net/tun is closed to unprivileged users on many hosts.
//
// Names are the gateway's own: see names and nameServer. Neither TLS server
// names nor Host headers count for any decision, so there is nothing to be
// gained from lying in them: a connection goes to where the host's resolver
// says that the allowed name is.
package egress

import "net/netip"

// Config is what a gateway is made from.
type Config struct {
	Allow []string // as in the profile; see Validate
	// Names have their addresses already, in this order: the sandbox begins
	// as the snapshot of one that resolved them.
	Names []string
}

// The addresses on the link. 198.18.0.0/15 is set aside for benchmarks
// (RFC 2544), so no host of the internet and hardly one of a private network
// has one; the IPv6 block is a random one of the local range.
var (
	gateway4  = netip.MustParseAddr("198.18.0.1")
	sandbox4  = netip.MustParseAddr("198.18.0.2")
	firstName = netip.MustParseAddr("198.18.1.0") // of the addresses that stand for names
	gateway6  = netip.MustParseAddr("fd4a:6b1c:e0d2:7c35::1")
	sandbox6  = netip.MustParseAddr("fd4a:6b1c:e0d2:7c35::2")

	linkPrefixes = prefixes("198.18.0.0/15", "fd4a:6b1c:e0d2:7c35::/64")
)

const (
	linkBits4 = 30
	linkBits6 = 64
	dnsPort   = 53
)

// ResolvConf is what a sandbox's /etc/resolv.conf has to say.
const ResolvConf = "nameserver 198.18.0.1\n"
