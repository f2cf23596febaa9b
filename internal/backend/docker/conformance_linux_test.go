// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
)

// The backend does what its capability document claims, on a real engine.
func TestDockerConformance(t *testing.T) {
	engine := dockertest.Start(t)
	engine.Images(t)
	find := programs(t)
	config, err := json.Marshal(map[string]string{"host": engine.Host})
	if err != nil {
		t.Fatal(err)
	}
	conformancetest.Test(t, conformance.Suite{
		New: func(context.Context) (sdk.Extension, func(), error) {
			e := docker.New(docker.Options{Program: find, Getenv: func(string) string { return "" }})
			return e, func() { _ = e.Close() }, nil
		},
		Config:    config,
		Profile:   sdk.Profile{Name: "conformance", Image: dockertest.Busybox},
		ImageFile: rootfs(t),
		Commands: conformance.Commands{
			Serve: func(port int) []string {
				return []string{"nc", "-ll", "-p", strconv.Itoa(port), "-e", "/bin/echo", "conformance"}
			},
		},
		Timing: conformance.Timing{Short: 8 * time.Second, Grace: 60 * time.Second},
	}, nil)
}

// rootfs makes an image file: a root filesystem with one file and no program.
func rootfs(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rootfs.tar")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, header := range []*tar.Header{{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}, {Typeflag: tar.TypeReg, Name: "etc/hostname", Mode: 0o644}} {
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}
