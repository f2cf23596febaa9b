// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseAllow(t *testing.T) {
	for entry, want := range map[string]Allow{
		"api.example:443":          {Name: "api.example", Port: 443},
		"API.Example:443":          {Name: "api.example", Port: 443},
		"api.example":              {Name: "api.example"},
		"registry:5000":            {Name: "registry", Port: 5000},
		"*.example.org:443":        {Name: "*.example.org", Port: 443},
		"_srv.example":             {Name: "_srv.example"},
		"xn--bcher-kva.example:80": {Name: "xn--bcher-kva.example", Port: 80},
		"10.0.0.0/8:5432":          {Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: 5432},
		"192.0.2.1":                {Prefix: netip.MustParsePrefix("192.0.2.1/32")},
		"192.0.2.1:1":              {Prefix: netip.MustParsePrefix("192.0.2.1/32"), Port: 1},
		"[::1]:80":                 {Prefix: netip.MustParsePrefix("::1/128"), Port: 80},
		"[2001:db8::/32]:65535":    {Prefix: netip.MustParsePrefix("2001:db8::/32"), Port: 65535},
		"[2001:db8::1]":            {Prefix: netip.MustParsePrefix("2001:db8::1/128")},
		"2001:db8::/32":            {Prefix: netip.MustParsePrefix("2001:db8::/32")},
		"0.0.0.0/0:443":            {Prefix: netip.MustParsePrefix("0.0.0.0/0"), Port: 443},
	} {
		if got, err := ParseAllow(entry); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", entry, got, err, want)
		}
	}
	long := strings.Repeat("a", 64)
	for entry, says := range map[string]string{
		"": "host:port", ":443": "host:port", "a b": "host:port", "*": "host:port", "*:443": "host:port", "a.*.example": "host:port",
		"*.*.example": "host:port", "*example.org": "host:port", "api.example.:443": "host:port", "-a.example": "host:port", long + ".example": "host:port",
		"1.2.3": "host:port", "1.2.3.4.5": "host:port", "256.1.1.1": "host:port", "127.1:80": "host:port", "bücher.example": "host:port",
		strings.Repeat("a.", 130) + "example": "host:port", "[]:443": "brackets", "a\x00.example": "host:port",
		"api.example:": "port", "api.example:0": "port", "api.example:99999": "port", "api.example:+443": "port", "api.example:0443": "port", "api.example:https": "port",
		"https://api.example": "URL", "[api.example]:443": "brackets", "[::1": "bracket", "[2001:db8::]/32:443": "inside", "[::1]x": "inside",
		"10.0.0.1/8:443": "10.0.0.0/8 is the block", "10.0.0.0/33": "CIDR", "10.0.0.0/8/8": "CIDR", "fe80::1%eth0": "zone", "[fe80::1%eth0]:80": "zone",
		"::ffff:10.0.0.1": "IPv4", "[::ffff:10.0.0.0/104]:80": "IPv4", "a:b:c": "CIDR",
	} {
		got, err := ParseAllow(entry)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %+v, %v, want an error with %q", entry, got, err, says)
		}
	}
}

func TestAllowCovers(t *testing.T) {
	for _, c := range []struct {
		entry, name, addr string
		port              int
		want              bool
	}{
		{"api.example:443", "api.example", "", 443, true},
		{"api.example:443", "api.example", "", 80, false},
		{"api.example", "api.example", "", 80, true},
		{"api.example:443", "x.api.example", "", 443, false},
		{"api.example:443", "evilapi.example", "", 443, false},
		{"api.example:443", "api.example.evil.test", "", 443, false},
		{"api.example:443", "", "", 443, false},
		{"*.example:443", "api.example", "", 443, true},
		{"*.example:443", "a.b.example", "", 443, true},
		{"*.example:443", "example", "", 443, false},
		{"*.example:443", ".example", "", 443, false},
		{"*.example:443", "evilexample", "", 443, false},
		{"10.0.0.0/8:443", "", "10.1.2.3", 443, true},
		{"10.0.0.0/8:443", "", "::ffff:10.1.2.3", 443, true},
		{"10.0.0.0/8:443", "", "11.1.2.3", 443, false},
		{"10.0.0.0/8:443", "10.1.2.3", "", 443, false},
		{"0.0.0.0/0", "", "2001:db8::1", 443, false},
		{"[2001:db8::/32]:443", "", "2001:db8::1", 443, true},
		{"api.example", "", "10.1.2.3", 443, false},
	} {
		allow, err := ParseAllow(c.entry)
		if err != nil {
			t.Fatal(err)
		}
		got := allow.CoversName(c.name)
		if c.addr != "" {
			got = allow.CoversAddr(netip.MustParseAddr(c.addr))
		}
		if got = got && allow.CoversPort(c.port); got != c.want {
			t.Errorf("%s, %q %q port %d: %v", c.entry, c.name, c.addr, c.port, got)
		}
	}
}
