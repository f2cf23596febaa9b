// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && (amd64 || arm64) && go1.26 && !go1.27

package egress

// The gateway: a TCP/IP stack on one end of the link.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// The bounds of what a sandbox can make its supervisor hold.
const (
	maxConnections = 512
	maxPending     = 128       // connections that are being decided or dialled
	bufferSize     = 256 << 10 // of one direction of one connection
	maxSegment     = 65536
)

const nic = 1

// Gateway is the only way out of a sandbox.
type Gateway struct {
	link    *link
	stack   *stack.Stack
	names   *names
	dialer  *dialer
	server  *nameServer
	journal *journal
	slots   chan struct{}
}

// Open makes the namespaces, the link and the gateway. The gateway lives as
// long as the process. What it refuses is written to log.
func Open(c Config, log io.Writer) (*Gateway, error) {
	policy, err := parse(c.Allow)
	if err != nil {
		return nil, err
	}
	if len(c.Names) > maxNames {
		return nil, fmt.Errorf("%d names have addresses, and %d is the most", len(c.Names), maxNames)
	}
	l, err := newLink()
	if err != nil {
		return nil, err
	}
	g := &Gateway{link: l, names: newNames(c.Names), journal: newJournal(log, time.Now), slots: make(chan struct{}, maxConnections)}
	g.dialer = &dialer{policy: policy, names: g.names, lookup: lookupOnHost, connect: connectFromHost, interfaces: hostAddrs}
	g.server = &nameServer{policy: policy, names: g.names, refused: g.journal.refused}
	if err := g.start(); err != nil {
		l.close()
		return nil, err
	}
	go g.journal.rollFor()
	return g, nil
}

// Run does something on a thread in the sandbox's network namespace: a
// process that it starts is in there.
func (g *Gateway) Run(do func() error) error { return inNamespace(g.link.sandbox, do) }

// Names returns the names that have addresses, for a snapshot.
func (g *Gateway) Names() []string { return g.names.all() }

func (g *Gateway) start() error {
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	device, err := fdbased.New(&fdbased.Options{
		FDs: []int{g.link.socket}, MTU: uint32(g.link.mtu), EthernetHeader: true, Address: tcpip.LinkAddress(g.link.address),
		PacketDispatchMode: fdbased.RecvMMsg, GSOMaxSize: maxSegment, RXChecksumOffload: true, ProcessorsPerChannel: 1,
	})
	if err != nil {
		return err
	}
	if err := g.options(); err != nil {
		return fmt.Errorf("set up the gateway: %w", err)
	}
	g.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(g.stack, bufferSize, maxPending, g.accept).HandlePacket)
	g.stack.SetTransportProtocolHandler(udp.ProtocolNumber, g.datagram)
	g.stack.SetTransportProtocolHandler(icmp.ProtocolNumber4, g.ping)
	g.stack.SetTransportProtocolHandler(icmp.ProtocolNumber6, g.ping)
	// The interface comes last: no packet meets a gateway that is half done.
	if err := g.stack.CreateNIC(nic, device); err != nil {
		return fmt.Errorf("set up the gateway: %s", err)
	}
	return g.listen()
}

func (g *Gateway) options() error {
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: bufferSize, Max: bufferSize}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: bufferSize, Max: bufferSize}
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	for _, option := range []tcpip.SettableTransportProtocolOption{&receive, &send, &sack, &moderate} {
		if err := g.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return errors.New(err.String())
		}
	}
	return nil
}

// listen gives the gateway its addresses and, to answer for all others, the
// right to speak for any. It sends to the sandbox's addresses only.
func (g *Gateway) listen() error {
	for _, addr := range []struct {
		protocol         tcpip.NetworkProtocolNumber
		gateway, sandbox netip.Addr
		bits             int
	}{{ipv4.ProtocolNumber, gateway4, sandbox4, linkBits4}, {ipv6.ProtocolNumber, gateway6, sandbox6, linkBits6}} {
		address := tcpip.ProtocolAddress{Protocol: addr.protocol, AddressWithPrefix: tcpip.AddressWithPrefix{
			Address: tcpip.AddrFromSlice(addr.gateway.AsSlice()), PrefixLen: addr.bits,
		}}
		if err := g.stack.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("give the gateway the address %s: %s", addr.gateway, err)
		}
		g.stack.AddRoute(tcpip.Route{Destination: tcpip.AddrFromSlice(addr.sandbox.AsSlice()).WithPrefix().Subnet(), NIC: nic})
	}
	if err := g.stack.SetSpoofing(nic, true); err != nil {
		return errors.New(err.String())
	}
	at := &tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(gateway4.AsSlice()), Port: dnsPort}
	conn, err := gonet.DialUDP(g.stack, at, nil, ipv4.ProtocolNumber)
	if err != nil {
		return fmt.Errorf("serve names: %w", err)
	}
	go g.server.serveUDP(conn)
	if err := g.stack.SetPromiscuousMode(nic, true); err != nil {
		return errors.New(err.String())
	}
	return nil
}

