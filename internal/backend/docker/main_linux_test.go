// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestMain(m *testing.M) { os.Exit(dockertest.Main(m)) }

var builtPrograms struct {
	once sync.Once
	dir  string
	err  error
}

// programs builds the programs that run in containers, as a release does, and
// returns what finds them.
func programs(t testing.TB) func(name string) (string, error) {
	t.Helper()
	e := dockertest.Start(t)
	builtPrograms.once.Do(func() {
		builtPrograms.dir = filepath.Join(e.Dir, "programs")
		for _, name := range []string{"guest", "reaper"} {
			out := filepath.Join(builtPrograms.dir, "sandboxer-docker-"+name+"-linux-"+runtime.GOARCH)
			cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "./"+name)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if said, err := cmd.CombinedOutput(); err != nil {
				builtPrograms.err = fmt.Errorf("build %s: %w\n%s", name, err, said)
			}
		}
	})
	if builtPrograms.err != nil {
		t.Fatal(builtPrograms.err)
	}
	return func(name string) (string, error) { return filepath.Join(builtPrograms.dir, name), nil }
}

// backend is a configured backend on the test's engine.
type backend struct {
	*docker.Extension
	engine *dockertest.Engine
	fleet  string
}

type change func(opts *docker.Options, config map[string]string)

// open returns a backend of a fleet of its own, whose sandboxes go with the
// test.
func open(t testing.TB, changes ...change) backend {
	t.Helper()
	return openFleet(t, "fleet-"+random(8), changes...)
}

func openFleet(t testing.TB, fleet string, changes ...change) backend {
	t.Helper()
	engine := dockertest.Start(t)
	engine.Images(t)
	opts := docker.Options{Program: programs(t), Getenv: func(string) string { return "" }}
	config := map[string]string{"host": engine.Host, "reaper": "external"}
	for _, change := range changes {
		change(&opts, config)
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	e := docker.New(opts)
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "docker", Fleet: fleet, Config: encoded}); err != nil {
		t.Fatal(err)
	}
	b := backend{e, engine, fleet}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		b.sweep(ctx, t)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// sweep removes what a test left on purpose, and its reaper.
func (b backend) sweep(ctx context.Context, t testing.TB) {
	list, err := b.List(ctx, sdk.ListOptions{})
	if err != nil {
		return // the test has made the engine unreachable
	}
	for _, s := range list.Sandboxes {
		if _, err := b.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: s.ID, Fleet: b.fleet}}); err != nil {
			t.Error(err)
		}
	}
	if err := b.RemoveReaper(ctx); err != nil {
		t.Error(err)
	}
}

func withReaper(_ *docker.Options, config map[string]string) { config["reaper"] = "container" }

func observed(observe func(*http.Request) error) change {
	return func(opts *docker.Options, _ map[string]string) { opts.Observe = observe }
}

// creation returns the options of a create that nothing is special about.
func (b backend) creation(changes ...func(opts *sdk.CreateOptions)) sdk.CreateOptions {
	id, now := "sbx-"+random(20), time.Now().UTC().Truncate(time.Second)
	opts := sdk.CreateOptions{
		ID: id, Profile: sdk.Profile{Name: "test", Image: dockertest.Busybox},
		Identity:  sdk.Identity{ID: id, Fleet: b.fleet, Incarnation: 1, Owner: "tests", Profile: "test", CreatedAt: now},
		ExpiresAt: now.Add(10 * time.Minute), MaxExpiresAt: now.Add(4 * time.Hour), Event: sdk.EventRef{LedgerID: "ldg-test", Sequence: 1, Hash: random(8)},
	}
	for _, change := range changes {
		change(&opts)
	}
	return opts
}

// create makes a sandbox.
func (b backend) create(t testing.TB, changes ...func(opts *sdk.CreateOptions)) (sdk.Sandbox, sdk.Target) {
	t.Helper()
	made, err := b.Create(t.Context(), b.creation(changes...))
	if err != nil {
		t.Fatal(err)
	}
	return made.Sandbox, sdk.Target{ID: made.Sandbox.ID, Ref: made.Sandbox.Ref, Fleet: b.fleet}
}

// run runs a command and returns its output and exit code.
func (b backend) run(t testing.TB, target sdk.Target, command ...string) (string, int) {
	t.Helper()
	var out strings.Builder
	result, err := b.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: command, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	return out.String(), result.ExitCode
}

type dockerOptions = docker.Options

func fullSize() bool { return os.Getenv("SANDBOXER_TEST_FULL") != "" }

// waitFor looks until something is the case that has to become so.
func waitFor(t testing.TB, what string, look func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !look(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a minute later it is not so that %s", what)
		}
	}
}

// nothingLeft fails when anything on the engine carries an id of this fleet.
func (b backend) nothingLeft(t testing.TB, id string) {
	t.Helper()
	if n := b.leftOf(t, id); n > 0 {
		t.Errorf("%d containers, networks and volumes of %s are left", n, id)
	}
}

// leftOf counts what on the engine carries an id of this fleet.
func (b backend) leftOf(t testing.TB, id string) int {
	t.Helper()
	filters := client.Filters{}.Add("label", sdk.LabelID+"="+id, sdk.LabelFleet+"="+b.fleet)
	containers, err := b.engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: filters})
	networks, networkErr := b.engine.Client.NetworkList(t.Context(), client.NetworkListOptions{Filters: filters})
	volumes, volumeErr := b.engine.Client.VolumeList(t.Context(), client.VolumeListOptions{Filters: filters})
	if err := errors.Join(err, networkErr, volumeErr); err != nil {
		t.Fatal(err)
	}
	left := 0
	count := func(labels map[string]string) {
		if labels[sdk.LabelID] == id && labels[sdk.LabelFleet] == b.fleet { // not each engine filters by all
			left++
		}
	}
	for _, c := range containers.Items {
		count(c.Labels)
	}
	for _, n := range networks.Items {
		count(n.Labels)
	}
	for _, v := range volumes.Items {
		count(v.Labels)
	}
	return left
}

// remove removes a container; the test may have done so already.
func (b backend) remove(t testing.TB, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	_, err := b.engine.Client.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}

func random(n int) string {
	bytes := make([]byte, n)
	_, _ = rand.Read(bytes)
	return base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").EncodeToString(bytes)[:n]
}
