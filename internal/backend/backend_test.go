// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// patience bounds waits that end at once unless something is broken.
const patience = 30 * time.Second

// hostEnv makes the test binary itself a host that waits to be killed.
const hostEnv = "BACKEND_TEST_HOST"

// binary is the test extension, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	if path := os.Getenv(hostEnv); path != "" {
		beKilled(path)
		return
	}
	dir, err := os.MkdirTemp("", "backend-test")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, binaryName("fake"))
	build := exec.Command("go", "build", "-o", binary, "../../sdk/plugin/testdata/extension")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// beKilled opens a backend, says so with its process id, and waits.
func beKilled(path string) {
	r := New(Options{Backends: map[string]Config{"b": {Extension: "fake", Path: path, JSON: []byte(os.Getenv(hostEnv + "_CONFIG"))}}})
	ext, err := r.Open(context.Background(), "b")
	if err != nil {
		fmt.Println(err)
		return
	}
	details, err := probe(context.Background(), ext)
	if err != nil {
		fmt.Println(err)
		return
	}
	opts := sdk.CreateOptions{ID: "sbx-1", Profile: sdk.Profile{Template: "wait"}}
	begun := make(chan struct{})
	opts.Progress = func(p sdk.Progress) {
		if p.Phase == "boot" {
			close(begun)
		}
	}
	go func() { _, _ = ext.Create(context.Background(), opts) }()
	<-begun
	fmt.Println("pid", details["pid"])
	select {}
}

// probe returns what the test extension says about its process.
func probe(ctx context.Context, ext sdk.Extension) (map[string]string, error) {
	result, err := ext.Probe(ctx, sdk.ProbeOptions{})
	details := map[string]string{}
	for _, d := range result.Details {
		details[d.Name] = d.Value
	}
	return details, err
}

// registry returns one with a backend "b" of the test extension.
func registry(t *testing.T, change func(*Options, *Config)) *Registry {
	t.Helper()
	opts, config := Options{Fleet: "fleet", Default: "b"}, Config{Extension: "fake", Path: binary}
	if change != nil {
		change(&opts, &config)
	}
	opts.Backends = map[string]Config{"b": config}
	r := New(opts)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		noGoroutineLeft(t)
	})
	return r
}

// open opens the backend "b".
func open(t *testing.T, r *Registry) sdk.Extension {
	t.Helper()
	ext, err := r.Open(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	return ext
}

// pid returns the process of an extension.
func pid(t *testing.T, ext sdk.Extension) int {
	t.Helper()
	details, err := probe(t.Context(), ext)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(details["pid"])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// eventually waits for what happens at once unless something is broken.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// noGoroutineLeft fails when this package, or go-plugin for it, still runs.
func noGoroutineLeft(t *testing.T) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left = nil
		for _, stack := range strings.Split(string(stacks), "\n\n") {
			if (strings.Contains(stack, "internal/backend.(") || strings.Contains(stack, "hashicorp/go-plugin.(") || strings.Contains(stack, "grpc/internal/transport.")) &&
				!strings.Contains(stack, "testing.tRunner") {
				left = append(left, stack)
			}
		}
		if left == nil {
			return
		}
	}
	t.Errorf("goroutines left behind:\n%s", strings.Join(left, "\n\n"))
}

// recorder is a logger that remembers its lines.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(p))
	return len(p), nil
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "")
}

func (r *recorder) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: r})
}

// isA fails unless an error is of a kind and mentions every word.
func isA(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, where %q was expected", kind)
	}
	if !errors.Is(err, kind) {
		t.Errorf("not %q: %v", kind, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not mention %q: %v", word, err)
		}
	}
}

// script writes an executable file.
func script(t *testing.T, dir, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}
