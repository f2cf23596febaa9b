// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// remoteBackend is a backend on the test's engine, reached over an sshd.
type remoteBackend struct {
	*docker.Extension
	fleet string
	pool  *sshtransport.Pool
}

// openRemote configures a backend whose engine is behind a server. The
// socket is that of the test's engine unless the address names another.
func openRemote(t testing.TB, s *sshtest.Server, fleet, socket string, keepalive time.Duration) remoteBackend {
	t.Helper()
	pool := s.Pool(sshtransport.Options{Keepalive: keepalive})
	e := docker.New(docker.Options{Program: programs(t), Getenv: func(string) string { return "" }, SSH: pool})
	config, err := json.Marshal(map[string]any{
		"host": s.URL() + socket, "reaper": "external",
		"ssh": map[string]any{"key_file": s.KeyFile, "known_hosts_file": s.KnownHosts, "agent": false},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "remote", Fleet: fleet, Config: config}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return remoteBackend{e, fleet, pool}
}

// socketOf is the socket of the test's engine.
func (b backend) socket() string { return strings.TrimPrefix(b.engine.Host, "unix://") }

// Many sandboxes are made at once over one connection, and used and removed:
// fifty at full size, which takes the engine two minutes on a small machine.
func TestDockerManyCreatesOverSSH(t *testing.T) {
	many := 12 // more than there are sessions on a connection
	if fullSize() {
		many = 50
	}
	b := open(t)
	s := sshtest.Start(t)
	remote := openRemote(t, s, b.fleet, b.socket(), 0)
	var making sync.WaitGroup
	var mu sync.Mutex
	var targets []sdk.Target
	for range many {
		making.Go(func() {
			made, err := remote.Create(t.Context(), b.creation())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			targets = append(targets, sdk.Target{ID: made.Sandbox.ID, Ref: made.Sandbox.Ref, Fleet: b.fleet})
		})
	}
	making.Wait()
	list, err := remote.List(t.Context(), sdk.ListOptions{Fleet: b.fleet})
	if err != nil || len(list.Sandboxes) != many {
		t.Errorf("%d sandboxes, %v", len(list.Sandboxes), err)
	}
	if s.Logins() != 1 {
		t.Errorf("%d connections, want 1", s.Logins())
	}
	for _, target := range targets[:min(len(targets), 3)] {
		var out strings.Builder
		result, err := remote.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"cat"}, Stdin: strings.NewReader("through"), Stdout: &out})
		if err != nil || result.ExitCode != 0 || out.String() != "through" {
			t.Errorf("%+v, %q, %v", result, out.String(), err)
		}
	}
	var removing sync.WaitGroup
	for _, target := range targets {
		removing.Go(func() {
			if _, err := remote.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
				t.Error(err)
			}
		})
	}
	removing.Wait()
}

// Where the SSH server forwards to no socket, the host's docker command is the
// way; where there is none, the error says both.
func TestDockerOverDialStdio(t *testing.T) {
	b := open(t)
	s := sshtest.Start(t, "AllowStreamLocalForwarding no")
	remote := openRemote(t, s, b.fleet, b.socket(), 0)
	made, err := remote.Create(t.Context(), b.creation())
	if err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: made.Sandbox.ID, Ref: made.Sandbox.Ref, Fleet: b.fleet}
	var out strings.Builder
	if _, err := remote.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"echo", "through"}, Stdout: &out}); err != nil || out.String() != "through\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	probe, err := remote.Probe(t.Context(), sdk.ProbeOptions{})
	if err != nil || !slices.ContainsFunc(probe.Details, func(d sdk.Detail) bool { return strings.HasPrefix(d.Value, "docker system dial-stdio") }) {
		t.Errorf("%+v, %v", probe.Details, err)
	}
	if _, err := remote.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
		t.Error(err)
	}

	bare := openRemote(t, sshtest.Start(t, "AllowStreamLocalForwarding no", "SetEnv PATH=/nowhere"), b.fleet, b.socket(), 0)
	_, err = bare.List(t.Context(), sdk.ListOptions{Fleet: b.fleet})
	if !errors.Is(err, sdk.ErrUnreachable) || !strings.Contains(err.Error(), "AllowStreamLocalForwarding") {
		t.Errorf("%v", err)
	}
}

