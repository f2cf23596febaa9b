// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// maxHops bounds the jump hosts on the way to a host.
const maxHops = 8

// target is one host, with everything decided that is needed to dial it.
type target struct {
	user, host string // host: name or IP address to dial, and to look up in known_hosts
	port       int
	alias      string // as the user wrote the host

	config      Config
	at          string   // path of the configuration, for errors
	home        string   // of the local user
	keyFiles    []string // of ssh_config, in this order; may be missing
	defaultKeys []string // tried when nothing is explicit
	identities  bool     // only the explicit keys
	knownHosts  []string // files
	timeout     time.Duration
}

// address returns host:port, as it is dialled and looked up.
func (t *target) address() string { return net.JoinHostPort(t.host, strconv.Itoa(t.port)) }

// name returns the target for messages.
func (t *target) name() string { return t.user + "@" + t.address() }

// local is the user and the machine that connections are made from.
type local struct {
	home, user string
	getenv     func(string) string
}

// resolve decides a target and the jump hosts before it, in dialling order.
func resolve(l local, a Address, config Config, at string) (*target, []*target, error) {
	if err := a.validate(); err != nil {
		return nil, nil, sdk.Invalid("host", "%s", err)
	}
	if err := config.Validate(at); err != nil {
		return nil, nil, err
	}
	t, found, err := resolveOne(l, a, config, at)
	if err != nil {
		return nil, nil, err
	}
	jumps, jumpsAt := config.ProxyJump, at+".proxy_jump"
	if len(jumps) == 0 {
		jumps, jumpsAt = found.jumps, at+".ssh_config_file"
	}
	hops, err := resolveJumps(l, jumps, config, at, jumpsAt)
	return t, hops, err
}

// resolveJumps decides the jump hosts. What proves or identifies only the
// target is not for them: its password and its host key.
func resolveJumps(l local, jumps []string, config Config, at, jumpsAt string) ([]*target, error) {
	config.Password, config.HostKey, config.ProxyJump = "", "", nil
	var hops []*target
	seen := map[string]bool{}
	// The first jump host may have jump hosts of its own in ssh_config, and so
	// on; the others are reached through the one before them.
	for len(jumps) > 0 {
		var before []*target
		var further []string
		for i, text := range jumps {
			a, err := parseJump(text)
			if err != nil {
				return nil, sdk.Invalid(jumpsAt, "jump host %q: %s", clip(text), err)
			}
			hop, found, err := resolveOne(l, a, config, at)
			if err != nil {
				return nil, err
			}
			before = append(before, hop)
			if i == 0 {
				further = found.jumps
			}
			if seen[hop.name()] {
				return nil, sdk.Invalid(jumpsAt, "the jump host %s is on the way to itself", hop.name())
			}
			seen[hop.name()] = true
		}
		hops = append(before, hops...)
		if jumps = further; len(hops)+len(jumps) > maxHops {
			return nil, sdk.Invalid(jumpsAt, "more than %d jump hosts", maxHops)
		}
	}
	return hops, nil
}

// resolveOne decides one host, without the way to it.
func resolveOne(l local, a Address, config Config, at string) (*target, hostConfig, error) {
	var found hostConfig
	configAt := at + ".ssh_config_file"
	if config.SSHConfigFile != "" {
		var err error
		if found, err = readSSHConfig(expandHome(config.SSHConfigFile, l.home), a.Host, l.home); err != nil {
			return nil, found, &sdk.Error{Kind: sdk.ErrInvalid, Path: configAt, Message: "host " + a.Host, Err: err}
		}
	}
	t := &target{
		user: a.User, host: a.Host, port: a.Port, alias: a.Host, config: config, at: at,
		home: l.home, identities: config.IdentitiesOnly || found.identitiesOnly != nil && *found.identitiesOnly,
	}
	if found.hostName != "" {
		name, err := expandTokens(found.hostName, map[byte]string{'%': "%", 'h': a.Host})
		if err == nil {
			err = Address{Host: name}.validate()
		}
		if err != nil {
			return nil, found, &sdk.Error{Kind: sdk.ErrInvalid, Path: configAt, Message: "HostName of " + a.Host, Err: err}
		}
		t.host = name
	}
	for _, user := range []string{found.user, l.user} {
		if t.user == "" {
			t.user = user
		}
	}
	if err := (Address{User: t.user, Host: t.host}).validate(); err != nil {
		return nil, found, &sdk.Error{Kind: sdk.ErrInvalid, Path: configAt, Message: "User of " + a.Host, Err: err}
	}
	if t.user == "" {
		return nil, found, sdk.Invalid("host", "no user is named, and the local user has no name")
	}
	for _, port := range []int{found.port, 22} {
		if t.port == 0 {
			t.port = port
		}
	}
	t.timeout, _ = config.connectTimeout() // validated
	return t, found, t.resolveFiles(l, found, configAt)
}

// resolveFiles decides where keys and known hosts are read.
func (t *target) resolveFiles(l local, found hostConfig, configAt string) error {
	tokens := map[byte]string{
		'%': "%", 'h': t.host, 'n': t.alias, 'p': strconv.Itoa(t.port), 'r': t.user, 'u': l.user, 'd': l.home,
	}
	expand := func(keyword string, files []string) ([]string, error) {
		var expanded []string
		for _, file := range files {
			if file == "none" {
				continue
			}
			file, err := expandTokens(expandHome(file, l.home), tokens)
			if err == nil && !filepath.IsAbs(file) {
				err = fmt.Errorf("%q is neither an absolute path nor one below ~/", clip(file))
			}
			if err != nil {
				return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: configAt, Message: keyword + " of " + t.alias, Err: err}
			}
			expanded = append(expanded, file)
		}
		return expanded, nil
	}
	var err error
	if t.keyFiles, err = expand("IdentityFile", found.identityFiles); err != nil {
		return err
	}
	ssh := filepath.Join(l.home, ".ssh")
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		t.defaultKeys = append(t.defaultKeys, filepath.Join(ssh, name))
	}
	switch {
	case t.config.KnownHostsFile != "":
		t.knownHosts = []string{expandHome(t.config.KnownHostsFile, l.home)}
	case found.knownHosts != nil:
		t.knownHosts, err = expand("UserKnownHostsFile", found.knownHosts)
		t.knownHosts = append(t.knownHosts, globalKnownHosts)
	default:
		t.knownHosts = []string{filepath.Join(ssh, "known_hosts"), globalKnownHosts}
	}
	return err
}

// globalKnownHosts is the machine's file of known hosts.
const globalKnownHosts = "/etc/ssh/ssh_known_hosts"
