// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockeracc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/reap"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/tfrun"
)

// fullSize asks for the numbers of sandboxes that the promises are about.
func fullSize() bool { return os.Getenv("SANDBOXER_TEST_FULL") != "" }

// sized returns the full number, or the one that a test run has time for.
func sized(full, small int) int {
	if fullSize() {
		return full
	}
	return small
}

// open puts a configuration with one Docker backend to work, as the provider
// does in one run of Terraform.
func open(tb testing.TB, fleet string, settings map[string]any) *config.Runtime {
	tb.Helper()
	root, err := repo.Root()
	if err != nil {
		tb.Fatal(err)
	}
	encoded, err := json.Marshal(settings)
	if err != nil {
		tb.Fatal(err)
	}
	runtime, err := config.Open(config.Config{
		Fleet: fleet, StateDir: tb.TempDir(), Backend: docker.Name, Backends: map[string]config.Backend{docker.Name: {Extension: docker.Name, Config: encoded}},
	}, config.Options{Builtins: map[string]func() sdk.Extension{docker.Name: func() sdk.Extension {
		return docker.New(docker.Options{Program: func(name string) (string, error) { return filepath.Join(root, "bin", name), nil }})
	}}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := runtime.Close(); err != nil {
			tb.Error(err)
		}
	})
	return runtime
}

func create(ctx context.Context, r *config.Runtime, ttl time.Duration) (string, error) {
	made, err := r.Manager.Create(ctx, lifecycle.CreateOptions{Profile: sdk.Profile{Name: "cost", Image: dockertest.Busybox, Command: []string{"sleep", "3600"}}, TTL: ttl})
	return made.ID, err
}

func destroy(tb testing.TB, r *config.Runtime, id string) {
	tb.Helper()
	if _, err := r.Manager.Destroy(context.WithoutCancel(tb.Context()), id, lifecycle.DestroyOptions{}); err != nil {
		tb.Error(err)
	}
}

// side is one of two things that are compared: it acts once, and returns how
// long that took without what it clears away.
type side func() time.Duration

// compare measures two sides by turns, after one of each that does not count,
// and reports the ratio of the medians.
func compare(b *testing.B, turns int, ours, base side) {
	b.Helper()
	var a, o []time.Duration
	for turn := range turns + 1 {
		x, y := ours(), base()
		if b.Failed() {
			return
		}
		if turn > 0 {
			a, o = append(a, x), append(o, y)
		}
	}
	slices.Sort(a)
	slices.Sort(o)
	report(b, a[len(a)/2], o[len(o)/2])
}

func report(b *testing.B, ours, base time.Duration) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(ours)/float64(base), "ratio")
	b.ReportMetric(float64(ours)/1e6, "ours-ms")
	b.ReportMetric(float64(base)/1e6, "base-ms")
}

// timed returns how long something took that may not fail.
func timed(tb testing.TB, act func() error) time.Duration {
	tb.Helper()
	begin := time.Now()
	err := act()
	took := time.Since(begin)
	if err != nil {
		tb.Error(err)
	}
	return took
}

