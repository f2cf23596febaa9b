// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

// The embedded backend does what its capability document claims. It is driven
// as a user's is: the real binary, in processes of its own, over the wire.
func TestConformance(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "sandboxer-extension-local")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the extension: %v\n%s", err, out)
	}
	config, err := json.Marshal(map[string]string{"state_dir": filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	conformancetest.Test(t, conformance.Suite{
		New:       func(ctx context.Context) (sdk.Extension, func(), error) { return start(ctx, program) },
		Config:    config,
		ImageFile: rootfs(t, dir),
		Commands: conformance.Commands{
			Serve: func(port int) []string {
				return []string{"python3", "-uc", fmt.Sprintf(`
import socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", %d))
s.listen(16)
while True:
    c, _ = s.accept()
    c.sendall(b"conformance\n")
    c.close()
`, port)}
			},
		},
		Timing: conformance.Timing{Short: 2 * time.Second},
	}, nil)
}

// rootfs makes an image: a root filesystem with one file and no program.
func rootfs(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "rootfs.tar")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755})
	if err == nil {
		err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/hostname", Mode: 0o644})
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// start starts the extension's process and returns its client, which is not
// configured yet.
func start(ctx context.Context, program string) (sdk.Extension, func(), error) {
	config, certificate, err := plugin.HostTLS()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = []string{certificate, "PATH=" + os.Getenv("PATH")}
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: plugin.Handshake(), VersionedPlugins: plugin.HostPlugins(), AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		TLSConfig: config, SkipHostEnv: true, Cmd: cmd, GRPCDialOptions: plugin.DialOptions(), Logger: hclog.NewNullLogger(),
	})
	ext, err := connect(ctx, client)
	if err != nil {
		client.Kill()
		return nil, nil, err
	}
	return ext, client.Kill, nil
}

func connect(ctx context.Context, client *goplugin.Client) (sdk.Extension, error) {
	protocol, err := client.Client()
	if err != nil {
		return nil, err
	}
	conn, err := plugin.Dispense(protocol)
	if err != nil {
		return nil, err
	}
	return plugin.Connect(ctx, conn, plugin.ConnectOptions{Name: "local"})
}