// ends returns who sent a packet and where to.
func ends(id stack.TransportEndpointID) (from, to netip.AddrPort) {
	local, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	remote, _ := netip.AddrFromSlice(id.RemoteAddress.AsSlice())
	return netip.AddrPortFrom(remote.Unmap(), id.RemotePort), netip.AddrPortFrom(local.Unmap(), id.LocalPort)
}

// datagram sees UDP that is not for the name server. Nothing carries it: the
// stack answers that the port is unreachable.
func (g *Gateway) datagram(id stack.TransportEndpointID, _ *stack.PacketBuffer) bool {
	_, to := ends(id)
	if to.Addr().IsMulticast() {
		return true // programs announce themselves; that is no attempt at anything
	}
	g.journal.refused("udp", to.String(), "network.allow is about TCP")
	return false
}

// ping sees echo requests. The stack, which takes itself for every host, would
// answer them: here it does not.
func (g *Gateway) ping(id stack.TransportEndpointID, _ *stack.PacketBuffer) bool {
	if _, to := ends(id); !to.Addr().IsMulticast() {
		g.journal.refused("icmp", to.Addr().String(), "network.allow is about TCP")
	}
	return true
}

// accept decides on a connection. It is accepted when the one from the host
// is there, and reset otherwise.
func (g *Gateway) accept(r *tcp.ForwarderRequest) {
	from, to := ends(r.ID())
	select {
	case g.slots <- struct{}{}:
	default:
		g.journal.refused("tcp", to.String(), fmt.Sprintf("%d connections are open, and more are not carried", maxConnections))
		r.Complete(true)
		return
	}
	defer func() { <-g.slots }()
	switch {
	case from.Addr() != sandbox4 && from.Addr() != sandbox6:
		r.Complete(false) // nobody lives there
	case to == netip.AddrPortFrom(gateway4, dnsPort):
		if inside, err := handshake(r); err == nil {
			g.server.serveTCP(inside.TCPConn)
		}
	default:
		g.carry(r, to)
	}
}

func (g *Gateway) carry(r *tcp.ForwarderRequest, to netip.AddrPort) {
	outside, err := g.dialer.dial(context.Background(), to)
	if err != nil {
		var no *refusal
		if errors.As(err, &no) {
			g.journal.refused("tcp", no.target, no.reason)
		} else {
			g.journal.failed("tcp", g.target(to), err)
		}
		r.Complete(true)
		return
	}
	defer outside.Close()
	inside, err := handshake(r)
	if err != nil {
		return // whoever asked is gone
	}
	defer inside.Close()
	relay(inside, outside)
}

// target names what an address stands for.
func (g *Gateway) target(to netip.AddrPort) string {
	if name, known := g.names.name(to.Addr()); known {
		return fmt.Sprintf("%s:%d", name, to.Port())
	}
	return to.String()
}

// insideConn is a connection with the sandbox.
type insideConn struct {
	*gonet.TCPConn
	endpoint tcpip.Endpoint
}

// handshake accepts a connection.
func handshake(r *tcp.ForwarderRequest) (insideConn, error) {
	var queue waiter.Queue
	endpoint, err := r.CreateEndpoint(&queue)
	if err != nil {
		r.Complete(true)
		return insideConn{}, errors.New(err.String())
	}
	r.Complete(false)
	endpoint.SocketOptions().SetKeepAlive(true) // one that died frees its slot
	return insideConn{gonet.NewTCPConn(&queue, endpoint), endpoint}, nil
}

// relay copies both ways until both ends have said all they had. An end that
// breaks off makes the other one break off: a transfer that was cut short
// must not look whole.
func relay(inside insideConn, outside *net.TCPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := io.Copy(outside, inside); err != nil {
			_ = outside.SetLinger(0)
			_ = outside.Close()
			inside.endpoint.Abort()
			return
		}
		_ = outside.CloseWrite()
	}()
	if _, err := io.Copy(inside, outside); err != nil {
		inside.endpoint.Abort()
		_ = outside.SetLinger(0)
		_ = outside.Close()
	} else {
		_ = inside.CloseWrite()
	}
	<-done
}