// command runs the docker command line on the test's engine.
func command(ctx context.Context, e *dockertest.Engine, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+e.Host, "DOCKER_CONFIG="+e.Dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("docker %v: %w\n%s", args[0], err, said.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// runPlain starts a container as a script would.
func runPlain(ctx context.Context, e *dockertest.Engine) (string, error) {
	return command(ctx, e, "run", "-d", "--network", "none", dockertest.Busybox, "sleep", "3600")
}

// BenchmarkCreate compares a create, until it is ready and written down, with
// `docker run -d` and `docker inspect`.
func BenchmarkCreate(b *testing.B) {
	e := dockertest.Start(b)
	e.Images(b)
	r := open(b, "cost-create", map[string]any{"host": e.Host})
	keep, err := create(b.Context(), r, time.Hour) // the fleet's reaper starts with the first
	if err != nil {
		b.Fatal(err)
	}
	defer destroy(b, r, keep)
	compare(b, 15, creating(b, r), func() time.Duration {
		var id string
		took := timed(b, func() (err error) {
			if id, err = runPlain(b.Context(), e); err == nil {
				_, err = command(b.Context(), e, "inspect", id)
			}
			return err
		})
		timed(b, func() error { _, err := command(b.Context(), e, "rm", "-f", id); return err })
		return took
	})
}

func creating(b *testing.B, r *config.Runtime) side {
	return func() time.Duration {
		var id string
		took := timed(b, func() (err error) { id, err = create(b.Context(), r, time.Hour); return err })
		destroy(b, r, id)
		return took
	}
}

// BenchmarkCreateOverSSH compares a create on an engine behind an SSH server
// with one on the same engine through its socket.
func BenchmarkCreateOverSSH(b *testing.B) {
	e := dockertest.Start(b)
	e.Images(b)
	s := sshtest.Start(b)
	near := open(b, "cost-ssh", map[string]any{"host": e.Host, "reaper": "external"})
	far := open(b, "cost-ssh", map[string]any{
		"host": s.URL() + strings.TrimPrefix(e.Host, "unix://"), "reaper": "external",
		"ssh": map[string]any{"key_file": s.KeyFile, "known_hosts_file": s.KnownHosts, "agent": false},
	})
	compare(b, 15, creating(b, far), creating(b, near))
}

// reapers is how many sandboxes a sweep removes at once.
const reapers = 8

// BenchmarkReap compares a sweep of expired sandboxes with `docker rm -f` of
// as many containers, as many at once. Both remove what still runs.
func BenchmarkReap(b *testing.B) {
	e := dockertest.Start(b)
	e.Images(b)
	n := sized(200, 32)
	r := open(b, "cost-reap", map[string]any{"host": e.Host, "reaper": "external"})
	const ttl = 10 * time.Second // some expire before the last is made
	plain := make([]string, n)
	all(b, n, func(i int) error {
		if _, err := create(b.Context(), r, ttl); err != nil {
			return err
		}
		id, err := runPlain(b.Context(), e)
		plain[i] = id
		return err
	})
	time.Sleep(ttl)
	var swept reap.Report
	ours := timed(b, func() (err error) {
		swept, err = reap.New(r.Manager, r.Ledger).Sweep(b.Context(), reap.Options{})
		return err
	})
	if swept.Removed != n || !swept.Clean() {
		b.Errorf("%d of %d removed: %+v", swept.Removed, n, swept)
	}
	base := timed(b, func() error {
		return all(b, n, func(i int) error { _, err := command(b.Context(), e, "rm", "-f", plain[i]); return err })
	})
	report(b, ours, base)
}

// all does something n times, some at once.
func all(tb testing.TB, n int, do func(i int) error) error {
	tb.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	places := make(chan struct{}, reapers)
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := do(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			}
		})
	}
	wg.Wait()
	if failed != nil {
		tb.Error(failed)
	}
	return failed
}

// meter is an engine's socket that counts what goes through it.
type meter struct {
	socket         string
	requests, read atomic.Int64
	verbs          sync.Map // method and kind of path → *atomic.Int64
}

// newMeter stands before an engine.
func newMeter(tb testing.TB, e *dockertest.Engine) *meter {
	tb.Helper()
	m := &meter{socket: filepath.Join(tb.TempDir(), "engine.sock")}
	listener, err := net.Listen("unix", m.socket)
	if err != nil {
		tb.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", strings.TrimPrefix(e.Host, "unix://"))
	}}
	proxy.ModifyResponse = func(answer *http.Response) error {
		if answer.StatusCode != http.StatusSwitchingProtocols {
			answer.Body = counted{answer.Body, &m.read}
		}
		return nil
	}
	proxy.FlushInterval = -1
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.requests.Add(1)
		count, _ := m.verbs.LoadOrStore(verb(r), new(atomic.Int64))
		count.(*atomic.Int64).Add(1)
		proxy.ServeHTTP(w, r)
	}), ReadHeaderTimeout: time.Minute}
	go server.Serve(listener)
	tb.Cleanup(func() { server.Close() })
	return m
}

