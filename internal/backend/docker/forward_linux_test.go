// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The verb listens on loopback, carries connections to the sandbox's port and
// back until it is interrupted, and says of a port of a local engine that it
// needs none of that.
func TestDockerForwardCommand(t *testing.T) {
	b := open(t) // sweeps the fleet
	s := sshtest.Start(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := write("sandboxer.hcl", fmt.Sprintf(`
fleet     = %q
state_dir = %q
backends = {
  near = { docker = { host = %q, reaper = "external" } }
  far  = { docker = { host = %q, reaper = "external", ssh = { key_file = %q, known_hosts_file = %q, agent = false } } }
}
`, b.fleet, filepath.Join(dir, "state"), b.engine.Host, s.URL()+b.socket(), s.KeyFile, s.KnownHosts))
	profile := write("profile.yaml", fmt.Sprintf(`
name: echo
image: %s
command: [sh, -c, "while :; do nc -l -p 7000 -e cat; done"]
ports: {echo: 7000}
`, dockertest.Busybox))
	pool := s.Pool(sshtransport.Options{})
	run := func(ctx context.Context, stdout io.Writer, args ...string) (int, string) {
		var stderr bytes.Buffer
		code := cli.Run(ctx, append([]string{"--config", config}, args...), cli.Options{
			Version: "0.0.0", Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &stderr,
			Getenv: func(name string) string { return map[string]string{"HOME": dir}[name] },
			Builtins: map[string]func() sdk.Extension{docker.Name: func() sdk.Extension {
				return docker.New(docker.Options{Program: programs(t), Getenv: func(string) string { return "" }, SSH: pool})
			}},
		})
		return code, stderr.String()
	}
	must := func(args ...string) string {
		t.Helper()
		var stdout bytes.Buffer
		if code, stderr := run(t.Context(), &stdout, args...); code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr)
		}
		return strings.TrimSpace(stdout.String())
	}

	near := must("create", "--profile", profile, "--backend", "near", "--quiet")
	if said := must("forward", near); !strings.Contains(said, "nothing to forward") {
		t.Errorf("a local engine: %q", said)
	}

	id := must("create", "--profile", profile, "--backend", "far", "--quiet")
	ctx, interrupt := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code, stderr := run(ctx, in, "forward", id, "0:echo")
		if code != 0 {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		ended <- code
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(strings.TrimPrefix(line, "echo"))
	dial := func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", address) }
	waitFor(t, "the port answers here", func() bool { return echoes(t, dial) })
	interrupt()
	<-ended
	if conn, err := dial(t.Context()); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
	for _, args := range [][]string{{"forward"}, {"forward", id, "x:echo"}, {"forward", id, "echo", "echo"}, {"forward", id, "ecko"}, {"forward", "nonsense"}} {
		if code, stderr := run(t.Context(), io.Discard, args...); code != 2 {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
	}
}
