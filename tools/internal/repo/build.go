// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package repo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Target is what a build is for.
type Target struct {
	OS, Arch string
	Version  string
	Commit   string
}

// A Binary is one program of the project.
type Binary struct {
	Name string // file name, without .exe
	Dir  string // its main package, relative to the root
}

// The programs of the project. The provider and the command line are one
// program under two names.
var (
	Provider       = Binary{Name: "terraform-provider-sandboxer", Dir: "."}
	CLI            = Binary{Name: "sandboxer", Dir: "."}
	ExtensionLocal = Binary{Name: "sandboxer-extension-local", Dir: "extensions/local"}
	ExtensionModal = Binary{Name: "sandboxer-extension-modal", Dir: "extensions/modal"}
)

// DockerPrograms are the Docker backend's programs that run in containers:
// built for the engines' platforms, whatever this one is.
var DockerPrograms = []Binary{
	{Name: "sandboxer-docker-guest", Dir: "internal/backend/docker/guest"},
	{Name: "sandboxer-docker-reaper", Dir: "internal/backend/docker/reaper"},
}

// EngineArchs are the processors of engines.
var EngineArchs = []string{"amd64", "arm64"}

// BuildDockerPrograms builds the programs for some processors and returns
// their paths.
func BuildDockerPrograms(ctx context.Context, root string, target Target, archs []string, out string) ([]string, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	var paths []string
	for _, arch := range archs {
		for _, b := range DockerPrograms {
			target.OS, target.Arch = "linux", arch
			path := filepath.Join(out, b.Name+"-linux-"+arch)
			if err := Build(ctx, root, b, target, path); err != nil {
				return nil, err
			}
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// ExtensionPlatforms are where the embedded backend builds.
var ExtensionPlatforms = []string{"linux/amd64", "linux/arm64"}

// Build builds one binary for a target and returns when out is in place.
func Build(ctx context.Context, root string, b Binary, target Target, out string) error {
	ldflags, err := Ldflags(ctx, root, b, target)
	if err != nil {
		return err
	}
	// A partial file must never be taken for a binary.
	partial := out + ".partial"
	cmd := Command(ctx, filepath.Join(root, b.Dir), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", partial, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+target.OS, "GOARCH="+target.Arch)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w\n%s", b.Name, target.OS, target.Arch, err, output)
	}
	return os.Rename(partial, out)
}

// Ldflags returns the linker flags of one binary. The embedded backend needs
// the label of the gVisor that it links: restore compares it, and without it
// every build carries the same placeholder.
func Ldflags(ctx context.Context, root string, b Binary, target Target) (string, error) {
	flags := []string{"-s", "-w", "-X main.version=" + target.Version, "-X main.commit=" + target.Commit}
	if b == ExtensionLocal {
		version, err := GVisorVersion(ctx, root)
		if err != nil {
			return "", err
		}
		flags = append(flags, "-X gvisor.dev/gvisor/runsc/version.version="+version)
	}
	return strings.Join(flags, " "), nil
}

// GVisorVersion returns the version of the gVisor module that the embedded
// backend is built with.
func GVisorVersion(ctx context.Context, root string) (string, error) {
	return Output(ctx, filepath.Join(root, ExtensionLocal.Dir), "go", "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor")
}

// Commit returns the checkout's commit, or "unknown" outside of git.
func Commit(ctx context.Context, root string) string {
	commit, err := Output(ctx, root, "git", "rev-parse", "HEAD")
	if err != nil {
		return "unknown"
	}
	return commit
}
