// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The description and the struct have the same keys.
func TestKeysDescribeTheConfig(t *testing.T) {
	described := map[string]sdk.ConfigKey{}
	for _, key := range Keys() {
		described[key.Name] = key
		if key.Description == "" || key.Required {
			t.Errorf("%+v", key)
		}
	}
	config := reflect.TypeFor[Config]()
	for i := range config.NumField() {
		field := config.Field(i)
		key, found := described[field.Tag.Get("json")]
		if !found {
			t.Errorf("%s is not described", field.Name)
		}
		if secret := field.Type == reflect.TypeFor[sdk.Secret](); secret != key.Sensitive {
			t.Errorf("%s: secret %v, described as sensitive %v", field.Name, secret, key.Sensitive)
		}
	}
	if len(described) != config.NumField() {
		t.Errorf("%d keys are described, there are %d", len(described), config.NumField())
	}
}

func TestDecodeConfig(t *testing.T) {
	config, err := DecodeConfig([]byte(`{"key_file":"~/.ssh/k","agent":false,"proxy_jump":["a","ssh://u@b:2"],"passphrase":"p","connect_timeout":"5s","host_key":null}`), "ssh")
	if err != nil || config.KeyFile != "~/.ssh/k" || config.useAgent() || len(config.ProxyJump) != 2 || config.Passphrase != "p" {
		t.Errorf("%+v, %v", config, err)
	}
	if config, err := DecodeConfig(nil, "ssh"); err != nil || !reflect.DeepEqual(config, Config{}) || !config.useAgent() {
		t.Errorf("nothing: %+v, %v", config, err)
	}
	for text, path := range map[string]string{
		`[]`:                                                   "ssh",
		`{"key_fil":"/x"}`:                                     "ssh.key_fil",
		`{"key_file":1}`:                                       "ssh.key_file",
		`{"key_file":"relative"}`:                              "ssh.key_file",
		`{"known_hosts_file":"x"}`:                             "ssh.known_hosts_file",
		`{"ssh_config_file":"x"}`:                              "ssh.ssh_config_file",
		`{"agent":"yes"}`:                                      "ssh.agent",
		`{"passphrase":{"s3cret":1}}`:                          "ssh.passphrase",
		`{"passphrase_command":"x"}`:                           "ssh.passphrase_command",
		`{"passphrase_command":[]}`:                            "ssh.passphrase_command",
		`{"passphrase_command":[""]}`:                          "ssh.passphrase_command",
		`{"host_key_policy":"no"}`:                             "ssh.host_key_policy",
		`{"host_key":"s3cret"}`:                                "ssh.host_key",
		`{"host_key":"SHA256:short"}`:                          "ssh.host_key",
		`{"host_key":"ssh-ed25519 AAAA"}`:                      "ssh.host_key",
		`{"proxy_jump":["ok","u:s3cret@h"]}`:                   "ssh.proxy_jump[1]",
		`{"proxy_jump":["ssh://h/path"]}`:                      "ssh.proxy_jump[0]",
		`{"connect_timeout":"soon"}`:                           "ssh.connect_timeout",
		`{"connect_timeout":"1h"}`:                             "ssh.connect_timeout",
		`{"connect_timeout":"0s"}`:                             "ssh.connect_timeout",
		`{"key_file":"/x","private_key":"s3cret"}`:             "ssh.private_key",
		`{"passphrase":"s3cret","passphrase_command":["x"]}`:   "ssh.passphrase_command",
		`{"proxy_jump":["1","2","3","4","5","6","7","8","9"]}`: "ssh.proxy_jump",
		`{"host_key":"SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","host_key_policy":"accept_new"}`: "ssh.host_key_policy",
		`{"` + strings.Repeat("k", 500) + `":1}`:                                                           "ssh." + clip(strings.Repeat("k", 500)),
	} {
		_, err := DecodeConfig([]byte(text), "ssh")
		var fault *sdk.Error
		if !errors.As(err, &fault) || !errors.Is(err, sdk.ErrInvalid) || fault.Path != path {
			t.Errorf("%s: %v, want a fault at %s", text, err, path)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: a secret is in %q", text, err)
		}
	}
}

// A configuration that is printed or encoded keeps its secrets.
func TestConfigHidesSecrets(t *testing.T) {
	config := Config{PrivateKey: "s3cret", Passphrase: "s3cret", Password: "s3cret"}
	encoded, err := json.Marshal(config)
	if text := fmt.Sprintf("%v %+v %#v %s", config, config, config, encoded); err != nil || strings.Contains(text, "s3cret") {
		t.Errorf("%s, %v", text, err)
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]Address{
		"ssh://host":                        {Host: "host"},
		"ssh://host/":                       {Host: "host"},
		"ssh://ci@build-1:2222":             {User: "ci", Host: "build-1", Port: 2222},
		"ssh://ci@[::1]:22/run/docker.sock": {User: "ci", Host: "::1", Port: 22, Path: "/run/docker.sock"},
		"ssh://user%40domain@10.0.0.1":      {User: "user@domain", Host: "10.0.0.1"},
		"ssh://[fe80::1%25eth0]":            {Host: "fe80::1%eth0"},
		"ssh://h/with%20space":              {Host: "h", Path: "/with space"},
	} {
		got, err := ParseAddress(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if again, err := ParseAddress(got.String()); err != nil || again != got {
			t.Errorf("%s became %s: %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{
		"", "host", "tcp://host", "ssh://", "ssh:///path", "ssh://@host", "ssh://host:", "ssh://host:0", "ssh://host:65536", "ssh://host:x",
		"ssh://u:s3cret@host", "ssh://host?q", "ssh://host#f", "ssh://-oProxyCommand=x", "ssh://-o@host", "ssh://ho st", "ssh://ho%00st",
		"ssh://host%0a", "ssh://u%0a@host", "ssh://u;id@host", "ssh://ho,st", "ssh://ho*st", "ssh://host/%00", "ssh://" + strings.Repeat("h", 256),
		"ssh://" + strings.Repeat("u", 3000) + "@h", "ssh://h/\x7f",
	} {
		if got, err := ParseAddress(text); err == nil {
			t.Errorf("%q was taken as %+v", text, got)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a secret is in %q", err)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, text := range []string{"ssh://u@h:22/p", "ssh://[::1%25e]:1", "u@h:1", "[::1]:2", "ssh://u%40d@h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAddress(text)
		if err != nil {
			return
		}
		if again, err := ParseAddress(a.String()); err != nil || again != a {
			t.Fatalf("%q: %+v became %+v, %v", text, a, again, err)
		}
	})
}

func FuzzParseJump(f *testing.F) {
	for _, text := range []string{"h", "u@h:1", "[::1]:2", "u@d@h", "ssh://u@h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseJump(text)
		if err != nil {
			return
		}
		if a.Host == "" || a.Path != "" || strings.ContainsAny(a.Host+a.User, " \n\x00;*") || strings.HasPrefix(a.Host, "-") || strings.HasPrefix(a.User, "-") {
			t.Fatalf("%q became %+v", text, a)
		}
	})
}
