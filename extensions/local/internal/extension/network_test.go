// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

// A machine with a network of its own for the tests of network policy: they
// run in a network namespace in which only what the test makes exists, with
// an "internet" of one host behind a link, on which everything is captured.

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

const networkEnv = "SANDBOXER_TEST_NETWORK"

// The addresses of the test's internet, all from blocks for documentation.
const (
	hostAddr   = "192.0.2.2"
	routerAddr = "192.0.2.1"
	goodAddr   = "203.0.113.10" // of good.test and many.test
	otherAddr  = "203.0.113.20" // nobody is allowed to go there by name
	goodAddr6  = "2001:db8:1::10"
)

// internet is what is behind the machine's link.
type internet struct {
	namespace *os.File
	capture   int

	mu      sync.Mutex
	records map[string][]string // of the host's name server
	queries []string            // that it saw
}

// inOwnNetwork reports whether this process is the test in its own network.
// In the first one it starts that process and waits for it.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(networkEnv) != "" {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	limit := "5m"
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		limit = "1h"
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v=true", "-test.timeout="+limit)
	cmd.Env = append(os.Environ(), networkEnv+"=1", programEnv+"="+program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		// The same user, with rights over these namespaces alone.
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE}
	}
	runtime.LockOSThread() // a parent's death is the death of its thread
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a network of its own: %v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	return false
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// onThread does something on a thread in a namespace; nil is a new one.
func onThread(t *testing.T, namespace *os.File, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if namespace != nil {
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	must(t, <-done)
}

func addAddr(name string, addrs ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if strings.Contains(text, ":") {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// newInternet makes the network that the tests expect.
func newInternet(t *testing.T) *internet {
	t.Helper()
	i := &internet{records: map[string][]string{
		"good.test": {goodAddr}, "*.many.test": {goodAddr}, "six.test": {goodAddr6}, "other.test": {otherAddr},
		"loop.test": {"127.0.0.1"}, "zero.test": {"0.0.0.0"}, "meta.test": {"169.254.169.254"}, "lan.test": {"10.9.8.7"}, "self.test": {hostAddr},
		"mapped.test": {"::ffff:127.0.0.1"}, "nat.test": {"64:ff9b::7f00:1"}, "both.test": {"127.0.0.1", goodAddr},
	}}
	onThread(t, nil, func() (err error) {
		i.namespace, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	t.Cleanup(func() { i.namespace.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	must(t, addAddr("lo"), netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "down0", PeerNamespace: netlink.NsFd(i.namespace.Fd())}))
	onThread(t, i.namespace, func() (err error) {
		if err := addAddr("lo", goodAddr+"/32", otherAddr+"/32", "169.254.169.254/32", "10.9.8.7/32", goodAddr6+"/128"); err != nil {
			return err
		}
		if err := addAddr("down0", routerAddr+"/24", "2001:db8::1/64"); err != nil {
			return err
		}
		i.capture, err = capture("down0")
		return err
	})
	t.Cleanup(func() { unix.Close(i.capture) })
	must(t, addAddr("up0", hostAddr+"/24", "2001:db8::2/64"))
	up, err := netlink.LinkByName("up0")
	must(t, err)
	must(t,
		netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: net.ParseIP(routerAddr)}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: net.ParseIP("2001:db8::1")}),
	)
	i.serveNames(t)
	return i
}

// capture opens a packet socket on an interface.
func capture(name string) (int, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	all := uint16(unix.ETH_P_ALL)
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: device.Index})
}

// arrived returns what has come from the machine since the last call, but for
// the neighbour discovery of the link itself: "tcp 203.0.113.10:443".
func (i *internet) arrived(t *testing.T) (packets []string) {
	t.Helper()
	frame := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(i.capture, frame, unix.MSG_DONTWAIT)
		if err != nil {
			return packets
		}
		sender := from.(*unix.SockaddrLinklayer)
		if sender.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		protocol := sender.Protocol<<8 | sender.Protocol>>8
		if text := describePacket(protocol, frame[:n]); text != "" {
			packets = append(packets, text)
		}
	}
}

func describePacket(protocol uint16, p []byte) string {
	var to netip.Addr
	var kind byte
	switch {
	case protocol == unix.ETH_P_ARP:
		return ""
	case protocol == unix.ETH_P_IP && len(p) >= 20:
		to, _ = netip.AddrFromSlice(p[16:20])
		kind, p = p[9], p[int(p[0]&15)*4:]
	case protocol == unix.ETH_P_IPV6 && len(p) >= 40:
		to, _ = netip.AddrFromSlice(p[24:40])
		kind, p = p[6], p[40:]
		if kind == unix.IPPROTO_ICMPV6 && len(p) > 0 && p[0] >= 130 || kind == 0 && to.IsMulticast() {
			return "" // neighbour and multicast listener discovery
		}
	default:
		return fmt.Sprintf("protocol %#x", protocol)
	}
	switch {
	case kind == unix.IPPROTO_TCP && len(p) >= 4:
		return fmt.Sprintf("tcp %s", netip.AddrPortFrom(to, uint16(p[2])<<8|uint16(p[3])))
	case kind == unix.IPPROTO_UDP && len(p) >= 4:
		return fmt.Sprintf("udp %s", netip.AddrPortFrom(to, uint16(p[2])<<8|uint16(p[3])))
	}
	return fmt.Sprintf("ip protocol %d to %s", kind, to)
}

// serveNames is the host's name server, and makes the host use it.
func (i *internet) serveNames(t *testing.T) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:53")
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	if _, err := os.Stat("/etc/resolv.conf"); err == nil { // without one, 127.0.0.1 is asked anyway
		file := filepath.Join(t.TempDir(), "resolv.conf")
		must(t, os.WriteFile(file, []byte("nameserver 127.0.0.1\nsearch search.test\n"), 0o644), unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH) })
	}
	go func() {
		query := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(i.answer(query[:n]), from)
		}
	}()
}

func (i *internet) answer(query []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	i.mu.Lock()
	i.queries = append(i.queries, name)
	addrs, known := i.records[name]
	if _, domain, ok := strings.Cut(name, "."); !known && ok {
		addrs, known = i.records["*."+domain]
	}
	i.mu.Unlock()
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addrs {
		addr := netip.MustParseAddr(text)
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, Type: q.Type}
		switch {
		case q.Type == dnsmessage.TypeA && addr.Is4():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: addr.As4()}})
		case q.Type == dnsmessage.TypeAAAA && addr.Is6():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	packed, _ := reply.Pack()
	return packed
}

func (i *internet) setRecord(name string, addrs ...string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.records[name] = addrs
}

// asked returns what the host's name server has seen since the last call.
func (i *internet) asked() (names []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	names, i.queries = i.queries, nil
	return names
}

// greet serves on a port of every address of the internet: it says who it is,
// and then what it hears.
func (i *internet) greet(t *testing.T, port int) {
	t.Helper()
	onThread(t, i.namespace, func() error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			serveEcho(t, l, "internet")
		}
		return err
	})
}

// greetHost serves on a port of the machine itself.
func greetHost(t *testing.T, port int) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	must(t, err)
	serveEcho(t, l, "host")
}

func serveEcho(t *testing.T, l net.Listener, greeting string) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				_, _ = fmt.Fprintf(c, "%s\n", greeting)
				_, _ = io.Copy(c, c)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
		}
	}()
}
