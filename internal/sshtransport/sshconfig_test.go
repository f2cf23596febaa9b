// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// writeConfig writes files below a home directory and returns it.
func writeConfig(t testing.TB, files map[string]string) string {
	t.Helper()
	home := t.TempDir()
	for name, content := range files {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

func resolveIn(t testing.TB, home, address string) (*target, []*target, error) {
	t.Helper()
	a, err := ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	return resolve(local{home: home, user: "me"}, a, Config{SSHConfigFile: "~/.ssh/config"}, "ssh")
}

// What is read of ssh_config is what OpenSSH itself reads, for each host of a
// configuration that uses all of it.
func TestSSHConfigLikeOpenSSH(t *testing.T) {
	home := writeConfig(t, map[string]string{".ssh/config": `
# a comment
connecttimeout=5
Host plain
  HostName 10.0.0.1
  User deploy
  Port 2201
Host quoted
	HostName "10.0.0.2" # trailing
	IdentityFile "HOME/.ssh/with space"
	identityfile HOME/second
Host = equals
  Port=2202
Host tokens
  HostName %h.example
  IdentityFile HOME/%r@%h:%p-%u-%n-%%
  User someone
Host web-* !web-9
  Port 2203
Host web-?
  Port 2204
  User first
Host web-1
  User second
Match host 10.0.0.1,10.0.0.2
  IdentitiesOnly yes
Match originalhost plain
  IdentityFile HOME/matched
Match !host web-1 originalhost web-*
  IdentityFile HOME/notone
Match all
  UserKnownHostsFile HOME/known1 HOME/known2
Host jumped
  ProxyJump a@bastion:2205,second
  ProxyCommand nonsense
Include HOME/extra/*.conf
Include nothing-there
Host included
  User late
Host *
  User everyone
`,
		"extra/1.conf": "Host included\n  Port 2206\n  User early\n",
		"extra/2.conf": "  Port 2207\n",
	})
	replaceHome(t, home, ".ssh/config")
	path := filepath.Join(home, ".ssh", "config")
	for _, alias := range []string{"plain", "quoted", "equals", "tokens", "web-1", "web-2", "web-9", "web-10", "jumped", "included", "other"} {
		t.Run(alias, func(t *testing.T) {
			want := openSSH(t, path, alias)
			got, hops, err := resolveIn(t, home, "ssh://"+alias)
			if err != nil {
				t.Fatal(err)
			}
			if alias == "jumped" {
				if len(hops) != 2 || hops[0].name() != "a@bastion:2205" && hops[0].port != 2205 || hops[1].alias != "second" {
					t.Errorf("hops %+v", hops)
				}
			}
			check := func(keyword string, got ...string) {
				t.Helper()
				if keyword == "identityfile" && len(got) == 0 {
					return // OpenSSH lists its usual files then
				}
				if !slices.Equal(got, want[keyword]) {
					t.Errorf("%s %q, OpenSSH has %q", keyword, got, want[keyword])
				}
			}
			check("hostname", got.host)
			check("user", got.user)
			check("port", strings.TrimPrefix(got.address(), got.host+":"))
			if alias == "tokens" { // OpenSSH expands these only when it reads the files
				want["identityfile"] = []string{home + "/someone@tokens.example:22-me-tokens-%"}
			}
			check("identityfile", got.keyFiles...)
			check("identitiesonly", map[bool]string{true: "yes", false: "no"}[got.identities])
			check("userknownhostsfile", strings.Join(got.knownHosts[:len(got.knownHosts)-1], " "))
		})
	}
}

func replaceHome(t *testing.T, home, name string) {
	t.Helper()
	path := filepath.Join(home, name)
	content, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.ReplaceAll(string(content), "HOME", home)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// openSSH asks OpenSSH's client what a configuration means for a host.
func openSSH(t *testing.T, config, alias string) map[string][]string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "ssh", "-G", "-F", config, alias).Output()
	if err != nil {
		t.Fatalf("ssh -G (openssh-client): %v", err)
	}
	values := map[string][]string{}
	for line := range strings.Lines(string(output)) {
		keyword, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		values[keyword] = append(values[keyword], value)
	}
	return values
}

// What can't be decided, or would mean another way to the host, is refused
// with its file and line.
func TestSSHConfigRefusals(t *testing.T) {
	for name, c := range map[string]struct{ config, says string }{
		"ProxyCommand":        {"Host h\n  ProxyCommand nc %h %p\n", "config:2: ProxyCommand is not supported"},
		"Match exec":          {"Match exec \"true\"\n", `config:1: the condition "exec"`},
		"Match final":         {"\n\nMatch final host h\n", `config:3: the condition "final"`},
		"Match user":          {"Match user me\n", `the condition "user"`},
		"Match host, exec":    {"Match host h exec \"id\"\n", `the condition "exec"`},
		"Match of nothing":    {"Match host\n", "has no pattern"},
		"port":                {"Port x\n", "config:1: the port"},
		"yes or no":           {"IdentitiesOnly maybe\n", "neither yes nor no"},
		"open quote":          {"User \"x\n", "a quote is not closed"},
		"no value":            {"User\n", "user has no value"},
		"token":               {"IdentityFile /%C\n", "the token %C"},
		"lone token":          {"IdentityFile /%\n", "a lone %"},
		"relative file":       {"IdentityFile id\n", "neither an absolute path"},
		"HostName":            {"HostName a;b\n", "HostName of h"},
		"User":                {"User -x\n", "User of h"},
		"jump host":           {"ProxyJump u:p@h2\n", "jump host"},
		"loop":                {"Host *\n  ProxyJump h2\n", "on the way to itself"},
		"includes itself":     {"Include config\n", "include one another"},
		"NUL":                 {"User a\x00b\n", "NUL"},
		"a directory":         {"Include ~/.ssh\n", ""},
		"very large":          {strings.Repeat("# comment\n", 200_000), "larger than 1 MiB"},
		"no file of the name": {"", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			home := writeConfig(t, map[string]string{".ssh/config": c.config})
			if c.config == "" {
				home = t.TempDir()
			}
			_, _, err := resolveIn(t, home, "ssh://h")
			var fault *sdk.Error
			if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &fault) || fault.Path != "ssh.ssh_config_file" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// What is set in the configuration or in the address comes before
// ssh_config, and nothing is read unless it is asked for.
func TestPrecedence(t *testing.T) {
	home := writeConfig(t, map[string]string{".ssh/config": "Host h\n  HostName real\n  User theirs\n  Port 7\n  ProxyJump j1\n  UserKnownHostsFile /theirs\n"})
	a := Address{User: "mine", Host: "h", Port: 9}
	l := local{home: home, user: "me"}
	got, hops, err := resolve(l, a, Config{SSHConfigFile: "~/.ssh/config", ProxyJump: []string{"j2"}, KnownHostsFile: "/mine"}, "ssh")
	if err != nil || got.name() != "mine@real:9" || len(hops) != 1 || hops[0].host != "j2" || !slices.Equal(got.knownHosts, []string{"/mine"}) {
		t.Errorf("%+v, %+v, %v", got, hops, err)
	}
	got, hops, err = resolve(l, Address{Host: "h"}, Config{}, "ssh")
	if err != nil || got.name() != "me@h:22" || len(hops) != 0 {
		t.Errorf("%+v, %+v, %v", got, hops, err)
	}
	// The password and the host key are the target's.
	_, hops, err = resolve(l, a, Config{Password: "x", HostKey: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", ProxyJump: []string{"j"}}, "ssh")
	if err != nil || hops[0].config.Password != "" || hops[0].config.HostKey != "" {
		t.Errorf("%+v, %v", hops, err)
	}
}

func FuzzSSHConfig(f *testing.F) {
	for _, text := range []string{
		"Host a !b\n User x\n", "Match host a,b originalhost c\nPort 1\n", "IdentityFile \"/a b\" 'c'\n", "Include *\nProxyJump a,b\n",
		"HostName=%h\\\"\n", "UserKnownHostsFile /a /b # c\n", "Match !all\n", "IdentityFile ~/%d%%%n\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		home := writeConfig(t, map[string]string{".ssh/config": text})
		got, hops, err := resolveIn(t, home, "ssh://h")
		if err != nil {
			if !errors.Is(err, sdk.ErrInvalid) {
				t.Fatalf("%v", err)
			}
			return
		}
		for _, one := range append(hops, got) {
			if err := (Address{User: one.user, Host: one.host, Port: one.port}).validate(); err != nil {
				t.Fatalf("%+v: %v", one, err)
			}
			for _, file := range append(one.keyFiles, one.knownHosts...) {
				if !filepath.IsAbs(file) {
					t.Fatalf("%q is relative", file)
				}
			}
		}
	})
}
