// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command build puts the project's binaries into bin/: the provider, the
// command line (the same program), and the extensions.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	version := flag.String("version", repo.DevVersion, "version that the binaries report")
	out := flag.String("out", "", "directory to build into (default bin/ of the checkout)")
	containers := flag.Bool("containers", false, "build only what runs in containers, for every engine")
	flag.Parse()
	if err := run(ctx, *version, *out, *containers); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version, out string, containers bool) error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	if out == "" {
		out = filepath.Join(root, "bin")
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	target := repo.Target{OS: runtime.GOOS, Arch: runtime.GOARCH, Version: version, Commit: repo.Commit(ctx, root)}
	if containers {
		return programs(ctx, root, target, repo.EngineArchs, out)
	}
	if err := programs(ctx, root, target, []string{target.Arch}, out); err != nil {
		return err
	}
	begin := time.Now()
	provider := filepath.Join(out, repo.Provider.Name)
	if err := repo.Build(ctx, root, repo.Provider, target, provider); err != nil {
		return err
	}
	report(provider, begin)
	begin = time.Now()
	if err := link(provider, filepath.Join(out, repo.CLI.Name)); err != nil {
		return err
	}
	report(filepath.Join(out, repo.CLI.Name), begin)
	begin = time.Now()
	modal := filepath.Join(out, repo.ExtensionModal.Name)
	if err := repo.Build(ctx, root, repo.ExtensionModal, target, modal); err != nil {
		return err
	}
	report(modal, begin)
	if !slices.Contains(repo.ExtensionPlatforms, target.OS+"/"+target.Arch) {
		fmt.Fprintf(os.Stderr, "no %s: the embedded backend exists for %v\n", repo.ExtensionLocal.Name, repo.ExtensionPlatforms)
		return nil
	}
	begin = time.Now()
	extension := filepath.Join(out, repo.ExtensionLocal.Name)
	if err := repo.Build(ctx, root, repo.ExtensionLocal, target, extension); err != nil {
		return err
	}
	report(extension, begin)
	return nil
}

// programs builds what runs in containers on an engine.
func programs(ctx context.Context, root string, target repo.Target, archs []string, out string) error {
	begin := time.Now()
	paths, err := repo.BuildDockerPrograms(ctx, root, target, archs, out)
	for _, path := range paths {
		report(path, begin)
		begin = time.Now()
	}
	return err
}

// link gives the provider its second name: a hard link where that works, a
// copy elsewhere. A symbolic link would break when bin/ is copied in parts.
func link(from, to string) error {
	if err := os.Remove(to); err != nil && !os.IsNotExist(err) {
		return err
	}
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

func report(path string, begin time.Time) {
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	fmt.Fprintf(os.Stderr, "%-40s %6.1f MB %6.1f s\n", path, float64(info.Size())/1e6, time.Since(begin).Seconds())
}
