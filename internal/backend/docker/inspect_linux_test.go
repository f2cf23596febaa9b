// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// one is the backend as the verbs see it.
type one struct{ sdk.Extension }

func (o one) Open(context.Context, string) (sdk.Extension, error) { return o.Extension, nil }
func (one) Names() []string                                       { return []string{"docker"} }
func (one) Default() string                                       { return "docker" }

// manager returns the verbs over a backend.
func (b backend) manager(t *testing.T) *lifecycle.Manager {
	t.Helper()
	return lifecycle.New(ledger.New(t.TempDir(), clock.System{}), one{b.Extension}, clock.System{}, lifecycle.Settings{Fleet: b.fleet, Verdicts: t.TempDir()})
}

// isolated is a profile that asks for credential isolation.
func isolated(change func(p *sdk.Profile)) sdk.Profile {
	p := sdk.Profile{Name: "isolated", Image: dockertest.Busybox, Requires: map[sdk.Feature]sdk.Class{sdk.FeatureCredentialIsolation: sdk.ClassEnforced}}
	change(&p)
	return p
}

// A profile that leaks in one way fails the check that is about that way, and
// no other; what it leaks is in no evidence, and nothing of it is left.
func TestDockerEachLeakFailsItsCheck(t *testing.T) {
	b := open(t)
	m := b.manager(t)
	dir := filepath.Join(b.engine.Dir, dockertest.LeakDir)
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("leaked-token"), 0o644); err != nil {
		t.Fatal(err)
	}
	agent, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Close() })
	if err := os.Chmod(filepath.Join(dir, "agent.sock"), 0o777); err != nil {
		t.Fatal(err)
	}
	hook := func(p *sdk.Profile) {}
	for _, c := range []struct {
		name  string
		check sdk.IsolationCheck
		leak  func(p *sdk.Profile)
	}{
		{"a variable of the profile", sdk.CheckEnvironment, func(p *sdk.Profile) { p.Env = map[string]string{"API_TOKEN": "leaked-value"} }},
		{"an argument of the command", sdk.CheckArguments, func(p *sdk.Profile) { p.Command = []string{"sh", "-c", "sleep 600", "--password", "leaked-value"} }},
		{"a label", sdk.CheckArguments, func(p *sdk.Profile) { p.Labels = map[string]string{"deploy-token": "leaked-value"} }},
		{"a file in a home directory", sdk.CheckFiles, func(p *sdk.Profile) {
			p.Files = map[string]sdk.File{"/root/.aws/credentials": {Content: "[default]\naws_secret = leaked-value"}}
		}},
		{"a token where clusters mount it", sdk.CheckTokens, func(p *sdk.Profile) {
			p.Files = map[string]sdk.File{"/var/run/secrets/tokens/api": {Content: "leaked-value"}}
		}},
		{"a command that hands its secret on", sdk.CheckSecrets, func(p *sdk.Profile) {
			p.Command = []string{"sh", "-c", "LEAK=$(cat /run/secrets/*) exec sleep 600"}
			p.Ready = &sdk.Ready{Exec: []string{"sh", "-c", "grep -lq LEAK= /proc/[0-9]*/environ"}}
		}},
		{"a hook that adds a variable", sdk.CheckEnvironment, hook}, {"a hook that mounts a token", sdk.CheckTokens, hook},
		{"a hook that mounts an agent's socket", sdk.CheckAgents, hook}, {"a hook that mounts the engine's socket", sdk.CheckEngine, hook},
		{"a hook that mounts a directory", sdk.CheckMounts, hook}, {"a hook that adds a device", sdk.CheckDevices, hook},
		{"a hook that shares the processes", sdk.CheckNamespaces, hook}, {"a hook that lets new privileges through", sdk.CheckPrivileges, hook},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := isolated(c.leak)
			if strings.HasPrefix(c.name, "a hook") {
				p.Runtime = dockertest.RuntimePrefix + string(c.check)
			}
			made := ""
			got, err := m.Verify(t.Context(), lifecycle.VerifyOptions{Profile: p, Created: func(s lifecycle.Sandbox) { made = s.ID }})
			if err != nil {
				t.Fatal(err)
			}
			if failed := got.Of(sdk.VerdictFailed); !slices.Equal(failed, []string{string(c.check)}) {
				t.Errorf("failed: %q", failed)
			}
			if unknown := got.Of(sdk.VerdictUnknown); len(unknown) > 0 {
				t.Errorf("unknown: %q", unknown)
			}
			for _, check := range got.Checks {
				for _, f := range check.Findings {
					if f.Verdict != sdk.VerdictPassed {
						t.Logf("%s, %s, %s: %q", f.Check, f.Side, f.Verdict, f.Evidence)
					}
					if strings.Contains(strings.Join(f.Evidence, "\n"), "leaked-") {
						t.Errorf("the evidence of %s holds the value: %q", f.Check, f.Evidence)
					}
				}
			}
			b.nothingLeft(t, made)
			_, err = m.Create(t.Context(), lifecycle.CreateOptions{Profile: p})
			if !errors.Is(err, sdk.ErrUnsupported) || !strings.Contains(err.Error(), "these checks failed: "+string(c.check)) {
				t.Errorf("a create that requires isolation: %v", err)
			}
		})
	}
}

