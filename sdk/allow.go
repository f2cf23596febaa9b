// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Allow is one entry of [Network.Allow]: a name or a block of addresses, and
// a port.
type Allow struct {
	// Name is a DNS name in lower case, or "*." and a name, which stands for
	// every name below that one and not for itself. Empty for addresses.
	Name string
	// Prefix is a block of addresses, or one of them. Not valid for a name.
	Prefix netip.Prefix
	// Port is a TCP port; 0 stands for every one.
	Port int
}

// ParseAllow reads an entry of an allow-list: a DNS name, "*." and a name, an
// address, or a block of them in CIDR notation, each with ":port" or, for
// every port, without. An IPv6 address or block that has a port stands in
// brackets: "[2001:db8::/32]:443". The error says what is wrong with it.
func ParseAllow(entry string) (Allow, error) {
	host, port, err := splitAllow(entry)
	if err != nil {
		return Allow{}, fmt.Errorf("%.80q %w", entry, err)
	}
	allow := Allow{Port: port}
	if allow.Prefix, err = parsePrefix(host); err != nil {
		return Allow{}, fmt.Errorf("%.80q %w", entry, err)
	}
	if allow.Prefix.IsValid() {
		return allow, nil
	}
	if allow.Name = strings.ToLower(host); !validName(strings.TrimPrefix(allow.Name, "*.")) {
		return Allow{}, fmt.Errorf("%.80q is not host:port, CIDR:port or *.domain:port", entry)
	}
	return allow, nil
}

// splitAllow returns the two halves of an entry; the port is 0 without one.
func splitAllow(entry string) (host string, port int, err error) {
	if strings.Contains(entry, "://") {
		return "", 0, errors.New("is a URL; leave out the scheme and the path")
	}
	host, digits, hasPort := entry, "", false
	switch inner, bracketed := strings.CutPrefix(entry, "["); {
	case bracketed:
		var rest string
		var closed bool
		if host, rest, closed = strings.Cut(inner, "]"); !closed {
			return "", 0, errors.New("has no closing bracket")
		}
		if !strings.Contains(host, ":") {
			return "", 0, errors.New("has brackets around what is not IPv6")
		}
		if digits, hasPort = strings.CutPrefix(rest, ":"); !hasPort && rest != "" {
			return "", 0, errors.New("goes on after the bracket; a prefix length stands inside: [2001:db8::/32]:443")
		}
	case strings.Count(entry, ":") == 1: // with more it is an IPv6 address
		host, digits, hasPort = strings.Cut(entry, ":")
	}
	if !hasPort {
		return host, 0, nil
	}
	number, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || number == 0 || digits[0] == '0' {
		return "", 0, errors.New("has no valid port: 1 to 65535, or no colon for every port")
	}
	return host, int(number), nil
}

// parsePrefix returns the block that a host is. For a name it is not valid.
func parsePrefix(host string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(host)
	if err != nil {
		addr, notAddr := netip.ParseAddr(host)
		if notAddr != nil {
			if strings.ContainsAny(host, "/:%") {
				return netip.Prefix{}, errors.New("has no valid address or CIDR")
			}
			return netip.Prefix{}, nil
		}
		if addr.Zone() != "" {
			return netip.Prefix{}, errors.New("has a zone, which means nothing in a sandbox")
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, errors.New("is an IPv4 address written as IPv6; write it as IPv4")
	}
	if masked := prefix.Masked(); masked != prefix {
		return netip.Prefix{}, fmt.Errorf("has bits set beyond its prefix length; %s is the block", masked)
	}
	return prefix, nil
}

// validName reports whether a name in lower case can be a DNS name. One that
// ends in a number is a mistyped address.
func validName(name string) bool {
	labels := strings.Split(name, ".")
	for i, label := range labels {
		last := i == len(labels)-1
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			letter, digit := 'a' <= c && c <= 'z', '0' <= c && c <= '9'
			if !letter && !digit && c != '-' && (c != '_' || last) {
				return false
			}
		}
	}
	top := labels[len(labels)-1]
	return len(name) <= 253 && strings.Trim(top, "0123456789") != ""
}

// IsAddress reports whether the entry is about addresses, not names.
func (a Allow) IsAddress() bool { return a.Prefix.IsValid() }

// CoversPort reports whether the entry is about a port.
func (a Allow) CoversPort(port int) bool { return a.Port == 0 || a.Port == port }

// CoversName reports whether the entry is about a name, which is in lower
// case and has no dot at its end.
func (a Allow) CoversName(name string) bool {
	if domain, wildcard := strings.CutPrefix(a.Name, "*"); wildcard {
		return len(name) > len(domain) && strings.HasSuffix(name, domain)
	}
	return a.Name != "" && a.Name == name
}

// CoversAddr reports whether the entry is about an address.
func (a Allow) CoversAddr(addr netip.Addr) bool {
	return a.Prefix.IsValid() && a.Prefix.Contains(addr.Unmap().WithZone(""))
}
