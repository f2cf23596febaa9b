// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// plain runs gVisor's own command line, without anything of ours around it:
// the floor for the embedded backend. The extension's binary is that command
// line when its name says so.
type plain struct {
	binary string
	dir    string
	bundle string
	made   int
}

// newPlain lays out a bundle for a root filesystem.
func newPlain(binary, dir, rootfs string) (*plain, error) {
	p := &plain{binary: binary, dir: dir, bundle: filepath.Join(dir, "bundle")}
	for _, name := range []string{"bundle", "root", "overlay"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	namespace := func(name string) map[string]string { return map[string]string{"type": name} }
	mount := func(at, kind string) map[string]any {
		return map[string]any{"destination": at, "type": kind, "source": kind}
	}
	spec, err := json.Marshal(map[string]any{
		"ociVersion": "1.1.0",
		"process":    map[string]any{"user": map[string]int{"uid": 0, "gid": 0}, "args": []string{"/guest"}, "env": []string{"PATH=/"}, "cwd": "/"},
		"root":       map[string]string{"path": rootfs},
		"hostname":   "plain",
		"mounts":     []any{mount("/proc", "proc"), mount("/dev", "tmpfs"), mount("/sys", "sysfs")},
		"linux":      map[string]any{"namespaces": []any{namespace("pid"), namespace("ipc"), namespace("uts"), namespace("mount"), namespace("network")}},
	})
	if err != nil {
		return nil, err
	}
	return p, os.WriteFile(filepath.Join(p.bundle, "config.json"), spec, 0o600)
}

// run runs one command of runsc to its end.
func (p *plain) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := repo.Command(ctx, p.dir, p.binary)
	cmd.Args = append([]string{"runsc-cli",
		"--root=" + filepath.Join(p.dir, "root"), "--network=none", "--platform=systrap", "--ignore-cgroups",
		"--overlay2=root:dir=" + filepath.Join(p.dir, "overlay"),
	}, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "TMPDIR=/tmp"}
	// A detached sandbox keeps its descriptors: a pipe would never end.
	log, err := os.CreateTemp(p.dir, "log-")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("runsc %s: %w\n%s", args[0], err, said)
	}
	return nil
}

// id returns a new id of fixed length: runsc matches ids by their beginning.
func (p *plain) id() string {
	p.made++
	return fmt.Sprintf("plain%06d", p.made)
}

// product runs the command line of sandboxer in a state directory of its own.
type product struct {
	binary  string
	dir     string
	env     []string
	profile string // file
}

func newProduct(binary, extensions, dir string, profile sdk.Profile) (*product, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	document, err := json.Marshal(profile)
	if err != nil {
		return nil, err
	}
	p := &product{binary: binary, dir: dir, profile: filepath.Join(dir, "profile.json"), env: append(repo.CleanEnv(),
		"SANDBOXER_FLEET=bench",
		"SANDBOXER_STATE_DIR="+filepath.Join(dir, "state"),
		"SANDBOXER_EXTENSION_DIR="+extensions,
		"XDG_CONFIG_HOME="+filepath.Join(dir, "config"),
	)}
	return p, os.WriteFile(p.profile, document, 0o600)
}

func (p *product) create(ctx context.Context) (string, error) {
	return p.made(ctx, "create", "--profile", p.profile, "--ttl", "20m")
}

func (p *product) exec(ctx context.Context, id string) error {
	_, err := p.run(ctx, "exec", id, "--", "/guest", "true")
	return err
}

func (p *product) snapshot(ctx context.Context, id string) (string, error) {
	return p.made(ctx, "snapshot", "create", id, "--kind", "memory")
}

func (p *product) restore(ctx context.Context, snapshotID string) (string, error) {
	return p.made(ctx, "restore", snapshotID, "--ttl", "20m")
}

func (p *product) destroy(ctx context.Context, id string) error {
	_, err := p.run(ctx, "destroy", id)
	return err
}

func (p *product) deleteSnapshot(ctx context.Context, snapshotID string) error {
	_, err := p.run(ctx, "snapshot", "delete", snapshotID)
	return err
}

// run runs one command to its end and returns its output.
func (p *product) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := repo.Command(ctx, p.dir, p.binary, args...)
	cmd.Env = p.env
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("sandboxer %v: %w\n%s%s", args, err, out.Bytes(), said.Bytes())
	}
	return out.Bytes(), nil
}

// made runs a command that makes one thing and returns the thing's id.
func (p *product) made(ctx context.Context, args ...string) (string, error) {
	out, err := p.run(ctx, append(args, "-o", "json")...)
	if err != nil {
		return "", err
	}
	var thing struct{ ID string }
	if err := json.Unmarshal(out, &thing); err != nil || thing.ID == "" {
		return "", fmt.Errorf("sandboxer %v made nothing with an id: %v\n%s", args, err, out)
	}
	return thing.ID, nil
}

// guestRootfs builds the benches' root filesystem, as a directory and as a tar.
func guestRootfs(ctx context.Context, b *bench) (dir, archive string, err error) {
	dir = filepath.Join(b.scratch, "rootfs")
	for _, name := range []string{"proc", "dev", "sys", "tmp", "etc", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return "", "", err
		}
	}
	build := repo.Command(ctx, b.root, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(dir, "guest"), "./tools/bench/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("build the guest: %w\n%s", err, output)
	}
	archive = filepath.Join(b.scratch, "rootfs.tar")
	tar := exec.CommandContext(ctx, "tar", "-C", dir, "-cf", archive, ".")
	if output, err := tar.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("tar: %w\n%s", err, output)
	}
	return dir, archive, nil
}
