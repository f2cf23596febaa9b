// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Config says how hosts are reached and who is believed to be them. The zero
// value takes keys from the agent and from ~/.ssh, and verifies host keys
// against known_hosts.
type Config struct {
	KeyFile           string     `json:"key_file"`
	PrivateKey        sdk.Secret `json:"private_key"`
	Passphrase        sdk.Secret `json:"passphrase"`
	PassphraseCommand []string   `json:"passphrase_command"`
	Password          sdk.Secret `json:"password"`
	Agent             *bool      `json:"agent"`
	IdentitiesOnly    bool       `json:"identities_only"`
	KnownHostsFile    string     `json:"known_hosts_file"`
	HostKey           string     `json:"host_key"`
	HostKeyPolicy     string     `json:"host_key_policy"`
	ProxyJump         []string   `json:"proxy_jump"`
	SSHConfigFile     string     `json:"ssh_config_file"`
	ConnectTimeout    string     `json:"connect_timeout"`
}

// What [Config.HostKeyPolicy] may be.
const (
	// PolicyStrict refuses a host key that is not known.
	PolicyStrict = "strict"
	// PolicyAcceptNew adds the key of a host that has none to known_hosts. A
	// key that has changed is refused all the same.
	PolicyAcceptNew = "accept_new"
)

const defaultConnectTimeout = 30 * time.Second

// Keys describes the keys of a [Config], for the schema and the documentation
// of what embeds it.
func Keys() []sdk.ConfigKey {
	return []sdk.ConfigKey{
		{Name: "key_file", Type: "string", Description: "Private key to authenticate with, before any other. A certificate in `FILE-cert.pub` is used with it. Default: the keys of the agent, then `~/.ssh/id_ed25519`, `id_ecdsa` and `id_rsa`."},
		{Name: "private_key", Type: "string", Sensitive: true, Description: "Text of a private key, instead of `key_file`."},
		{Name: "passphrase", Type: "string", Sensitive: true, Description: "Passphrase of an encrypted private key. Not needed for a key that the agent holds."},
		{Name: "passphrase_command", Type: "list", Description: "Program and arguments that print the passphrase of an encrypted private key. It runs only when a key needs it."},
		{Name: "password", Type: "string", Sensitive: true, Description: "Password of the user. Used after keys, never for a jump host. Default: no password is tried."},
		{Name: "agent", Type: "bool", Description: "Whether the keys of the agent at `SSH_AUTH_SOCK` are used. Default: `true`."},
		{Name: "identities_only", Type: "bool", Description: "Use only the keys that are named, even when the agent offers more. Default: `false`; at most five keys are tried, the named ones first."},
		{Name: "known_hosts_file", Type: "string", Description: "File with the keys of known hosts. Default: `~/.ssh/known_hosts` and `/etc/ssh/ssh_known_hosts`."},
		{Name: "host_key", Type: "string", Description: "Public key that the host must have (`ssh-ed25519 AAAA…`), or its fingerprint (`SHA256:…`), one a line; instead of known_hosts. Jump hosts are still looked up in known_hosts."},
		{Name: "host_key_policy", Type: "string", Description: "What happens with a host that known_hosts does not know: `strict` refuses it, `accept_new` adds its key to the file. A changed key is always refused. Default: `strict`."},
		{Name: "proxy_jump", Type: "list", Description: "Hosts to go through, in order, each `[user@]host[:port]` or an `ssh://` address."},
		{Name: "ssh_config_file", Type: "string", Description: "OpenSSH client configuration to take `HostName`, `Port`, `User`, `IdentityFile`, `IdentitiesOnly`, `UserKnownHostsFile` and `ProxyJump` from, for instance `~/.ssh/config`. What is set here comes first. Default: none is read."},
		{Name: "connect_timeout", Type: "string", Description: "How long it may take to connect and authenticate, retries and jump hosts included, as a Go duration. Default: `30s`."},
	}
}

