// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockertest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/moby/client"
)

// StartPodman starts Podman's service, which speaks Docker's API, with
// directories of its own, for one test. It needs [Main], like [Start].
func StartPodman(t testing.TB) *Engine {
	t.Helper()
	e, err := startPodman(t.TempDir())
	if err != nil {
		t.Fatalf("start Podman (`go run ./tools/testrun docker` installs what it needs): %v", err)
	}
	t.Cleanup(e.end)
	return e
}

func startPodman(dir string) (*Engine, error) {
	if os.Getenv(workDir) == "" {
		return nil, errors.New("the package's TestMain does not call dockertest.Main")
	}
	program, err := find("podman")
	if err != nil {
		return nil, err
	}
	e := &Engine{Host: "unix://" + filepath.Join(dir, "podman.sock"), Dir: dir}
	e.args = []string{
		program, "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc", "system", "service", "--time", "0", e.Host,
	}
	if e.Client, err = client.New(client.WithHost(e.Host)); err != nil {
		return nil, err
	}
	if err := e.run(); err != nil {
		return nil, err
	}
	root, err := BusyboxRoot(context.Background())
	if err == nil {
		err = e.importImage(context.Background(), Busybox, root)
	}
	if err != nil {
		e.end()
		return nil, err
	}
	return e, nil
}
