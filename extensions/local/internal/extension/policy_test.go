// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestWhatCanNotBeDoneIsRefusedOnItsAttribute(t *testing.T) {
	e := backend(t)
	for path, change := range map[string]func(*sdk.CreateOptions){
		"build":            func(o *sdk.CreateOptions) { o.Profile.Build = &sdk.BuildSource{Context: "."} },
		"compose":          func(o *sdk.CreateOptions) { o.Profile.Compose = &sdk.ComposeSpec{} },
		"machine":          func(o *sdk.CreateOptions) { o.Profile.Machine = &sdk.MachineSpec{} },
		"template":         func(o *sdk.CreateOptions) { o.Profile.Template = "t" },
		"runtime":          func(o *sdk.CreateOptions) { o.Profile.Runtime = "runc" },
		"limits.pids":      func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Pids: -5} },
		"limits.disk":      func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Disk: "much"} },
		"limits.memory":    func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Memory: "1KiB"} },
		"limits.wall":      func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Wall: "soon"} },
		"network.egress":   func(o *sdk.CreateOptions) { o.Profile.Network = &sdk.Network{Egress: "maybe"} },
		"network.allow[0]": func(o *sdk.CreateOptions) { o.Profile.Network = &sdk.Network{Egress: "deny", Allow: []string{"a:"}} },
		"on_expiry":        func(o *sdk.CreateOptions) { o.OnExpiry = "keep" },
		"idle_timeout":     func(o *sdk.CreateOptions) { o.IdleTimeout = -time.Second },
		"ports.web":        func(o *sdk.CreateOptions) { o.Profile.Ports = map[string]int{"web": 70000} },
		"files":            func(o *sdk.CreateOptions) { o.Profile.Files = map[string]sdk.File{"/a/../b": {}} },
		"secrets":          func(o *sdk.CreateOptions) { o.Secrets = map[string]sdk.Secret{"../x": "s"} },
		"user":             func(o *sdk.CreateOptions) { o.Profile.User = "no-such-user" },
		"workdir":          func(o *sdk.CreateOptions) { o.Profile.Workdir = "here" },
		"env":              func(o *sdk.CreateOptions) { o.Env = map[string]string{"a=b": "c"} },
		"id":               func(o *sdk.CreateOptions) { o.ID = "../../etc" },
		"ttl":              func(o *sdk.CreateOptions) { o.ExpiresAt = time.Now().Add(-time.Second) },
	} {
		opts := options(sdk.Profile{Name: "shell"})
		change(&opts)
		_, err := e.Create(t.Context(), opts)
		var refusal *sdk.Error
		if !errors.As(err, &refusal) || refusal.Path != path {
			t.Errorf("%s: %v, want an error on it", path, err)
		}
		if err == nil {
			destroyLater(t, e, opts.ID)
		}
	}
}

// listener is a server of the host that tells whether anyone came.
func listener(t *testing.T) (port int, came func() bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	visits := make(chan bool, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(c, "hello")
			c.Close()
			visits <- true
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, func() bool { return len(visits) > 0 }
}

func TestEgress(t *testing.T) {
	e := backend(t)
	for policy, reaches := range map[string]bool{"": false, sdk.EgressNone: false, sdk.EgressDeny: false, sdk.EgressOpen: true} {
		port, came := listener(t)
		profile := sdk.Profile{Name: "net", Network: &sdk.Network{Egress: policy}}
		s := create(t, e, options(profile))
		script := fmt.Sprintf("import socket; print(socket.create_connection(('127.0.0.1', %d), 5).recv(9))", port)
		_, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), Command: []string{"python3", "-c", script}, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if came() != reaches {
			t.Errorf("egress %q: reached the host %v, want %v", policy, came(), reaches)
		}
		if reaches {
			continue
		}
		// Every other way out that there could be.
		script = `
import socket
for family, kind, to in ((socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)), (socket.AF_INET6, socket.SOCK_DGRAM, ("2001:db8::1", 53)), (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80))):
    try:
        s = socket.socket(family, kind); s.settimeout(3); s.connect(to); s.send(b"x"); print("out", to)
    except OSError: pass
try:
    socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"); print("socket")
except OSError: pass
`
		if got := run(t, e, s.ID, "python3", "-c", script); got != "" {
			t.Errorf("egress %q: %s", policy, got)
		}
	}
}