// DecodeConfig reads a JSON object with the keys of [Keys]. An error is an
// [sdk.ErrInvalid] at the attribute, whose path begins with at.
func DecodeConfig(raw []byte, at string) (Config, error) {
	var config Config
	if len(bytes.TrimSpace(raw)) == 0 {
		return config, nil
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return config, sdk.Invalid(at, "an object is wanted")
	}
	var known []string
	for _, key := range Keys() {
		known = append(known, key.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if !slices.Contains(known, name) {
			return Config{}, sdk.Invalid(at+"."+clip(name), "there is no such setting (known: %s)", strings.Join(known, ", "))
		}
		// One key at a time, so that a fault is found at its key. The decoder's
		// own message is not passed on: it may quote a secret.
		one, err := json.Marshal(map[string]json.RawMessage{name: keys[name]})
		if err == nil {
			err = json.Unmarshal(one, &config)
		}
		if err != nil {
			return Config{}, sdk.Invalid(at+"."+name, "%s is wanted", wanted(name))
		}
	}
	return config, config.Validate(at)
}

// wanted names the type of a setting, for a message.
func wanted(name string) string {
	for _, key := range Keys() {
		if key.Name != name {
			continue
		}
		switch key.Type {
		case "bool":
			return "true or false"
		case "list":
			return "a list of strings"
		}
	}
	return "a string"
}

// Validate returns the first fault, an [sdk.ErrInvalid] at its attribute,
// whose path begins with at. It reads no file.
func (c Config) Validate(at string) error {
	for _, file := range []struct{ name, path string }{
		{"key_file", c.KeyFile}, {"known_hosts_file", c.KnownHostsFile}, {"ssh_config_file", c.SSHConfigFile},
	} {
		// A relative path would mean another file in another directory.
		if file.path != "" && !filepath.IsAbs(file.path) && !strings.HasPrefix(file.path, "~/") {
			return sdk.Invalid(at+"."+file.name, "%q is neither an absolute path nor one below ~/", clip(file.path))
		}
	}
	if c.KeyFile != "" && c.PrivateKey != "" {
		return sdk.Invalid(at+".private_key", "key_file is set too: one of the two is enough")
	}
	if c.Passphrase != "" && len(c.PassphraseCommand) > 0 {
		return sdk.Invalid(at+".passphrase_command", "passphrase is set too: one of the two is enough")
	}
	if c.PassphraseCommand != nil && (len(c.PassphraseCommand) == 0 || c.PassphraseCommand[0] == "") {
		return sdk.Invalid(at+".passphrase_command", "the first element is the program to run, and is missing")
	}
	switch c.HostKeyPolicy {
	case "", PolicyStrict, PolicyAcceptNew:
	default:
		return sdk.Invalid(at+".host_key_policy", "%q is neither %q nor %q", clip(c.HostKeyPolicy), PolicyStrict, PolicyAcceptNew)
	}
	if c.HostKey != "" {
		if c.HostKeyPolicy == PolicyAcceptNew {
			return sdk.Invalid(at+".host_key_policy", "host_key names the only key that is accepted")
		}
		if _, err := parseHostKeys(c.HostKey); err != nil {
			return sdk.Invalid(at+".host_key", "%s", err)
		}
	}
	for i, jump := range c.ProxyJump {
		if _, err := parseJump(jump); err != nil {
			return sdk.Invalid(fmt.Sprintf("%s.proxy_jump[%d]", at, i), "%s", err)
		}
	}
	if len(c.ProxyJump) > maxHops {
		return sdk.Invalid(at+".proxy_jump", "more than %d jump hosts", maxHops)
	}
	if _, err := c.connectTimeout(); err != nil {
		return sdk.Invalid(at+".connect_timeout", "%s", err)
	}
	return nil
}

func (c Config) connectTimeout() (time.Duration, error) {
	if c.ConnectTimeout == "" {
		return defaultConnectTimeout, nil
	}
	d, err := time.ParseDuration(c.ConnectTimeout)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration like %q", clip(c.ConnectTimeout), "30s")
	case d < time.Second || d > 10*time.Minute:
		return 0, fmt.Errorf("%s is not between 1s and 10m", d)
	}
	return d, nil
}

func (c Config) useAgent() bool { return c.Agent == nil || *c.Agent }

// clip bounds text from outside in a message.
func clip(text string) string {
	const most = 120
	if len(text) <= most {
		return text
	}
	return text[:most] + "…"
}
