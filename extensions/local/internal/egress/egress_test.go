// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func parsed(t *testing.T, allow ...string) policy {
	t.Helper()
	p, err := parse(allow)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// An allowed name may lead to the internet. For every other kind of address
// an entry of its own is needed.
func TestWhereAnAllowedNameMayLead(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("203.0.113.77")}
	name, wide := parsed(t, "api.example"), parsed(t, "api.example", "0.0.0.0/0:443", "[::/0]:443")
	for _, text := range []string{"203.0.113.10", "8.8.8.8", "2606:4700::1111"} {
		if !name.allowsTarget(netip.MustParseAddr(text), 443, own) {
			t.Errorf("%s is refused", text)
		}
	}
	private := []string{"10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "192.0.0.1", "198.18.0.1", "198.19.255.255", "224.0.0.1", "240.0.0.1",
		"255.255.255.255", "64:ff9b::a00:1", "64:ff9b:1::1", "2001::1", "2002:a00:1::1", "fc00::1", "fdff::1", "fec0::1", "ff02::1", "203.0.113.77"}
	machine := []string{"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.255", "169.254.169.254", "169.254.0.1", "::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254"}
	for _, text := range append(slices.Clone(private), machine...) {
		if addr := netip.MustParseAddr(text); name.allowsTarget(addr, 443, own) {
			t.Errorf("%s is allowed", text)
		}
	}
	for _, text := range private {
		if addr := netip.MustParseAddr(text); !wide.allowsTarget(addr, 443, own) || wide.allowsTarget(addr, 80, own) {
			t.Errorf("%s with a block that covers it", text)
		}
	}
	for _, text := range machine {
		addr := netip.MustParseAddr(text)
		if wide.allowsTarget(addr, 443, own) || wide.allowsAddr(addr, 443) {
			t.Errorf("%s is allowed by the whole internet", text)
		}
		exact := "[" + addr.Unmap().WithZone("").String() + "]:443"
		if addr.Unmap().Is4() {
			exact = addr.Unmap().String() + ":443"
		}
		if p := parsed(t, exact); !p.allowsTarget(addr, 443, own) || !p.allowsAddr(addr, 443) || p.allowsAddr(addr, 80) {
			t.Errorf("%s with %s", text, exact)
		}
	}
}

func TestNamesKeepTheirAddresses(t *testing.T) {
	n := newNames([]string{"a.test", "b.test"})
	a, _ := n.address("a.test")
	c, _ := n.address("c.test")
	for addr, want := range map[string]string{"198.18.1.0": "a.test", "198.18.1.1": "b.test", "198.18.1.2": "c.test"} {
		if got, ok := n.name(netip.MustParseAddr(addr)); !ok || got != want {
			t.Errorf("%s is %q", addr, got)
		}
	}
	for _, addr := range []string{"198.18.1.3", "198.18.0.255", "198.18.0.1", "0.0.0.0", "255.255.255.255", "::1"} {
		if got, ok := n.name(netip.MustParseAddr(addr)); ok {
			t.Errorf("%s is %q", addr, got)
		}
	}
	if again := newNames(n.all()); a.String() != "198.18.1.0" || c.String() != "198.18.1.2" || !slices.Equal(again.all(), []string{"a.test", "b.test", "c.test"}) {
		t.Error(a, c, again.all())
	}
	for i := range maxNames + 10 {
		addr, ok := n.address(fmt.Sprintf("n%d.test", i))
		if ok != (i < maxNames-3) || ok && !covered(addr, linkPrefixes) {
			t.Fatalf("name %d: %s, %v", i, addr, ok)
		}
	}
}

func query(t *testing.T, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET},
	}}
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func testServer(t *testing.T, refused *[]string, allow ...string) *nameServer {
	return &nameServer{policy: parsed(t, allow...), names: newNames(nil), refused: func(_, target, _ string) { *refused = append(*refused, target) }}
}