// What is made as usual passes, whatever the image: without a shell, for
// another user, with volumes, with ports.
func TestDockerOrdinaryProfilesAreIsolated(t *testing.T) {
	b := open(t)
	m := b.manager(t)
	for name, change := range map[string]func(p *sdk.Profile){
		"a shell":                  func(*sdk.Profile) {},
		"no program at all":        func(p *sdk.Profile) { p.Image = dockertest.Empty },
		"another user and volumes": func(p *sdk.Profile) { p.Image = dockertest.Defaults },
		"ports and no way out":     func(p *sdk.Profile) { p.Ports = map[string]int{"web": 8080} },
		"the network":              func(p *sdk.Profile) { p.Network = &sdk.Network{Egress: sdk.EgressOpen} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := isolated(change)
			if _, err := m.Create(t.Context(), lifecycle.CreateOptions{Profile: p}); !errors.Is(err, sdk.ErrUnsupported) {
				t.Errorf("a create before it was verified: %v", err)
			}
			got, err := m.Verify(t.Context(), lifecycle.VerifyOptions{Profile: p})
			if err != nil {
				t.Fatal(err)
			}
			for _, check := range got.Checks {
				for _, f := range check.Findings {
					if f.Verdict != sdk.VerdictPassed {
						t.Errorf("%s, %s: %s: %q", f.Check, f.Side, f.Verdict, f.Evidence)
					}
				}
			}
			made, err := m.Create(t.Context(), lifecycle.CreateOptions{Profile: p})
			if err != nil {
				t.Fatalf("a create after it was verified: %v", err)
			}
			if _, err := m.Destroy(t.Context(), made.ID, lifecycle.DestroyOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A service at a cloud's address is found by whoever has a way out to it, and
// by nobody else.
func TestDockerTheWayToAMetadataServiceIsFound(t *testing.T) {
	b := open(t)
	m := b.manager(t)
	serveMetadata(t)
	for egress, want := range map[string][]string{sdk.EgressOpen: {string(sdk.CheckMetadata)}, sdk.EgressNone: nil, sdk.EgressDeny: nil} {
		p := isolated(func(p *sdk.Profile) { p.Network = &sdk.Network{Egress: egress} })
		got, err := m.Verify(t.Context(), lifecycle.VerifyOptions{Profile: p})
		if err != nil {
			t.Fatal(err)
		}
		if failed := got.Of(sdk.VerdictFailed); !slices.Equal(failed, want) {
			t.Errorf("with egress %s failed: %q", egress, failed)
		}
	}
}

// serveMetadata gives the loopback of the engine's machine the address of a
// cloud's service, and listens there until the test ends.
func serveMetadata(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	request, err := unix.NewIfreq("lo:cloud")
	if err == nil {
		err = errors.Join(request.SetInet4Addr([]byte{169, 254, 169, 254}), unix.IoctlIfreq(fd, unix.SIOCSIFADDR, request))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		request.SetUint16(0) // down, which takes the address away
		if err := errors.Join(unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request), unix.Close(fd)); err != nil {
			t.Error(err)
		}
	})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "169.254.169.254:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
}
