// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package egress

// What the allow-list allows. Nothing here looks at the network.

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// policy is a parsed allow-list.
type policy []sdk.Allow

// Validate refuses an entry that a gateway can't hold. The error says which
// one, as "network.allow[0]".
func Validate(allow []string) error {
	_, err := parse(allow)
	return err
}

func parse(allow []string) (policy, error) {
	var p policy
	for i, entry := range allow {
		at := fmt.Sprintf("network.allow[%d]", i)
		parsed, err := sdk.ParseAllow(entry)
		if err != nil {
			return nil, sdk.Invalid(at, "%v", err)
		}
		if parsed.IsAddress() && within(parsed.Prefix, linkPrefixes) {
			return nil, sdk.Invalid(at, "%.80q lies in %s, which stands for names inside a sandbox and is reserved for benchmarks outside", entry, linkPrefixes)
		}
		if isLocalhost(parsed.Name) {
			return nil, sdk.Invalid(at, "%.80q is the sandbox itself, from inside", entry)
		}
		p = append(p, parsed)
	}
	return p, nil
}

// isLocalhost reports whether a name stands for whoever looks it up.
func isLocalhost(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// resolves reports whether an entry names a name, on any port.
func (p policy) resolves(name string) bool {
	for _, entry := range p {
		if entry.CoversName(name) {
			return true
		}
	}
	return false
}

func (p policy) allowsName(name string, port int) bool {
	for _, entry := range p {
		if entry.CoversName(name) && entry.CoversPort(port) {
			return true
		}
	}
	return false
}

// allowsAddr reports whether an entry allows an address by itself. This
// machine's own addresses and cloud metadata are allowed only by an entry
// that is about nothing else: whoever writes 0.0.0.0/0 means the internet.
func (p policy) allowsAddr(addr netip.Addr, port int) bool {
	own := covered(addr, machinePrefixes)
	for _, entry := range p {
		if entry.CoversAddr(addr) && entry.CoversPort(port) && (!own || within(entry.Prefix, machinePrefixes)) {
			return true
		}
	}
	return false
}

// allowsTarget reports whether an allowed name may lead to an address. Whoever
// answers for the name chooses the address, so one that only means something
// on this machine or in its networks needs an entry of its own; interfaces are
// this machine's addresses.
func (p policy) allowsTarget(addr netip.Addr, port int, interfaces []netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	private := covered(addr, machinePrefixes) || covered(addr, privatePrefixes)
	for _, own := range interfaces {
		private = private || addr == own
	}
	return !private || p.allowsAddr(addr, port)
}

func covered(addr netip.Addr, prefixes []netip.Prefix) bool {
	for _, prefix := range prefixes {
		if prefix.Contains(addr.Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// within reports whether a block lies in one of others.
func within(inner netip.Prefix, outer []netip.Prefix) bool {
	for _, prefix := range outer {
		if prefix.Bits() <= inner.Bits() && prefix.Contains(inner.Addr()) {
			return true
		}
	}
	return false
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

var (
	// machinePrefixes mean this machine, its links, or the service that tells
	// a cloud machine its credentials.
	machinePrefixes = prefixes(
		"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "::/96", "fe80::/10", // Linux connects 0.0.0.0 and :: to itself
		"100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::254/128", "fd20:ce::254/128", // metadata of Alibaba Cloud, Azure, AWS, Google Cloud
	)
	// privatePrefixes mean something in this machine's networks only, hold an
	// IPv4 address that may do so (NAT64, 6to4, Teredo), or are nobody's.
	privatePrefixes = prefixes(
		"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
		"64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2002::/16", "fc00::/7", "fec0::/10", "ff00::/8",
	)
)