func TestPortsArePublishedOnLoopback(t *testing.T) {
	e := backend(t)
	for _, policy := range []string{sdk.EgressNone, sdk.EgressDeny} {
		profile := counter
		profile.Network = &sdk.Network{Egress: policy}
		s := create(t, e, options(profile))
		run(t, e, s.ID, "sh", "-c", "until [ -e /srv/listening ]; do sleep 0.05; done")
		if !strings.HasPrefix(s.Endpoints["web"], "127.0.0.1:") {
			t.Errorf("endpoint %q", s.Endpoints["web"])
		}
		for want := 1; want <= 5; want++ {
			if got := count(t, s); got != want {
				t.Errorf("egress %s: count %d, want %d", policy, got, want)
			}
		}
	}
}

func TestProbe(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	for range 2 {
		probed, err := e.Probe(t.Context(), sdk.ProbeOptions{})
		if err != nil || !probed.Usable || probed.Reason != "" {
			t.Fatalf("%+v, %v", probed, err)
		}
		for feature, g := range probed.Capabilities {
			if g.DependsOnMachine || !g.Class.Valid() || g.Reason == "" {
				t.Errorf("%s is not decided: %+v", feature, g)
			}
		}
	}
	if left, _ := os.ReadDir(filepath.Join(state, "local", "sandboxes")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	shellScript := write(t, "program", []byte("#!/bin/sh\n"))
	broken := extension.New(extension.Options{Program: shellScript})
	if _, err := broken.Configure(t.Context(), sdk.ConfigureOptions{Fleet: fleet, Config: []byte(`{"state_dir":` + strconv.Quote(stateDir(t)) + `}`)}); err != nil {
		t.Fatal(err)
	}
	if probed, err := broken.Probe(t.Context(), sdk.ProbeOptions{}); err != nil || probed.Usable || probed.Reason == "" {
		t.Errorf("a program that can't work: %+v, %v", probed, err)
	}
	dynamic := extension.New(extension.Options{Program: "/bin/sh"})
	if probed, err := dynamic.Probe(t.Context(), sdk.ProbeOptions{}); err != nil || probed.Usable || !strings.Contains(probed.Reason, "dynamically linked") || !strings.Contains(probed.Advice, "CGO_ENABLED=0") {
		t.Errorf("a dynamic program: %+v, %v", probed, err)
	}
}

func TestConfigure(t *testing.T) {
	for config, path := range map[string]string{
		`{"state_dir": 5}`:          "state_dir",
		`{"state_dir": "relative"}`: "state_dir",
		`{"speed": "high"}`:         "speed",
		`[]`:                        "config",
	} {
		_, err := extension.New(extension.Options{}).Configure(t.Context(), sdk.ConfigureOptions{Config: []byte(config)})
		var refusal *sdk.Error
		if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &refusal) || refusal.Path != path {
			t.Errorf("%s: %v, want ErrInvalid on %s", config, err, path)
		}
	}
}

func TestDescribeNamesEveryFeature(t *testing.T) {
	d, err := extension.New(extension.Options{}).Describe(t.Context(), sdk.DescribeOptions{})
	if err != nil || d.Name != "local" {
		t.Fatal(d.Name, err)
	}
	for _, feature := range sdk.Features() {
		if g, ok := d.Capabilities[feature]; !ok || !g.Class.Valid() || g.Reason == "" {
			t.Errorf("%s: %+v", feature, g)
		}
	}
}
