// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package egress

// The two network namespaces and the link between them.

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// link is a veth pair between two namespaces. The file of the sandbox's
// namespace and the socket on the gateway's end are all that keeps them.
type link struct {
	sandbox *os.File         // the sandbox's namespace
	socket  int              // a packet socket on the gateway's end
	address net.HardwareAddr // of the gateway's end
	mtu     int
	ipv6    bool // the kernel has it
}

const (
	sandboxLink = "eth0"
	gatewayLink = "gw0"
)

// newLink makes the namespaces and the link. It needs the rights over network
// namespaces that a process has in a user namespace of its own.
func newLink() (l *link, err error) {
	l = &link{socket: -1}
	defer func() {
		if err != nil {
			l.close()
			l = nil
		}
	}()
	if err := inNamespace(nil, func() (err error) {
		l.sandbox, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		return l, fmt.Errorf("make a network namespace: %w", err)
	}
	if err := inNamespace(nil, l.openGateway); err != nil {
		return l, fmt.Errorf("make the gateway's end of the link: %w", err)
	}
	if err := inNamespace(l.sandbox, l.openSandbox); err != nil {
		return l, fmt.Errorf("make the sandbox's end of the link: %w", err)
	}
	return l, nil
}

func (l *link) close() {
	if l.sandbox != nil {
		l.sandbox.Close()
	}
	if l.socket >= 0 {
		unix.Close(l.socket)
	}
}

// inNamespace does something on a thread in a network namespace; nil is a new
// one. The thread ends afterwards: it must not carry anything else.
func inNamespace(namespace *os.File, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		var err error
		if namespace == nil {
			if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
				err = fmt.Errorf("make a network namespace (see /proc/sys/user/max_net_namespaces): %w", err)
			}
		} else {
			err = os.NewSyscallError("setns", unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET))
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// openGateway makes the pair, puts its other end in the sandbox's namespace,
// and opens the socket on ours.
func (l *link) openGateway() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = gatewayLink
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: sandboxLink, PeerNamespace: netlink.NsFd(l.sandbox.Fd())}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	made, err := netlink.LinkByName(gatewayLink)
	if err != nil {
		return err
	}
	l.address, l.mtu = made.Attrs().HardwareAddr, made.Attrs().MTU
	// Without a protocol the socket receives nothing until it is bound to the
	// interface.
	if l.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return os.NewSyscallError("packet socket", err)
	}
	for option, value := range map[int]int{
		unix.PACKET_VNET_HDR:        1, // whole segments of up to 64 KiB, as the sandbox's stack sends them
		unix.PACKET_IGNORE_OUTGOING: 1,
	} {
		if err := unix.SetsockoptInt(l.socket, unix.SOL_PACKET, option, value); err != nil {
			return os.NewSyscallError("packet socket option", err)
		}
	}
	// The kernel must not answer for its end: the gateway does.
	err = os.WriteFile("/proc/sys/net/ipv6/conf/"+gatewayLink+"/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("switch IPv6 off on %s: %w", gatewayLink, err)
	}
	// Bound to an interface that is down, it would report that as an error later.
	if err := netlink.LinkSetUp(made); err != nil {
		return fmt.Errorf("bring up %s: %w", gatewayLink, err)
	}
	bound := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: made.Attrs().Index}
	if err := unix.Bind(l.socket, bound); err != nil {
		return os.NewSyscallError("bind the packet socket", err)
	}
	return nil
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// openSandbox gives the sandbox's end its addresses and routes. The runtime
// takes them over into the sandbox's own stack and off the interface.
func (l *link) openSandbox() error {
	for _, name := range []string{"lo", sandboxLink} {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := netlink.LinkSetUp(device); err != nil {
			return fmt.Errorf("bring up %s: %w", name, err)
		}
	}
	device, err := netlink.LinkByName(sandboxLink)
	if err != nil {
		return err
	}
	if err := configure(device, sandbox4, linkBits4, gateway4); err != nil {
		return err
	}
	err = configure(device, sandbox6, linkBits6, gateway6)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // the kernel has no IPv6, or has it switched off
	}
	l.ipv6 = err == nil
	return err
}

func configure(device netlink.Link, addr netip.Addr, bits int, gateway netip.Addr) error {
	address := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}}
	if addr.Is6() {
		address.Flags = unix.IFA_F_NODAD // nobody else is there, and checking takes a second
	}
	if err := netlink.AddrAdd(device, address); err != nil {
		return fmt.Errorf("give %s the address %s: %w", sandboxLink, addr, err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("add a route by %s: %w", gateway, err)
	}
	return nil
}
