// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// cookie is how Terraform tells a plugin that it is Terraform.
const cookie = "TF_PLUGIN_MAGIC_COOKIE=d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2"

// handshake compares the provider's start with that of a provider that has
// nothing in it. Every command of Terraform pays it one to three times.
func handshake(ctx context.Context, b *bench) ([]figure, error) {
	empty := filepath.Join(b.scratch, "emptyprovider")
	build := repo.Command(ctx, b.root, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", empty, "./tools/bench/emptyprovider")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the empty provider: %w\n%s", err, output)
	}
	ours := b.bin(repo.Provider.Name)
	var rss, emptyRSS []float64
	start := func(path string, sizes *[]float64) side {
		return func(ctx context.Context) (time.Duration, error) {
			took, size, err := startPlugin(ctx, path)
			*sizes = append(*sizes, size)
			return took, err
		}
	}
	// Starts are short, so there are more of them.
	measured, err := interleave(ctx, 2*b.runs+1, start(ours, &rss), start(empty, &emptyRSS))
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(ours)
	if err != nil {
		return nil, err
	}
	return []figure{
		ratio("provider start to handshake", 2, measured[0], measured[1]),
		{
			name: "provider memory at handshake", value: median(rss), unit: " MB", bound: 30,
			detail: fmt.Sprintf("the empty provider has %.1f MB", median(emptyRSS)),
		},
		{name: "provider binary", value: float64(info.Size()) / 1e6, unit: " MB", bound: 30, detail: "stripped, " + filepath.Base(ours)},
	}, nil
}

// startPlugin starts a provider as Terraform does, and returns the time to
// its handshake line and its resident memory, in MB, at that moment.
func startPlugin(ctx context.Context, path string) (time.Duration, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := repo.Command(ctx, filepath.Dir(path), path)
	cmd.Env = append(os.Environ(), cookie, "PLUGIN_PROTOCOL_VERSIONS=6", "PLUGIN_MIN_PORT=10000", "PLUGIN_MAX_PORT=25000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	took := time.Since(begin)
	rss := residentMB(cmd.Process.Pid)
	_ = cmd.Process.Kill() // it has no reason to stop by itself
	_ = cmd.Wait()         // killed: the error says only that
	if err != nil {
		return 0, 0, fmt.Errorf("%s gave no handshake: %w", path, err)
	}
	if !strings.Contains(line, "|grpc") {
		return 0, 0, fmt.Errorf("%s gave %q for a handshake", path, line)
	}
	return took, rss, nil
}

// residentMB reads a process's resident memory; 0 where the kernel does not
// tell.
func residentMB(pid int) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024 / 1e6
		}
	}
	return 0
}