// verb is a request without the names in it: POST /containers/{}/start.
func verb(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) > 0 && strings.HasPrefix(parts[0], "v1") {
		parts = parts[1:]
	}
	if len(parts) > 2 || len(parts) == 2 && parts[1] != "json" && parts[1] != "create" {
		parts[1] = "{}"
	}
	return r.Method + " /" + strings.Join(parts, "/")
}

type counted struct {
	io.ReadCloser
	read *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// take returns what was counted since the last time.
func (m *meter) take() (requests, read int64, verbs []string) {
	m.verbs.Range(func(what, count any) bool {
		verbs = append(verbs, fmt.Sprintf("%d %s", count.(*atomic.Int64).Load(), what))
		return true
	})
	m.verbs.Clear()
	slices.Sort(verbs)
	return m.requests.Swap(0), m.read.Swap(0), verbs
}

// BenchmarkTerraform counts what Terraform asks of the engine for many
// sandboxes: in an apply, and in the plan after it, which may change nothing;
// and compares that plan with one that asks nothing.
func BenchmarkTerraform(b *testing.B) {
	e := dockertest.Start(b)
	e.Images(b)
	m := newMeter(b, e)
	n := sized(300, 40)
	w := workspace(b)
	configuration := fmt.Sprintf(`
terraform {
  required_providers {
    sandboxer = { source = "sand-boxer/sandboxer" }
  }
}

provider "sandboxer" {
  fleet  = "cost-terraform"
  docker = { host = "unix://%s", reaper_socket = %q }
}

resource "sandboxer_profile" "p" {
  name  = "cost"
  image = %q
}

resource "sandboxer_sandbox" "s" {
  count   = %d
  profile = sandboxer_profile.p.document
  ttl     = "1h"
}
`, m.socket, strings.TrimPrefix(e.Host, "unix://"), dockertest.Busybox, n)
	if err := os.WriteFile(filepath.Join(w.Dir, "main.tf"), []byte(configuration), 0o600); err != nil {
		b.Fatal(err)
	}
	run := func(args ...string) time.Duration {
		return timed(b, func() error {
			out, err := w.Terraform(b.Context(), append(args, "-no-color")...)
			if err != nil {
				b.Log(out)
			}
			return err
		})
	}
	run("init")
	defer func() {
		out, err := w.Terraform(context.WithoutCancel(b.Context()), "destroy", "-auto-approve", "-no-color")
		if err != nil {
			b.Errorf("%v\n%s", err, out)
		}
	}()
	took := run("apply", "-auto-approve")
	if b.Failed() {
		return
	}
	applied, _, verbs := m.take()
	b.Logf("apply of %d in %.0f s: %d requests, %.1f a sandbox: %s", n, took.Seconds(), applied, float64(applied)/float64(n), strings.Join(verbs, ", "))
	refresh := run("plan", "-detailed-exitcode")
	requests, read, verbs := m.take()
	b.Logf("plan of %d: %d requests, %d bytes: %s", n, requests, read, strings.Join(verbs, ", "))
	still := run("plan", "-detailed-exitcode", "-refresh=false")
	report(b, refresh, still)
	b.ReportMetric(float64(applied)/float64(n), "requests/sandbox")
	b.ReportMetric(float64(requests), "refresh-requests")
	b.ReportMetric(float64(read)/float64(n), "refresh-bytes/sandbox")
}

// workspace is an empty configuration's directory.
func workspace(tb testing.TB) *tfrun.Workspace {
	tb.Helper()
	root, err := repo.Root()
	if err != nil {
		tb.Fatal(err)
	}
	cli, err := tfrun.FindCLI(tb.Context(), root, func(line string) { tb.Log(line) })
	if err != nil {
		tb.Fatal(err)
	}
	w, err := tfrun.New(cli, filepath.Join(root, "bin"), tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	return w
}
