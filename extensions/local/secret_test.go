// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

// lockedBuffer is written by the plugin's goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// A secret is in the file of the sandbox that it was given for, in a memory
// snapshot, which says so, and nowhere else: no file of the state directory,
// no process's arguments or environment, no log.
func TestSecretsAreNowhereElse(t *testing.T) {
	const canary = "canary-c4a7e19b"
	dir := t.TempDir()
	program := filepath.Join(dir, "sandboxer-extension-local")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the extension: %v\n%s", err, out)
	}
	var log lockedBuffer
	config, certificate, err := plugin.HostTLS()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{certificate, "PATH=" + os.Getenv("PATH")}
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: plugin.Handshake(), VersionedPlugins: plugin.HostPlugins(), AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		TLSConfig: config, SkipHostEnv: true, Cmd: cmd, GRPCDialOptions: plugin.DialOptions(), Stderr: &log,
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &log}),
	})
	t.Cleanup(client.Kill)
	e, err := connect(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	settings, err := json.Marshal(map[string]string{"state_dir": state})
	if err != nil {
		t.Fatal(err)
	}
	const fleet = "secrets"
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "local", Fleet: fleet, Config: settings}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	options := func(id string) sdk.CreateOptions {
		t.Cleanup(func() {
			if _, err := e.Destroy(context.Background(), sdk.DestroyOptions{Target: sdk.Target{ID: id, Fleet: fleet}}); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
		return sdk.CreateOptions{
			ID: id, Identity: sdk.Identity{ID: id, Fleet: fleet, CreatedAt: now}, ExpiresAt: now.Add(10 * time.Minute),
			Profile: sdk.Profile{Name: "shell", Command: []string{"sh", "-c", "cat $TOKEN_FILE > /dev/null; sleep 1000"}},
			Secrets: map[string]sdk.Secret{"TOKEN": canary},
		}
	}
	const id, copied = "sbx-00000000000000000001", "sbx-00000000000000000002"
	seen := func(what string, content []byte) {
		t.Helper()
		if bytes.Contains(content, []byte(canary)) {
			t.Errorf("%s holds the secret", what)
		}
	}
	command := func(id string, command ...string) string {
		t.Helper()
		var out bytes.Buffer
		result, err := e.(sdk.Execer).Exec(t.Context(), sdk.ExecOptions{Target: sdk.Target{ID: id, Fleet: fleet}, Command: command, Stdout: &out, Stderr: &out})
		if err != nil || result.ExitCode != 0 {
			t.Fatalf("%q: %d, %v: %s", command, result.ExitCode, err, out.String())
		}
		return out.String()
	}
	// lookAround looks at what anyone on this machine, or in the sandbox, sees.
	lookAround := func(id string) {
		t.Helper()
		if got := command(id, "cat", "/run/secrets/TOKEN"); got != canary {
			t.Errorf("the sandbox has %q", got)
		}
		seen("the sandbox's process table", []byte(command(id, "sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ")))
		entries, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			for _, name := range []string{"cmdline", "environ"} {
				path := filepath.Join("/proc", entry.Name(), name)
				if content, err := os.ReadFile(path); err == nil { // not every entry is a process that stays, and is ours
					seen(path, content)
				}
			}
		}
		err = filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || strings.Contains(path, "/bin/") || strings.Contains(path, "/snp-0000000000000000memo/") && filepath.Ext(path) != ".json" {
				return err
			}
			content, err := os.ReadFile(path)
			seen(path, content)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := e.Create(t.Context(), options(id)); err != nil {
		t.Fatal(err)
	}
	lookAround(id)
	snapshots := e.(sdk.Snapshotter)
	for _, test := range []struct {
		id       string
		kind     sdk.SnapshotKind
		contains bool
	}{{"snp-0000000000000000file", sdk.SnapshotFilesystem, false}, {"snp-0000000000000000memo", sdk.SnapshotMemory, true}} {
		made, err := snapshots.Snapshot(t.Context(), sdk.SnapshotOptions{Target: sdk.Target{ID: id, Fleet: fleet}, SnapshotID: test.id, Kind: test.kind,
			ExpiresAt: now.Add(time.Hour), Identity: sdk.Identity{ID: test.id, Fleet: fleet}})
		if err != nil || made.Snapshot.ContainsSecrets != test.contains {
			t.Fatalf("%s snapshot: %v, contains secrets: %t", test.kind, err, made.Snapshot.ContainsSecrets)
		}
		files, err := os.ReadDir(filepath.Join(state, "local", "snapshots", test.id))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if info, err := file.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s of the %s snapshot has mode %v, %v", file.Name(), test.kind, info.Mode(), err)
			}
		}
	}
	if _, err := snapshots.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: "snp-0000000000000000file", Create: options(copied)}); err != nil {
		t.Fatal(err)
	}
	lookAround(copied)
	seen("the extension's log", []byte(log.String()))
	if log.String() == "" {
		t.Error("there is no log")
	}
}
