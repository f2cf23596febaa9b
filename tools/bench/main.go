// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command bench measures what the project promises about its own cost, each
// as a ratio of two things measured in the same run on the same machine, and
// prints the table. Noise hits both sides of a ratio: they are interleaved,
// and the medians are compared.
//
//	go run ./tools/bench                 # everything
//	go run ./tools/bench -only handshake # one group
//
// It fails when a ratio misses its bound by more than half of it.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// figure is one promised number.
type figure struct {
	name   string
	value  float64
	unit   string // "x" for a ratio
	bound  float64
	detail string // the two sides
}

// told is the bound of a figure that is told and not judged.
var told = math.Inf(1)

// verdict compares a figure with its bound. Up to half over it is told, not
// failed: the machine may be shared.
func (f figure) verdict() string {
	switch {
	case f.bound == told:
		return "told"
	case f.value <= f.bound:
		return "ok"
	case f.value <= 1.5*f.bound:
		return "over"
	default:
		return "MISSED"
	}
}

// group is a set of figures that are measured together.
type group struct {
	name    string
	measure func(context.Context, *bench) ([]figure, error)
}

func groups() []group {
	return []group{
		{"handshake", handshake},
		{"local", local},
		{"ledger", ledgerList},
		{"plan", plan},
		{"docker", dockerBench},
		{"e2b", e2bBench},
	}
}

// bench is what the groups share.
type bench struct {
	root    string
	scratch string // removed at the end
	runs    int
	planned int // sandboxes in the plan
}

// note tells a person what is going on.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// bin returns the path of one of the project's built programs.
func (b *bench) bin(name string) string { return filepath.Join(b.root, "bin", name) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("only", "", "comma separated groups to measure: handshake, local, ledger, plan, docker, e2b")
	runs := flag.Int("runs", 15, "measurements of each side")
	planned := flag.Int("planned", 300, "sandboxes in the plan")
	flag.Parse()
	missed, err := run(ctx, *only, *runs, *planned)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if missed {
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, runs, planned int) (bool, error) {
	root, err := repo.Root()
	if err != nil {
		return false, err
	}
	scratch, err := os.MkdirTemp("", "sandboxer-bench-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(scratch)
	b := &bench{root: root, scratch: scratch, runs: runs, planned: planned}
	begin := time.Now()
	b.note("building bin/: what is measured is what is shipped")
	if output, err := repo.Command(ctx, root, "go", "run", "./tools/build").CombinedOutput(); err != nil {
		return false, fmt.Errorf("go run ./tools/build: %w\n%s", err, output)
	}
	var figures []figure
	for _, g := range groups() {
		if only != "" && !strings.Contains(","+only+",", ","+g.name+",") {
			continue
		}
		b.note("measuring %s", g.name)
		got, err := g.measure(ctx, b)
		if err != nil {
			return false, fmt.Errorf("%s: %w", g.name, err)
		}
		figures = append(figures, got...)
	}
	b.note("measured in %.0f s", time.Since(begin).Seconds())
	return table(figures), nil
}

// table prints the figures and tells whether one is missed.
func table(figures []figure) bool {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "name\tratio\tbound\tverdict\tmeasured")
	missed := false
	for _, f := range figures {
		missed = missed || f.verdict() == "MISSED"
		bound := "-"
		if f.bound != told {
			bound = fmt.Sprintf("%.4g%s", f.bound, f.unit)
		}
		fmt.Fprintf(w, "%s\t%.2f%s\t%s\t%s\t%s\n", f.name, f.value, f.unit, bound, f.verdict(), f.detail)
	}
	w.Flush()
	return missed
}