// The engine's socket is found where the host's own docker command would find
// it, and when it is not, the reason is told.
func TestDockerFindsTheSocketOfTheHost(t *testing.T) {
	b := open(t)
	runtime := t.TempDir()
	if err := os.Symlink(b.socket(), filepath.Join(runtime, "docker.sock")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(runtime, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env, socket string
		way, says   string
	}{
		"DOCKER_HOST":          {env: "DOCKER_HOST=" + b.engine.Host, way: b.socket()},
		"rootless":             {env: "XDG_RUNTIME_DIR=" + runtime, way: filepath.Join(runtime, "docker.sock")},
		"nowhere":              {env: "XDG_RUNTIME_DIR=/nowhere", says: `there is no "/nowhere/docker.sock"`},
		"named and missing":    {env: "A=b", socket: "/no/such.sock", says: `there is no "/no/such.sock"`},
		"named and no socket":  {env: "A=b", socket: file, says: "is no socket"},
		"DOCKER_HOST, missing": {env: "DOCKER_HOST=unix:///no/such.sock", says: `there is no "/no/such.sock"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := sshtest.Start(t, "SetEnv HOME="+runtime+" "+c.env)
			remote := openRemote(t, s, b.fleet, c.socket, 0)
			probe, err := remote.Probe(t.Context(), sdk.ProbeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if c.says != "" {
				if probe.Usable || !strings.Contains(probe.Reason, c.says) || !strings.Contains(probe.Reason, s.Endpoint()) {
					t.Errorf("%+v", probe)
				}
				return
			}
			if want := "stream to " + c.way; !probe.Usable || !slices.ContainsFunc(probe.Details, func(d sdk.Detail) bool { return strings.HasPrefix(d.Value, want) }) {
				t.Errorf("%s, %+v", probe.Reason, probe.Details)
			}
		})
	}
}

// A host, a connection or an engine that is killed, frozen or restarted is a
// typed error in time, and the next call works again. Nothing is called gone.
func TestDockerRemoteFaults(t *testing.T) {
	b := open(t)
	s := sshtest.Start(t)
	remote := openRemote(t, s, b.fleet, b.socket(), time.Second)
	made, err := remote.Create(t.Context(), b.creation())
	if err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: made.Sandbox.ID, Ref: made.Sandbox.Ref, Fleet: b.fleet}
	get := func() error {
		_, err := remote.Get(t.Context(), sdk.GetOptions{Target: target})
		return err
	}
	inFlight := func(fault func()) error {
		t.Helper()
		began, ended := make(chan struct{}), make(chan error, 1)
		out, in := io.Pipe()
		go func() { out.Read(make([]byte, 1)); close(began); io.Copy(io.Discard, out) }()
		go func() {
			_, err := remote.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", "echo; sleep 300"}, Stdout: in})
			ended <- err
		}()
		<-began
		fault()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Fatal("the call hangs")
			return nil
		}
	}
	if err := inFlight(s.KillConnections); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("an exec on a killed connection: %v", err)
	}
	if err := get(); err != nil {
		t.Errorf("after a killed connection: %v", err)
	}
	if err := inFlight(s.Freeze); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("an exec on a frozen connection: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	if _, err := remote.Get(ctx, sdk.GetOptions{Target: target}); err == nil || errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("a get from a frozen host: %v", err)
	}
	cancel()
	s.Thaw()
	if err := get(); err != nil {
		t.Errorf("after the thaw: %v", err)
	}
	s.Stop()
	if err := get(); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a get from a host that is down: %v", err)
	}
	if _, err := remote.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a destroy on a host that is down: %v", err)
	}
	s.Restart()
	if _, err := remote.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	b.nothingLeft(t, target.ID)
}

// A port on the loopback of a remote engine is forwarded, one of a local
// engine needs nothing.
func TestDockerForward(t *testing.T) {
	b := open(t)
	s := sshtest.Start(t)
	remote := openRemote(t, s, b.fleet, b.socket(), 0)
	_, target := b.create(t, func(opts *sdk.CreateOptions) {
		opts.Profile.Ports = map[string]int{"echo": 7000}
		opts.Profile.Command = []string{"sh", "-c", "while :; do nc -l -p 7000 -e cat; done"}
	})
	direct, err := b.Forward(t.Context(), sdk.ForwardOptions{Target: target, Port: "echo"})
	if err != nil || direct.Dial != nil || !strings.HasPrefix(direct.Address, "127.0.0.1:") {
		t.Errorf("a local engine: %+v, %v", direct, err)
	}
	way, err := remote.Forward(t.Context(), sdk.ForwardOptions{Target: target, Port: "echo"})
	if err != nil || way.Dial == nil || way.Address != direct.Address {
		t.Fatalf("%+v, %v", way, err)
	}
	waitFor(t, "the port answers", func() bool { return echoes(t, way.Dial) })
	if _, err := remote.Forward(t.Context(), sdk.ForwardOptions{Target: target, Port: "other"}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("a port that is not there: %v", err)
	}
}

func echoes(t *testing.T, dial func(context.Context) (net.Conn, error)) bool {
	conn, err := dial(t.Context())
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "through\n"); err != nil {
		return false
	}
	line := make([]byte, 8)
	_, err = io.ReadFull(conn, line)
	return err == nil && string(line) == "through\n"
}

// What the settings can't mean is refused on its attribute.
func TestDockerSSHSettings(t *testing.T) {
	for config, path := range map[string]string{
		`{"host":"ssh://u:s3cret@h"}`:                          "host",
		`{"host":"ssh://"}`:                                    "host",
		`{"host":"ssh://-oProxyCommand=x"}`:                    "host",
		`{"host":"unix:///x","ssh":{"key_file":"/x"}}`:         "ssh",
		`{"host":"ssh://h","ssh":{"key_fil":"/x"}}`:            "ssh.key_fil",
		`{"host":"ssh://h","ssh":{"password":1}}`:              "ssh.password",
		`{"host":"ssh://h","ssh":{"host_key_policy":"no"}}`:    "ssh.host_key_policy",
		`{"host":"ssh://h","ssh":"s3cret"}`:                    "ssh",
		`{"host":"ssh://h","ssh":{"proxy_jump":["ok","a b"]}}`: "ssh.proxy_jump[1]",
	} {
		_, err := docker.New(docker.Options{}).Configure(t.Context(), sdk.ConfigureOptions{Config: []byte(config)})
		var fault *sdk.Error
		if !errors.As(err, &fault) || !errors.Is(err, sdk.ErrInvalid) || fault.Path != path || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want a fault at %s", config, err, path)
		}
	}
}
