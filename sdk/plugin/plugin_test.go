// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/fake"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// everything is what an extension with all abilities has.
type everything interface {
	sdk.Extension
	sdk.Execer
	sdk.Copier
	sdk.Logger
	sdk.Pauser
	sdk.Preparer
	sdk.PortableSnapshotter
	sdk.Inspector
}

// patience bounds waits that end at once unless something is broken.
const patience = 30 * time.Second

// dial serves a wire server on a socket of the test and connects to it.
func dial(t *testing.T, serve pb.ExtensionServer, c *calls, opts ConnectOptions) sdk.Extension {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	options := []grpc.ServerOption{}
	if c != nil {
		options = c.serverOptions()
	}
	server := grpc.NewServer(options...)
	pb.RegisterExtensionServer(server, serve)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix:"+listener.Addr().String(), append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); server.Stop(); <-done; noGoroutineLeft(t) })
	opts.Name = "fake"
	extension, err := Connect(t.Context(), conn, opts)
	if err != nil {
		t.Fatal(err)
	}
	return extension
}

// pair returns an extension and what a host sees of it.
func pair(t *testing.T) (*fake.Extension, everything) {
	t.Helper()
	ext, c := &fake.Extension{}, newCalls()
	extension := dial(t, &server{ext: ext, calls: c}, c, ConnectOptions{})
	return ext, extension.(everything)
}

// noGoroutineLeft fails when code of this package still runs on a goroutine
// after a connection and its server have been closed.
func noGoroutineLeft(t *testing.T) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left = nil
		for _, stack := range strings.Split(string(stacks), "\n\n") {
			ours := strings.Contains(stack, "sdk/plugin.(") || strings.Contains(stack, "sdk/plugin.pump") || strings.Contains(stack, "sdk/plugin.feed")
			if ours && !strings.Contains(stack, "testing.tRunner") {
				left = append(left, stack)
			}
		}
		if left == nil {
			return
		}
	}
	t.Errorf("goroutines left behind:\n%s", strings.Join(left, "\n\n"))
}

// identity is one with everything set.
func identity(id string) sdk.Identity {
	return sdk.Identity{
		ID: id, Fleet: "fleet", Incarnation: 3, Owner: "owner", Task: "task", Run: "run", Actor: "actor", Profile: "p",
		ProfileRevision: "sha256:1", CreatedAt: time.Date(2029, 1, 2, 3, 4, 5, 678, time.UTC), Labels: map[string]string{"a": "b", "ü": "\uFFFD"},
	}
}

// profile is one with nested parts.
func profile() sdk.Profile {
	return sdk.Profile{
		Name: "p", Image: "img", Command: []string{"a", "b"}, Env: sdk.EnvMap{"A": "\\ufffd"},
		Files: map[string]sdk.File{"/etc/x": {Content: "y", Mode: "0600"}}, Limits: &sdk.Limits{CPUs: 1.5, Memory: "1GiB"},
		Network: &sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"a:1"}}, Ready: &sdk.Ready{TCP: &sdk.TCPCheck{Port: 1}},
		Requires: map[sdk.Feature]sdk.Class{sdk.FeatureExec: sdk.ClassEnforced},
	}
}

// createOptions are complete but for what a test changes.
func createOptions(id string) sdk.CreateOptions {
	expires := time.Date(2031, 1, 1, 0, 0, 0, 9, time.UTC)
	return sdk.CreateOptions{
		ID: id, Identity: identity(id), Profile: profile(), ExpiresAt: expires, MaxExpiresAt: expires.Add(time.Hour),
		OnExpiry: sdk.OnExpiryPause, Env: map[string]string{"E": "1"},
		IdleTimeout: 90 * time.Second, ExpirySnapshotTTL: time.Hour, PausedTTL: 2*time.Hour + time.Nanosecond,
		Secrets: map[string]sdk.Secret{"TOKEN": "not \xff text", "EMPTY": ""},
		Event:   sdk.EventRef{LedgerID: "ledger", Sequence: 9, Hash: "hash"},
	}
}

// create makes a sandbox for a test that is about something else.
func create(t *testing.T, ext sdk.Extension, id string) sdk.Sandbox {
	t.Helper()
	result, err := ext.Create(t.Context(), createOptions(id))
	if err != nil {
		t.Fatal(err)
	}
	return result.Sandbox
}

// within returns a context that ends a broken test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
