// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

// The integration tests drive real sandboxes with the real binary, as root
// and as an unprivileged user: as root every test runs a second time, in this
// same test binary started under another uid.

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// programEnv carries the built binary to the tests of the other user.
const programEnv = "SANDBOXER_TEST_PROGRAM"

// otherUID is an unprivileged user that needs no entry anywhere.
const otherUID = 54321

var program string

func TestMain(m *testing.M) {
	if program = os.Getenv(programEnv); program != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "sandboxer-local-test-")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "sandboxer-extension-local")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "../..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the extension: %v\n%s", err, out)
		os.Exit(1)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

const fleet = "test"

// backend returns a configured backend with a state directory of its own
// whose path is longer than a socket's may be.
func backend(t *testing.T) *extension.Extension {
	t.Helper()
	return backendAt(t, stateDir(t), time.Now)
}

func stateDir(t *testing.T) string {
	t.Helper()
	long := filepath.Join(t.TempDir(), "a-state-directory-whose-path-is-longer-than-the-108-bytes-that-the-path-of-a-socket-may-have-on-linux")
	return long
}

func backendAt(t *testing.T, state string, now func() time.Time) *extension.Extension {
	t.Helper()
	e := extension.New(extension.Options{Now: now, Program: program})
	config := fmt.Sprintf("{%q: %q}", "state_dir", state)
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "local", Fleet: fleet, Config: []byte(config)}); err != nil {
		t.Fatal(err)
	}
	return e
}

func newID(prefix string) string {
	const alphabet = "0123456789abcdefghijklmnopqrstuv"
	b := []byte(prefix)
	for range 20 {
		b = append(b, alphabet[rand.IntN(len(alphabet))])
	}
	return string(b)
}

func options(profile sdk.Profile) sdk.CreateOptions {
	now := time.Now()
	id := newID("sbx-")
	return sdk.CreateOptions{
		ID: id, Identity: sdk.Identity{ID: id, Fleet: fleet, CreatedAt: now}, Profile: profile,
		ExpiresAt: now.Add(10 * time.Minute), MaxExpiresAt: now.Add(time.Hour),
	}
}

// create makes a sandbox that is destroyed with the test.
func create(t *testing.T, e *extension.Extension, opts sdk.CreateOptions) sdk.Sandbox {
	t.Helper()
	made, err := e.Create(t.Context(), opts)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	destroyLater(t, e, opts.ID)
	return made.Sandbox
}

func destroyLater(t *testing.T, e *extension.Extension, id string) {
	t.Cleanup(func() {
		if _, err := e.Destroy(context.Background(), sdk.DestroyOptions{Target: target(id)}); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
}

func target(id string) sdk.Target { return sdk.Target{ID: id, Fleet: fleet} }

// run runs a command that has to succeed and returns its output.
func run(t *testing.T, e *extension.Extension, id string, command ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	result, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(id), Command: command, Stdout: &out, Stderr: &errs})
	if err != nil || result.ExitCode != 0 {
		t.Fatalf("exec %q: exit code %d, %v\n%s", command, result.ExitCode, err, errs.String())
	}
	return out.String()
}

// TestUnprivileged runs every other test as an unprivileged user.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		return // this is that run, or all of them are
	}
	dir, err := os.MkdirTemp("", "sandboxer-unprivileged-") //nolint:usetesting // the other user can't enter the testing package's directories
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, otherUID, otherUID); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test binary's own folder may be closed to others.
	copied := filepath.Join(dir, "test")
	if out, err := exec.Command("cp", self, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	args := []string{"-test.v=true", "-test.timeout=10m"}
	cmd := exec.Command(copied, args...)
	cmd.Dir = dir
	cmd.Env = []string{programEnv + "=" + program, "HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	if full := os.Getenv("SANDBOXER_TEST_FULL"); full != "" {
		cmd.Args = append(cmd.Args, "-test.timeout=0")
		cmd.Env = append(cmd.Env, "SANDBOXER_TEST_FULL="+full)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as uid %d: %v\n%s", otherUID, err, out)
	}
}
