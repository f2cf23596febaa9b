// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Scheme begins the URL of a host that is reached over SSH.
const Scheme = "ssh"

// Address names a host, as in ssh://user@host:port/path.
type Address struct {
	User string // empty is the one of the configuration, else the local user
	Host string // name, alias of ssh_config, or IP address without brackets
	Port int    // zero is the one of the configuration, else 22
	Path string // absolute path on the host, for whoever gives it a meaning; may be empty
}

// String returns the address as a URL.
func (a Address) String() string {
	u := url.URL{Scheme: Scheme, Host: a.Host, Path: a.Path}
	if a.User != "" {
		u.User = url.User(a.User)
	}
	if strings.Contains(a.Host, ":") {
		u.Host = "[" + a.Host + "]"
	}
	if a.Port != 0 {
		u.Host += ":" + strconv.Itoa(a.Port)
	}
	return u.String()
}

// maxAddress bounds the text of an address, in bytes.
const maxAddress = 2048

// ParseAddress reads ssh://[user@]host[:port][/path]. An error never repeats
// the text, which may hold a password by mistake.
func ParseAddress(text string) (Address, error) {
	if len(text) > maxAddress {
		return Address{}, fmt.Errorf("longer than %d bytes", maxAddress)
	}
	rest, ok := strings.CutPrefix(text, Scheme+"://")
	if !ok {
		return Address{}, errors.New("not of the form ssh://user@host:port")
	}
	u, err := url.Parse(text)
	if err != nil {
		return Address{}, errors.New("not of the form ssh://user@host:port")
	}
	if strings.ContainsAny(rest, "?#") {
		return Address{}, errors.New("an SSH address has no query and no fragment")
	}
	if _, found := u.User.Password(); found {
		return Address{}, errors.New("a password does not belong into an address, where logs show it: set ssh.password")
	}
	a := Address{User: u.User.Username(), Host: u.Hostname(), Path: u.Path}
	if u.User != nil && a.User == "" {
		return Address{}, errors.New("the user before the @ is empty")
	}
	if a.Path == "/" {
		a.Path = ""
	}
	if port := u.Port(); port != "" {
		if a.Port, err = parsePort(port); err != nil {
			return Address{}, err
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return Address{}, errors.New("the port after the colon is missing")
	}
	return a, a.validate()
}

// parseJump reads a host of a list of jump hosts: an address, or the
// [user@]host[:port] that ssh_config has.
func parseJump(text string) (Address, error) {
	if strings.HasPrefix(text, Scheme+"://") {
		a, err := ParseAddress(text)
		if err == nil && a.Path != "" {
			err = errors.New("a jump host has no path")
		}
		return a, err
	}
	var a Address
	rest := text
	if i := strings.LastIndex(text, "@"); i >= 0 {
		a.User, rest = text[:i], text[i+1:]
		if a.User == "" {
			return Address{}, errors.New("the user before the @ is empty")
		}
		if strings.Contains(a.User, ":") {
			return Address{}, errors.New("a password does not belong into an address")
		}
	}
	a.Host = strings.TrimSuffix(strings.TrimPrefix(rest, "["), "]")
	if host, port, err := net.SplitHostPort(rest); err == nil {
		a.Host = host
		if a.Port, err = parsePort(port); err != nil {
			return Address{}, err
		}
	}
	return a, a.validate()
}

func parsePort(text string) (int, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, errors.New("the port is not a number from 1 to 65535")
	}
	return int(port), nil
}

// validate bounds what comes from outside and ends up in messages, in
// known_hosts and in the names of files.
func (a Address) validate() error {
	switch {
	case a.Host == "":
		return errors.New("the host is missing")
	case len(a.Host) > 255:
		return errors.New("the host is longer than 255 bytes")
	case !allOf(a.Host, isHostByte) || a.Host[0] == '-':
		return errors.New("the host is neither a name nor an IP address")
	case len(a.User) > 255:
		return errors.New("the user is longer than 255 bytes")
	case a.User != "" && (!allOf(a.User, isUserByte) || a.User[0] == '-'):
		return errors.New("the user has characters that no user name has")
	case a.Path != "" && (a.Path[0] != '/' || !allOf(a.Path, isPathByte)):
		return errors.New("the path is not absolute, or has control characters")
	}
	return nil
}

func allOf(text string, ok func(byte) bool) bool {
	for i := range len(text) {
		if !ok(text[i]) {
			return false
		}
	}
	return true
}

// isHostByte allows names, IPv4, and IPv6 with a zone. Names outside ASCII
// have an ASCII form, and a list or pattern of known_hosts is no name.
func isHostByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(".-_:%", c) >= 0
}

// isUserByte allows whatever a directory service calls its users, among them
// user@domain and DOMAIN+user, but nothing that a shell or a log would act on.
func isUserByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c >= 0x80 || strings.IndexByte("._-+@=,%", c) >= 0
}

func isPathByte(c byte) bool { return c >= ' ' && c != 0x7f }
