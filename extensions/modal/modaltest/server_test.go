// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

func serve(t *testing.T, options modaltest.Options) *modaltest.Server {
	t.Helper()
	server, err := modaltest.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

var environment sync.Mutex

// connect is the vendor's own client of a server, and its raw half.
func connect(t *testing.T, server *modaltest.Server, v2 string) (*modal.Client, pb.ModalClientClient) {
	t.Helper()
	environment.Lock()
	defer environment.Unlock()
	for name, value := range map[string]string{
		"MODAL_SERVER_URL": server.URL(), "MODAL_CONFIG_PATH": filepath.Join(t.TempDir(), "none"), "MODAL_SANDBOX_V2": v2,
	} {
		t.Setenv(name, value)
	}
	var conn *grpc.ClientConn
	client, err := modal.NewClientWithOptions(&modal.ClientParams{
		TokenID: "ak-test", TokenSecret: "as-test", Logger: slog.New(slog.DiscardHandler),
		GRPCUnaryInterceptors: []grpc.UnaryClientInterceptor{
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				conn = cc
				return invoke(ctx, method, req, reply, cc, opts...)
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := client.Apps.FromName(t.Context(), "app", &modal.AppFromNameParams{CreateIfMissing: true}); err != nil {
		t.Fatal(err)
	}
	return client, pb.NewModalClientClient(conn)
}

func create(t *testing.T, client *modal.Client, params *modal.SandboxCreateParams) *modal.Sandbox {
	t.Helper()
	app, err := client.Apps.FromName(t.Context(), "app", &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := client.Sandboxes.Create(t.Context(), app, client.Images.FromRegistry("debian:12-slim", nil), params)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Detach() })
	return sb
}

// output runs a command to its end.
func output(t *testing.T, sb *modal.Sandbox, command ...string) (string, int) {
	t.Helper()
	p, err := sb.Exec(t.Context(), command, nil)
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(p.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	code, err := p.Wait(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(said), code
}

// The life of a sandbox of either generation, by the vendor's own client:
// commands run, files move, a snapshot carries them, and the end is seen.
func TestLife(t *testing.T) {
	for name, v2 := range map[string]string{"v2": "1", "v1": "0"} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, modaltest.Options{})
			client, _ := connect(t, server, v2)
			sb := create(t, client, &modal.SandboxCreateParams{
				Env: map[string]string{"FROM_CREATE": "yes"}, Tags: map[string]string{"a": "1"}, Timeout: time.Hour, Command: []string{"sleep", "172800"},
			})
			if said, code := output(t, sb, "sh", "-c", `echo "$FROM_CREATE"; exit 3`); said != "yes\n" || code != 3 {
				t.Errorf("a command says %q and ends with %d", said, code)
			}
			if err := sb.Filesystem.WriteText(t.Context(), "from the client", "/srv/dir/file", nil); err != nil {
				t.Fatal(err)
			}
			if said, _ := output(t, sb, "cat", "/srv/dir/file"); said != "from the client" {
				t.Errorf("the file holds %q", said)
			}
			image, err := sb.SnapshotFilesystem(t.Context(), &modal.SandboxSnapshotFilesystemParams{TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			app, _ := client.Apps.FromName(t.Context(), "app", nil)
			fork, err := client.Sandboxes.Create(t.Context(), app, image, &modal.SandboxCreateParams{Timeout: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer fork.Detach()
			if said, err := fork.Filesystem.ReadText(t.Context(), "/srv/dir/file", nil); err != nil || said != "from the client" {
				t.Errorf("in the fork the file holds %q, %v", said, err)
			}
			tags, err := sb.GetTags(t.Context(), nil)
			if err != nil || tags["a"] != "1" {
				t.Errorf("tags %v, %v", tags, err)
			}
			if code, err := sb.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil || code != 137 {
				t.Errorf("terminate: %d, %v", code, err)
			}
			if got := server.Running(); len(got) != 1 || got[0].V1 != (v2 == "0") {
				t.Errorf("there are %+v", got)
			}
		})
	}
}

// What ends a sandbox by itself: its lifetime, its idle time, its entrypoint.
func TestEnds(t *testing.T) {
	now := clock.NewFake(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	server := serve(t, modaltest.Options{Clock: now})
	client, raw := connect(t, server, "1")
	long := create(t, client, &modal.SandboxCreateParams{Timeout: 24 * time.Hour})
	idle := create(t, client, &modal.SandboxCreateParams{Timeout: 24 * time.Hour, IdleTimeout: 10 * time.Minute})
	fast := create(t, client, &modal.SandboxCreateParams{Timeout: 24 * time.Hour, Command: []string{"sh", "-c", "exit 7"}})
	result := func(sb *modal.Sandbox) *pb.GenericResult {
		answer, err := raw.SandboxWaitV2(t.Context(), pb.SandboxWaitRequest_builder{SandboxId: sb.SandboxID}.Build())
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetResult()
	}
	if code, err := fast.Wait(t.Context(), nil); err != nil || code != 7 {
		t.Errorf("the entrypoint: %d, %v", code, err)
	}
	now.Advance(10*time.Minute - time.Second)
	if result(idle) != nil {
		t.Error("it ended before its idle time")
	}
	now.Advance(time.Second)
	if result(idle).GetStatus() != pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT || result(long) != nil {
		t.Errorf("idle: %v, not idle: %v", result(idle), result(long))
	}
	now.Advance(24 * time.Hour)
	if code, err := long.Wait(t.Context(), nil); err != nil || code != 124 {
		t.Errorf("the lifetime: %d, %v", code, err)
	}
}

// What is refused, with the code that the clients go by.
func TestRefuses(t *testing.T) {
	server := serve(t, modaltest.Options{Concurrent: 2, Tokens: map[string]string{"ak-test": "as-test"}})
	client, _ := connect(t, server, "1")
	app, err := client.Apps.FromName(t.Context(), "app", nil)
	if err != nil {
		t.Fatal(err)
	}
	image := client.Images.FromRegistry("debian:12-slim", nil)
	create(t, client, &modal.SandboxCreateParams{Name: "taken"})
	for what, test := range map[string]struct {
		params modal.SandboxCreateParams
		want   codes.Code
	}{
		"too long a life": {modal.SandboxCreateParams{Timeout: 24*time.Hour + time.Second}, codes.InvalidArgument},
		"no CIDR":         {modal.SandboxCreateParams{OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{"1.2.3"}}}, codes.InvalidArgument},
	} {
		if _, err := client.Sandboxes.Create(t.Context(), app, image, &test.params); status.Code(err) != test.want {
			t.Errorf("%s: %v", what, err)
		}
	}
	var taken modal.AlreadyExistsError
	if _, err := client.Sandboxes.Create(t.Context(), app, image, &modal.SandboxCreateParams{Name: "taken"}); !errors.As(err, &taken) {
		t.Errorf("a name that is taken: %v", err)
	}
	create(t, client, nil)
	if _, err := client.Sandboxes.Create(t.Context(), app, image, nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
	var gone modal.NotFoundError
	if _, err := client.Apps.FromName(t.Context(), "no such app", nil); !errors.As(err, &gone) {
		t.Errorf("an app that is not there: %v", err)
	}
	t.Setenv("MODAL_SERVER_URL", server.URL())
	stranger, err := modal.NewClientWithOptions(&modal.ClientParams{TokenID: "ak-test", TokenSecret: "as-wrong", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Apps.FromName(t.Context(), "app", nil); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a wrong secret: %v", err)
	}
}

// The retention of a snapshot holds from its creation.
func TestRetention(t *testing.T) {
	now := clock.NewFake(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	server := serve(t, modaltest.Options{Clock: now})
	client, _ := connect(t, server, "1")
	sb := create(t, client, &modal.SandboxCreateParams{Timeout: 24 * time.Hour})
	image, err := sb.SnapshotFilesystem(t.Context(), &modal.SandboxSnapshotFilesystemParams{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	now.Advance(time.Hour - time.Second)
	if _, err := client.Images.FromID(t.Context(), image.ImageID, nil); err != nil {
		t.Errorf("before its end: %v", err)
	}
	now.Advance(time.Second)
	var gone modal.NotFoundError
	if _, err := client.Images.FromID(t.Context(), image.ImageID, nil); !errors.As(err, &gone) {
		t.Errorf("after its end: %v", err)
	}
}

// Nothing of a server is left on disk.
func TestCloseLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	server, err := modaltest.New(modaltest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client, _ := connect(t, server, "1")
	output(t, create(t, client, nil), "sh", "-c", "echo > /srv/file")
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
