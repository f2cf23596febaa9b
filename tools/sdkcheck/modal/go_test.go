// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modalcheck

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/status"
)

// golang makes the calls of the client for Go: a function for each row.
type golang struct {
	*modal.Client
	app         *modal.App
	sb, named   *modal.Sandbox
	image       *modal.Image
	environment func(t *testing.T)
}

func newGo(t *testing.T, url, family string) *golang {
	t.Helper()
	g := &golang{environment: func(t *testing.T) {
		t.Helper()
		for _, pair := range environment(t.TempDir(), url, family) {
			name, value, _ := strings.Cut(pair, "=")
			t.Setenv(name, value)
		}
	}}
	g.Client = g.fresh(t, "ak-test", "as-test")
	return g
}

// fresh is a client that has asked for nothing yet.
func (g *golang) fresh(t *testing.T, id, secret string) *modal.Client {
	t.Helper()
	g.environment(t)
	made, err := modal.NewClientWithOptions(&modal.ClientParams{TokenID: id, TokenSecret: secret, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made
}

func (g *golang) call(t *testing.T, r row) answer {
	t.Helper()
	id := strings.TrimSuffix(strings.TrimSuffix(r.ID, ".v2"), ".v1")
	act, ok := calls[id]
	if !ok {
		t.Fatalf("there is no function for the row %s", id)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	value, err := act(ctx, t, g)
	encoded, encodeErr := json.Marshal(value)
	if encodeErr != nil {
		t.Fatal(encodeErr)
	}
	got := answer{Value: encoded}
	if err != nil {
		got.Error, got.Message = classOf(err), err.Error()
	}
	return got
}

// classOf names an error by its type, as npm's client does, or by its code.
func classOf(err error) string {
	for unwrapped := err; unwrapped != nil; unwrapped = errors.Unwrap(unwrapped) {
		if kind := reflect.TypeOf(unwrapped); strings.HasSuffix(kind.PkgPath(), "modal-client/go") && kind.Kind() == reflect.Struct {
			return kind.Name()
		}
	}
	if s, ok := status.FromError(err); ok {
		return s.Code().String()
	}
	return "error"
}

var debian = "debian:12-slim"

func (g *golang) create(ctx context.Context, params *modal.SandboxCreateParams) (*modal.Sandbox, error) {
	return g.Sandboxes.Create(ctx, g.app, g.Images.FromRegistry(debian, nil), params)
}

var idle = []string{"sleep", "172800"}

// run runs a command to its end.
func run(ctx context.Context, sb *modal.Sandbox, command []string, params *modal.SandboxExecParams) ([]any, error) {
	p, err := sb.Exec(ctx, command, params)
	if err != nil {
		return nil, err
	}
	said, err := io.ReadAll(p.Stdout)
	if err != nil {
		return nil, err
	}
	code, err := p.Wait(ctx, nil)
	return []any{string(said), code}, err
}

func all(ctx context.Context, g *golang, params *modal.SandboxListParams) (found []*modal.Sandbox, err error) {
	list, err := g.Sandboxes.List(ctx, params)
	if err != nil {
		return nil, err
	}
	for sb, err := range list {
		if err != nil {
			return found, err
		}
		found = append(found, sb)
	}
	return found, nil
}

// code runs a command and returns its exit code.
func code(ctx context.Context, sb *modal.Sandbox, command ...string) (any, error) {
	got, err := run(ctx, sb, command, nil)
	if err != nil {
		return nil, err
	}
	return got[1], nil
}

type act = func(ctx context.Context, t *testing.T, g *golang) (any, error)

// find asks for the app with a client of its own.
func find(id, secret string) act {
	return func(ctx context.Context, t *testing.T, g *golang) (any, error) {
		_, err := g.fresh(t, id, secret).Apps.FromName(ctx, "row", nil)
		return nil, err
	}
}

// again asks for the app once more.
func again(ctx context.Context, _ *testing.T, g *golang) (any, error) {
	_, err := g.Apps.FromName(ctx, "row", nil)
	return nil, err
}

// createFresh makes a sandbox with a client of its own.
func createFresh(ctx context.Context, t *testing.T, g *golang) (any, error) {
	c := g.fresh(t, "ak-test", "as-test")
	app, err := c.Apps.FromName(ctx, "row", nil)
	if err != nil {
		return nil, err
	}
	sb, err := c.Sandboxes.Create(ctx, app, c.Images.FromRegistry(debian, nil), nil)
	if err != nil {
		return nil, err
	}
	_, err = sb.Terminate(ctx, nil)
	return nil, err
}

// createRun makes a sandbox and runs a command in it.
func createRun(command ...string) act {
	return func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Command: idle})
		if err != nil {
			return nil, err
		}
		return code(ctx, sb, command...)
	}
}

