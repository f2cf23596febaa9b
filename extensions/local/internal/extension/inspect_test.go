// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const canary = sdk.Secret("canary-that-sings")

// inspect makes a sandbox with a canary and looks at it. It fails where a
// check was not made from a side, and where evidence holds what leaks.
func inspect(t *testing.T, e *extension.Extension, p sdk.Profile, ready func(id string) bool) []sdk.Finding {
	t.Helper()
	opts := options(p)
	opts.Secrets = map[string]sdk.Secret{"CANARY": canary}
	s := create(t, e, opts)
	for end := time.Now().Add(30 * time.Second); ready != nil && !ready(s.ID); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not leak")
		}
	}
	result, err := e.Inspect(t.Context(), sdk.InspectOptions{Target: target(s.ID), Canary: "CANARY", CanaryValue: canary})
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range sdk.IsolationChecks() {
		for _, side := range check.Sides() {
			made := slices.ContainsFunc(result.Findings, func(f sdk.Finding) bool { return f.Check == check && f.Side == side })
			if side != sdk.SideProfile && !made {
				t.Errorf("%s was not made from %s", check, side)
			}
		}
	}
	for _, f := range result.Findings {
		if text := strings.Join(f.Evidence, "\n"); strings.Contains(text, "leaked-") || strings.Contains(text, string(canary)) {
			t.Errorf("the evidence of %s holds a value: %q", f.Check, f.Evidence)
		}
	}
	return result.Findings
}

// notPassed returns the checks that have a finding that is not passed.
func notPassed(t *testing.T, findings []sdk.Finding) []sdk.IsolationCheck {
	t.Helper()
	var checks []sdk.IsolationCheck
	for _, f := range findings {
		if f.Verdict != sdk.VerdictPassed {
			t.Logf("%s, %s: %s: %q", f.Check, f.Side, f.Verdict, f.Evidence)
			checks = append(checks, f.Check)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(checks)))
}

func TestOrdinarySandboxesAreIsolated(t *testing.T) {
	e := backend(t)
	for name, p := range map[string]sdk.Profile{
		"the host's root":       {Name: "shell"},
		"another user":          {Name: "shell", User: "nobody"},
		"a port and no way out": {Name: "shell", Ports: map[string]int{"web": 8080}},
		"an image":              {Name: "image", Image: layout(t, archive(t, shell(t)...).Bytes())},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && p.User != "" {
				p.User = "" // such a sandbox knows one user alone
			}
			if bad := notPassed(t, inspect(t, e, p, nil)); len(bad) > 0 {
				t.Errorf("not passed: %q", bad)
			}
		})
	}
}

// A profile that leaks in one way fails the check that is about that way, and
// no other. What a profile can't do here, as mounting something of the host,
// has no case; what reaches the network has one in a network of its own, below.
func TestEachLeakFailsItsCheck(t *testing.T) {
	e := backend(t)
	listen := func(path string) []string {
		return []string{"python3", "-c", "import os,socket,time\nos.makedirs(os.path.dirname('" + path + "'),exist_ok=True)\ns=socket.socket(socket.AF_UNIX)\ns.bind('" + path + "')\ns.listen()\ntime.sleep(600)"}
	}
	exists := func(path string) func(string) bool {
		return func(id string) bool {
			result, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(id), Command: []string{"test", "-e", path}})
			return err == nil && result.ExitCode == 0
		}
	}
	for name, c := range map[string]struct {
		check   sdk.IsolationCheck
		profile sdk.Profile
		ready   func(id string) bool
	}{
		"a variable":                         {sdk.CheckEnvironment, sdk.Profile{Env: map[string]string{"API_TOKEN": "leaked-value"}}, nil},
		"an argument":                        {sdk.CheckArguments, sdk.Profile{Command: []string{"sh", "-c", "sleep 600", "--password", "leaked-value"}}, nil},
		"a file in a home directory":         {sdk.CheckFiles, sdk.Profile{Files: map[string]sdk.File{"/root/.git-credentials": {Content: "leaked-value"}}}, nil},
		"a token where clusters mount it":    {sdk.CheckTokens, sdk.Profile{Files: map[string]sdk.File{"/run/secrets/tokens/api": {Content: "leaked-value"}}}, nil},
		"a command that hands its secret on": {sdk.CheckSecrets, sdk.Profile{Command: []string{"sh", "-c", "cp /run/secrets/CANARY /tmp/copy; chmod 644 /tmp/copy; sleep 600"}}, exists("/tmp/copy")},
		"an agent's socket":                  {sdk.CheckAgents, sdk.Profile{Command: listen("/tmp/ssh-leak/agent.7")}, exists("/tmp/ssh-leak/agent.7")},
		"an engine's socket":                 {sdk.CheckEngine, sdk.Profile{Command: listen("/run/docker.sock")}, exists("/run/docker.sock")},
	} {
		t.Run(name, func(t *testing.T) {
			c.profile.Name = "leaky"
			if failed := notPassed(t, inspect(t, e, c.profile, c.ready)); !slices.Equal(failed, []sdk.IsolationCheck{c.check}) {
				t.Errorf("not passed: %q", failed)
			}
		})
	}
}

// metadataEnv marks the run of a test in a network of its own.
const metadataEnv = "SANDBOXER_TEST_METADATA"

// A sandbox that reaches an address at which a cloud hands out credentials
// fails that check, and one that has the host's network fails the check about
// neighbours. The network is the test's own, and so is the service.
func TestTheWayToAMetadataServiceIsFound(t *testing.T) {
	if os.Geteuid() != 0 {
		return // a network takes root
	}
	if os.Getenv(metadataEnv) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), metadataEnv+"=1", programEnv+"="+program)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("in a network of its own: %v\n%s", err, out)
		}
		return
	}
	serveMetadata(t)
	e := backend(t)
	for name, c := range map[string]struct {
		network sdk.Network
		want    []sdk.IsolationCheck
	}{
		"by an allow-list":    {sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"169.254.169.254:80"}}, []sdk.IsolationCheck{sdk.CheckMetadata}},
		"by another's":        {sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"example.com:443"}}, nil},
		"by the host's":       {sdk.Network{Egress: sdk.EgressOpen}, []sdk.IsolationCheck{sdk.CheckMetadata, sdk.CheckNamespaces}},
		"not without a way":   {sdk.Network{Egress: sdk.EgressNone}, nil},
		"not with all denied": {sdk.Network{Egress: sdk.EgressDeny}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if failed := notPassed(t, inspect(t, e, sdk.Profile{Name: "network", Network: &c.network}, nil)); !slices.Equal(failed, c.want) {
				t.Errorf("not passed: %q, want %q", failed, c.want)
			}
		})
	}
}

// serveMetadata gives this network's loopback the address, and listens there.
func serveMetadata(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, address := range map[string][]byte{"lo": {127, 0, 0, 1}, "lo:cloud": {169, 254, 169, 254}} {
		request, err := unix.NewIfreq(name)
		if err == nil {
			err = request.SetInet4Addr(address)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, request)
		}
		if err == nil {
			request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
			err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "169.254.169.254:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
}
