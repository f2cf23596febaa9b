// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// dockerBenchmarks are Go benchmarks, since they need an engine of their own,
// which tests have. Each reports a ratio of two sides that it measured by
// turns.
const dockerBenchmarks = "./tools/dockeracc"

// refreshed is how many sandboxes the promise about a refresh is about.
const refreshed = 300

// dockerBench measures the Docker backend on a real engine.
func dockerBench(ctx context.Context, b *bench) ([]figure, error) {
	cmd := repo.Command(ctx, b.root, "go", "test", "-run", "^$", "-bench", ".", "-benchtime", "1x", "-timeout", "30m", dockerBenchmarks)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go test -bench . %s: %w\n%s", dockerBenchmarks, err, out.Bytes())
	}
	return dockerFigures(out.Bytes())
}

// dockerFigures reads what `go test -bench` printed.
func dockerFigures(printed []byte) ([]figure, error) {
	measured := map[string]map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(printed)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(fields[0], "Benchmark"), "-")
		measured[name] = map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read %q: %w", lines.Text(), err)
			}
			measured[name][fields[i+1]] = value
		}
	}
	var figures []figure
	for _, f := range []struct {
		benchmark, metric string
		figure            figure
		factor            float64
	}{
		{"Create", "ratio", figure{name: "docker: create against docker run and inspect", unit: "x", bound: 1.15}, 1},
		{"CreateOverSSH", "ratio", figure{name: "docker: create over SSH against local", unit: "x", bound: 1.3}, 1},
		{"Reap", "ratio", figure{name: "docker: sweep against docker rm -f", unit: "x", bound: 1.3}, 1},
		{"Terraform", "ratio", figure{name: "docker: plan against -refresh=false", unit: "x", bound: planBound}, 1},
		{"Terraform", "refresh-requests", figure{name: "docker: requests of a refresh", bound: 15}, 1},
		{"Terraform", "refresh-bytes/sandbox", figure{name: fmt.Sprintf("docker: answers to a refresh of %d", refreshed), unit: " MB", bound: 1}, refreshed / 1e6},
		{"Terraform", "requests/sandbox", figure{name: "docker: requests of an apply, for each sandbox", bound: told}, 1},
	} {
		value, found := measured[f.benchmark][f.metric]
		if !found {
			return nil, fmt.Errorf("the benchmarks in %s did not report %s of %s:\n%s", dockerBenchmarks, f.metric, f.benchmark, printed)
		}
		f.figure.value = value * f.factor
		if f.metric == "ratio" {
			of := measured[f.benchmark]
			f.figure.detail = fmt.Sprintf("%.0f ms against %.0f ms", of["ours-ms"], of["base-ms"])
		}
		figures = append(figures, f.figure)
	}
	return figures, nil
}
