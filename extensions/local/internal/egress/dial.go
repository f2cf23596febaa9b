// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package egress

// From what a sandbox connects to, to a connection of the host.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// dialTime bounds the whole of a dial, with the look-up of a name.
const dialTime = 15 * time.Second

// maxAddrs bounds the addresses of one name that are tried.
const maxAddrs = 8

// dialer decides about connections and makes those that are allowed.
type dialer struct {
	policy     policy
	names      *names
	lookup     func(ctx context.Context, name string) ([]netip.Addr, error)
	connect    func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error)
	interfaces func() ([]netip.Addr, error) // this machine's addresses
}

// refusal is a connection that the policy forbids.
type refusal struct{ target, reason string }

func (r *refusal) Error() string { return r.target + " refused: " + r.reason }

const notAllowed = "no entry of network.allow covers it"

// dial connects to what an address stands for.
func (d *dialer) dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	addr, port := to.Addr().Unmap(), int(to.Port())
	if covered(addr, linkPrefixes) {
		name, known := d.names.name(addr)
		if !known {
			return nil, &refusal{to.String(), "no name has this address"}
		}
		return d.dialName(ctx, name, port)
	}
	if !d.policy.allowsAddr(addr, port) {
		return nil, &refusal{to.String(), notAllowed}
	}
	return d.connect(ctx, netip.AddrPortFrom(addr, to.Port()))
}

// dialName looks a name up and connects to the first of its addresses that
// answers. The addresses are looked at here and dialled as they are, so there
// is no second look-up that could say something else.
func (d *dialer) dialName(ctx context.Context, name string, port int) (*net.TCPConn, error) {
	target := net.JoinHostPort(name, strconv.Itoa(port))
	if !d.policy.allowsName(name, port) {
		return nil, &refusal{target, notAllowed}
	}
	addrs, err := d.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	interfaces, err := d.interfaces()
	if err != nil {
		return nil, fmt.Errorf("find this machine's addresses: %w", err)
	}
	var refused []string
	var failed []error
	for _, addr := range addrs[:min(len(addrs), maxAddrs)] {
		if !d.policy.allowsTarget(addr, port, interfaces) {
			refused = append(refused, addr.String())
			continue
		}
		conn, err := d.connect(ctx, netip.AddrPortFrom(addr, uint16(port)))
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	if len(failed) == 0 && len(refused) > 0 {
		return nil, &refusal{target, fmt.Sprintf("the name leads to %s, an address of this machine or its networks, and no CIDR of network.allow covers it", strings.Join(refused, ", "))}
	}
	return nil, errors.Join(append(failed, ctx.Err())...)
}

// lookupOnHost asks the host's resolver. A name with a dot is looked up as it
// is and not below the host's search domains.
func lookupOnHost(ctx context.Context, name string) ([]netip.Addr, error) {
	if strings.Contains(name, ".") {
		name += "."
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// connectTime bounds one of several addresses.
const connectTime = 5 * time.Second

func connectFromHost(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: connectTime}
	return dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
}

// hostAddrs returns this machine's addresses.
func hostAddrs() (list []netip.Addr, err error) {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ip.IP); ok {
				list = append(list, addr.Unmap())
			}
		}
	}
	return list, err
}