// refused makes a sandbox that is refused.
func refused(params *modal.SandboxCreateParams) act {
	return func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		_, err := g.create(ctx, params)
		return nil, err
	}
}

var calls = map[string]act{
	"3.app": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		app, err := g.Apps.FromName(ctx, "row", &modal.AppFromNameParams{CreateIfMissing: true})
		if err != nil {
			return nil, err
		}
		g.app = app
		return app.AppID[:3], nil
	},
	"3.app-again": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		app, err := g.Apps.FromName(ctx, "row", nil)
		return err == nil && app.AppID == g.app.AppID, err
	},
	"3.app-missing": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		_, err := g.Apps.FromName(ctx, "no such app", nil)
		return nil, err
	},
	"3.create": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Timeout: time.Hour, Env: map[string]string{"FOO": "bar"}, Tags: map[string]string{"a": "1"}, Command: idle})
		if err != nil {
			return nil, err
		}
		g.sb = sb
		return len(sb.SandboxID), nil
	},
	"3.list": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		found, err := all(ctx, g, &modal.SandboxListParams{AppID: g.app.AppID, Tags: map[string]string{"a": "1"}})
		return []any{len(found), len(found) > 0 && found[0].SandboxID == g.sb.SandboxID}, err
	},
	"3.tags": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		if err := g.sb.SetTags(ctx, map[string]string{"b": "2"}, nil); err != nil {
			return nil, err
		}
		return g.sb.GetTags(ctx, nil)
	},
	"3.poll": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		end, err := g.sb.Poll(ctx, nil)
		return end == nil, err
	},
	"3.exec": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return run(ctx, g.sb, []string{"sh", "-c", `echo "$FOO"; exit 3`}, nil)
	},
	"3.exec-more": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return run(ctx, g.sb, []string{"sh", "-c", `echo "$A"; pwd`}, &modal.SandboxExecParams{Env: map[string]string{"A": "1"}, Workdir: "/tmp", Timeout: 10 * time.Second})
	},
	"3.signal": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return code(ctx, g.sb, "sh", "-c", "kill -9 $$")
	},
	"3.stdin": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		p, err := g.sb.Exec(ctx, []string{"cat"}, nil)
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(p.Stdin, "hello"); err != nil {
			return nil, err
		}
		if err := p.Stdin.Close(); err != nil {
			return nil, err
		}
		said, err := io.ReadAll(p.Stdout)
		if err != nil {
			return nil, err
		}
		end, err := p.Wait(ctx, nil)
		return []any{string(said), end}, err
	},
	"3.write": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return nil, g.sb.Filesystem.WriteText(ctx, "from the client", "/srv/a/file", nil)
	},
	"3.read": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return g.sb.Filesystem.ReadText(ctx, "/srv/a/file", nil)
	},
	"3.snapshot": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		image, err := g.sb.SnapshotFilesystem(ctx, &modal.SandboxSnapshotFilesystemParams{TTL: time.Hour})
		if err != nil {
			return nil, err
		}
		g.image = image
		return len(image.ImageID), nil
	},
	"3.restore": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		image, err := g.Images.FromID(ctx, g.image.ImageID, nil)
		if err != nil {
			return nil, err
		}
		fork, err := g.Sandboxes.Create(ctx, g.app, image, &modal.SandboxCreateParams{Timeout: 10 * time.Minute})
		if err != nil {
			return nil, err
		}
		return fork.Filesystem.ReadText(ctx, "/srv/a/file", nil)
	},
	"3.attach": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.Sandboxes.FromID(ctx, g.sb.SandboxID, nil)
		if err != nil {
			return nil, err
		}
		return code(ctx, sb, "true")
	},
	"3.terminate": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return g.sb.Terminate(ctx, &modal.SandboxTerminateParams{Wait: true})
	},
	"3.terminate-again": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		// The handle of the client for Go is used up by the first one.
		sb, err := g.Sandboxes.FromID(ctx, g.sb.SandboxID, nil)
		if err == nil {
			_, err = sb.Terminate(ctx, nil)
		}
		if err != nil {
			return nil, err
		}
		if sb, err = g.Sandboxes.FromID(ctx, g.sb.SandboxID, nil); err != nil {
			return nil, err
		}
		return sb.Poll(ctx, nil)
	},
	"3.image-delete": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		if err := g.Images.Delete(ctx, g.image.ImageID, nil); err != nil {
			return nil, err
		}
		_, err := g.Images.FromID(ctx, g.image.ImageID, nil)
		return nil, err
	},
	"3.join": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		image, err := g.Images.FromRegistry("alpine:3", nil).Build(ctx, g.app, nil)
		if err != nil {
			return nil, err
		}
		return image.ImageID[:3], nil
	},
	"3.publish": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		image, err := g.Images.FromRegistry("alpine:3", nil).Build(ctx, g.app, nil)
		if err != nil {
			return nil, err
		}
		if err := image.Publish(ctx, "base:1", nil); err != nil {
			return nil, err
		}
		found, err := g.Images.FromName(ctx, "base:1", nil)
		return err == nil && found.ImageID == image.ImageID, err
	},
	"3.unpublished": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		_, err := g.Images.FromName(ctx, "none", nil)
		return nil, err
	},
	"3.named": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Name: "one", Command: idle, EncryptedPorts: []int{8443}, UnencryptedPorts: []int{8080}})
		if err != nil {
			return nil, err
		}
		g.named = sb
		found, err := g.Sandboxes.FromName(ctx, "row", "one", nil)
		return err == nil && found.SandboxID == sb.SandboxID, err
	},
	"3.taken": refused(&modal.SandboxCreateParams{Name: "one"}),
	"3.no-name": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		_, err := g.Sandboxes.FromName(ctx, "row", "none", nil)
		return nil, err
	},
	"3.tunnels": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		tunnels, err := g.named.Tunnels(ctx, 10*time.Second, nil)
		if err != nil {
			return nil, err
		}
		return []any{len(tunnels), tunnels[8080].UnencryptedHost, tunnels[8080].UnencryptedPort, tunnels[8443].Port}, nil
	},
	"3.tunnels-known": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{EncryptedPorts: []int{8443}, Command: idle})
		if err != nil {
			return nil, err
		}
		tunnels, err := sb.Tunnels(ctx, 10*time.Second, nil)
		if err != nil {
			return nil, err
		}
		return tunnels[8443].Port, nil
	},
	"3.token": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		c, err := g.named.CreateConnectToken(ctx, nil)
		return err == nil && strings.HasPrefix(c.URL, "https://"), err
	},
	"3.network": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return nil, g.named.UpdateNetworkPolicy(ctx, &modal.SandboxUpdateNetworkPolicyParams{
			OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{"192.0.2.0/24"}}, OutboundDomainAllowlist: &modal.Allowlist{Entries: []string{}},
		})
	},
	"3.ready": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		probe, err := modal.NewExecProbe([]string{"true"}, nil)
		if err != nil {
			return nil, err
		}
		sb, err := g.create(ctx, &modal.SandboxCreateParams{ReadinessProbe: probe, Command: idle})
		if err != nil {
			return nil, err
		}
		return nil, sb.WaitUntilReady(ctx, 5*time.Second, nil)
	},
	"3.entry": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Command: []string{"sh", "-c", "echo out; exit 7"}})
		if err != nil {
			return nil, err
		}
		said, err := io.ReadAll(sb.Stdout)
		if err != nil {
			return nil, err
		}
		end, err := sb.Wait(ctx, nil)
		return []any{string(said), end}, err
	},
	"3.entry-stdin": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Command: []string{"cat"}})
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(sb.Stdin, "in"); err != nil {
			return nil, err
		}
		if err := sb.Stdin.Close(); err != nil {
			return nil, err
		}
		said, err := io.ReadAll(sb.Stdout)
		if err != nil {
			return nil, err
		}
		end, err := sb.Wait(ctx, nil)
		return []any{string(said), end}, err
	},
	"3.lifetime": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Timeout: time.Second, Command: idle})
		if err != nil {
			return nil, err
		}
		return sb.Wait(ctx, nil)
	},
	"3.too-long": refused(&modal.SandboxCreateParams{Timeout: 86401 * time.Second}),
	"3.cidr":     refused(&modal.SandboxCreateParams{OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{"1.2.3"}}}),
	"3.exit-snapshot": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Command: []string{"sh", "-c", "echo x > /srv/left"}, ExperimentalOptions: map[string]any{"enable_exit_snapshot": true}})
		if err != nil {
			return nil, err
		}
		if _, err := sb.Wait(ctx, nil); err != nil {
			return nil, err
		}
		image, err := sb.ExperimentalGetExitSnapshot(ctx, nil)
		if err != nil {
			return nil, err
		}
		return len(image.ImageID), nil
	},
	"3.memory": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{ExperimentalEnableSnapshot: true, Command: idle})
		if err != nil {
			return nil, err
		}
		snapshot, err := sb.ExperimentalSnapshot(ctx, nil)
		if err != nil {
			return nil, err
		}
		twin, err := g.Sandboxes.ExperimentalFromSnapshot(ctx, snapshot, nil)
		if err != nil {
			return nil, err
		}
		if sb, err = g.Sandboxes.FromID(ctx, sb.SandboxID, nil); err != nil {
			return nil, err
		}
		end, err := sb.Poll(ctx, nil)
		return []any{snapshot.SnapshotID[:3], twin.SandboxID[:3], end}, err
	},
	"3.dir-list": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		if err := g.named.Filesystem.WriteText(ctx, "x", "/srv/d/f", nil); err != nil {
			return nil, err
		}
		list, err := g.named.Filesystem.ListFiles(ctx, "/srv/d", nil)
		if err != nil || len(list) == 0 {
			return nil, err
		}
		return []any{len(list), list[0].Name, list[0].Type}, nil
	},
	"3.dir-make": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		if err := g.named.Filesystem.MakeDirectory(ctx, "/srv/n", nil); err != nil {
			return nil, err
		}
		return nil, g.named.Filesystem.Remove(ctx, "/srv/n", nil)
	},
	"3.missing": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return g.named.Filesystem.ReadText(ctx, "/srv/none", nil)
	},
	"3.isdir": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return g.named.Filesystem.ReadText(ctx, "/srv", nil)
	},
	"3.dir-snapshot": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		image, err := g.named.SnapshotDirectory(ctx, "/srv/d", nil)
		if err != nil {
			return nil, err
		}
		if err := g.named.MountImage(ctx, "/mnt/x", image, nil); err != nil {
			return nil, err
		}
		return g.named.Filesystem.ReadText(ctx, "/mnt/x/f", nil)
	},
	"4.2.auth-unimplemented": find("ak-test", "as-test"),
	"4.2.auth-empty":         find("ak-test", "as-test"),
	"4.2.auth-refused":       find("ak-test", "as-test"),
	"4.2.no-credentials":     find("", ""),
	"4.2.no-environment":     createFresh,
	"4.2.empty-environment":  createFresh,
	"4.2.image-fails": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		_, err := g.Images.FromRegistry("registry.invalid/x:1", nil).Build(ctx, g.app, nil)
		return nil, err
	},
	"4.2.no-access":            createRun("true"),
	"4.2.jwt":                  createRun("true"),
	"4.2.unauthenticated-once": createRun("true"),
	"4.2.cut": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Command: idle})
		if err != nil {
			return nil, err
		}
		got, err := run(ctx, sb, []string{"echo", "nothing is lost"}, nil)
		if err != nil {
			return nil, err
		}
		return got[0], nil
	},
	"4.2.no-stream": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		return nil, g.named.Filesystem.WriteText(ctx, "x", "/srv/f", nil)
	},
	"4.2.no-code": func(ctx context.Context, _ *testing.T, g *golang) (any, error) { return code(ctx, g.named, "true") },
	"4.2.no-image": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		_, err := g.named.SnapshotFilesystem(ctx, nil)
		return nil, err
	},
	"4.2.slow-snapshot": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		_, err := g.named.SnapshotFilesystem(ctx, &modal.SandboxSnapshotFilesystemParams{Timeout: time.Second})
		return nil, err
	},
	"4.2.status-0": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Command: idle})
		if err != nil {
			return nil, err
		}
		end, err := sb.Poll(ctx, nil)
		return end == nil, err
	},
	"4.2.unavailable": again,
	"4.2.throttled":   again,
	"4.2.quota":       again,
	"3.1.create-again": func(ctx context.Context, _ *testing.T, g *golang) (any, error) {
		sb, err := g.create(ctx, &modal.SandboxCreateParams{Command: idle})
		if err != nil {
			return nil, err
		}
		found, err := all(ctx, g, &modal.SandboxListParams{AppID: g.app.AppID})
		n := 0
		for _, f := range found {
			if f.SandboxID == sb.SandboxID {
				n++
			}
		}
		return n, err
	},
	"3.1.router": func(ctx context.Context, _ *testing.T, g *golang) (any, error) { return code(ctx, g.named, "true") },
}