func TestTheNameServerAnswersForAllowedNamesAlone(t *testing.T) {
	var refused []string
	s := testServer(t, &refused, "api.test:443", "*.many.test")
	for _, c := range []struct {
		name  string
		kind  dnsmessage.Type
		rcode dnsmessage.RCode
		want  string
	}{
		{"api.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"API.Test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "198.18.1.0"},
		{"a.b.many.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "198.18.1.1"},
		{"localhost.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "127.0.0.1"},
		{"api.test.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, ""},
		{"api.test.", dnsmessage.TypeHTTPS, dnsmessage.RCodeSuccess, ""},
		{"api.test.", dnsmessage.TypeTXT, dnsmessage.RCodeSuccess, ""},
		{"many.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		{"evil.test.", dnsmessage.TypeTXT, dnsmessage.RCodeNameError, ""},
		{"a b.many.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		{"1.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, ""},
		{".", dnsmessage.TypeNS, dnsmessage.RCodeNameError, ""},
	} {
		refused = nil
		var got dnsmessage.Message
		if err := got.Unpack(s.answer(query(t, c.name, c.kind))); err != nil {
			t.Fatal(err)
		}
		answer := ""
		for _, a := range got.Answers {
			answer += netip.AddrFrom4(a.Body.(*dnsmessage.AResource).A).String()
		}
		if !got.Response || got.ID != 7 || got.RCode != c.rcode || answer != c.want || (c.rcode == dnsmessage.RCodeNameError) != (len(refused) == 1) {
			t.Errorf("%s %s: %v %q, refused %q", c.name, c.kind, got.Header, answer, refused)
		}
	}
}

func FuzzNameServer(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03api\x04test\x00\x00\x01\x00\x01"))
	f.Add([]byte("\x00\x07\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00\x03api\x04test\x00\x00\x01\x00\x01\xc0\x0c\x00\x01\x00\x01"))
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, q []byte) {
		var refused []string
		s := testServer(t, &refused, "*.test")
		reply := s.answer(q)
		if reply == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil || !m.Response || len(reply) > 600 {
			t.Errorf("%x gives %x, %v", q, reply, err)
		}
		for _, name := range s.names.all() {
			if !s.policy.resolves(name) || !plain(name) {
				t.Errorf("%x gives an address to %q", q, name)
			}
		}
	})
}

func TestDNSOverTCP(t *testing.T) {
	var refused []string
	s := testServer(t, &refused, "api.test")
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() { s.serveTCP(server); close(done) }()
	for range 3 {
		q := query(t, "api.test.", dnsmessage.TypeA)
		if _, err := client.Write(append([]byte{0, byte(len(q))}, q...)); err != nil {
			t.Fatal(err)
		}
		reply := make([]byte, 512)
		if n, err := client.Read(reply); err != nil || n < 14 || int(reply[1]) != n-2 {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if _, err := client.Write([]byte{0xff, 0xff}); err != nil { // longer than a query may be
		t.Fatal(err)
	}
	<-done
}

// The address is looked at after the look-up and dialled as it is.
func TestDialsGoToTheAddressThatWasLookedAt(t *testing.T) {
	looked := 0
	var dialled []string
	d := &dialer{policy: parsed(t, "api.test:443", "10.0.0.0/8:443"), names: newNames([]string{"api.test", "gone.test"}),
		lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			looked++
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.1.1.1")}, nil
		},
		connect: func(_ context.Context, to netip.AddrPort) (*net.TCPConn, error) {
			dialled = append(dialled, to.String())
			return nil, errors.New("nobody there")
		},
		interfaces: func() ([]netip.Addr, error) { return nil, nil },
	}
	for to, want := range map[string]string{
		"198.18.1.0:443": "[203.0.113.1:443 10.1.1.1:443] 1", "198.18.1.0:80": "[] 0", "198.18.1.1:443": "[] 0", "198.18.1.2:443": "[] 0",
		"10.2.2.2:443": "[10.2.2.2:443] 0", "[::ffff:10.2.2.2]:443": "[10.2.2.2:443] 0", "10.2.2.2:80": "[] 0", "203.0.113.1:443": "[] 0",
	} {
		looked, dialled = 0, nil
		if _, err := d.dial(t.Context(), netip.MustParseAddrPort(to)); err == nil {
			t.Errorf("%s: no error", to)
		}
		if got := fmt.Sprint(dialled, looked); got != want {
			t.Errorf("%s dials %s, want %s", to, got, want)
		}
	}
	// Not knowing this machine's addresses is no reason to let one pass.
	d.interfaces = func() ([]netip.Addr, error) { return nil, errors.New("none") }
	dialled = nil
	if _, err := d.dial(t.Context(), netip.MustParseAddrPort("198.18.1.0:443")); err == nil || len(dialled) > 0 {
		t.Errorf("dials %q", dialled)
	}
}

func TestTheJournalIsBounded(t *testing.T) {
	var out bytes.Buffer
	j := newJournal(&out, func() time.Time { return time.Unix(0, 0) })
	for range 5 {
		j.refused("tcp", "api.test:80", "no")
	}
	for i := range 300 {
		j.refused("dns", fmt.Sprintf("n%d.test", i), "no")
	}
	j.refused("dns", "a\x1b[31m\nb", "no")
	j.roll()
	j.refused("dns", "a\x1b[31m\nb"+strings.Repeat("x", 1000), "no")
	j.failed("tcp", "api.test:443", errors.New("bad\x1b\nnews"))
	got := out.String()
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != maxLines+4 || lines[0] != "1970-01-01T00:00:00Z tcp api.test:80 refused: no" {
		t.Errorf("%d lines, the first %q", len(lines), lines[0])
	}
	for _, want := range []string{"api.test:80 refused: no (4 times more)", "202 other attempts are not listed", `"a\x1b[31m\nb`, "bad??news"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.ContainsAny(got, "\x1b\r") || len(lines[len(lines)-2]) > 400 {
		t.Error("a terminal would obey it, or it is too long")
	}
}
