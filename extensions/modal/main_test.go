// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

// The real binary, in processes of its own and over the wire, does what the
// extension does in process; its token comes from the environment. One rule of
// each kind shows that: internal/extension has all of them.
func TestOverTheWire(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "sandboxer-extension-modal")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the extension: %v\n%s", err, out)
	}
	server, err := modaltest.New(modaltest.Options{Tokens: map[string]string{"ak-wire": "as-wire"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	config, err := json.Marshal(map[string]string{"state_dir": filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	environment := []string{"PATH=" + os.Getenv("PATH"), "MODAL_TOKEN_ID=ak-wire", "MODAL_TOKEN_SECRET=as-wire", "MODAL_SERVER_URL=" + server.URL(), "MODAL_CONFIG_PATH=" + filepath.Join(dir, "none")}
	conformancetest.Test(t, conformance.Suite{
		New:    func(ctx context.Context) (sdk.Extension, func(), error) { return start(ctx, program, environment) },
		Config: config,
		Only: []string{
			"describe/static", "describe/complete", "describe/probe", "configure/unknown_key", "abilities/exec", "abilities/snapshots", "create/identity", "create/lease",
			"create/idempotent", "list/complete", "list/other_fleet", "extend/maximum", "claim/race", "destroy/ready", "exec/streams", "exec/stdin", "exec/cancel_tree",
			"files/round_trip", "files/hostile", "logs/follow", "restore/content", "snapshot/retention", "secrets/hidden", "network/allow_domain", "calls/cancelled", "calls/kinds",
		},
		Timing: conformance.Timing{Short: 3 * time.Second, Grace: 20 * time.Second},
	}, nil)
}

// start starts the extension's process and returns its client, which is not
// configured yet.
func start(ctx context.Context, program string, environment []string) (sdk.Extension, func(), error) {
	config, certificate, err := plugin.HostTLS()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append([]string{certificate}, environment...)
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
	return plugin.Connect(ctx, conn, plugin.ConnectOptions{Name: "modal"})
}
