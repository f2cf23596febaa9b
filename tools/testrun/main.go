// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command testrun runs the project's tests, part by part, and says at the end
// what each cost. It fails when a test failed and also when one was skipped:
// a test that can't run here is a gap, not a success.
//
//	go run ./tools/testrun           # everything: what `make test` does
//	go run ./tools/testrun core      # one part
//	go run ./tools/testrun -list     # the parts
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	list := flag.Bool("list", false, "list the parts and stop")
	flag.Parse()
	if *list {
		for _, p := range parts() {
			fmt.Printf("%-12s %s\n", p.name, p.what)
		}
		return
	}
	ok, err := run(ctx, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// outcome is what one part came to.
type outcome struct {
	part    part
	tally   tally
	seconds float64
	prepare float64 // of seconds, spent on building what the part needs
	notes   string  // printed after the table
}

func run(ctx context.Context, names []string) (bool, error) {
	chosen, err := choose(parts(), names)
	if err != nil {
		return false, err
	}
	root, err := repo.Root()
	if err != nil {
		return false, err
	}
	r := &runner{root: root, out: os.Stdout, clis: map[string]string{}, ran: map[string]bool{}}
	var outcomes []outcome
	for _, p := range chosen {
		fmt.Fprintf(r.out, "\n== %s: %s\n", p.name, p.what)
		outcomes = append(outcomes, r.runPart(ctx, p))
		if ctx.Err() != nil {
			break
		}
	}
	total := report(outcomes)
	return total.ok() && ctx.Err() == nil, ctx.Err()
}

// choose returns the parts with the given names, all of them without one.
func choose(all []part, names []string) ([]part, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []part
	for _, name := range names {
		found := false
		for _, p := range all {
			if p.name == name {
				chosen = append(chosen, p)
				found = true
			}
		}
		if !found {
			return nil, fmt.Errorf("no part is called %q (-list shows them)", name)
		}
	}
	return chosen, nil
}

// runPart prepares and runs one part. A preparation that fails is one failure.
func (r *runner) runPart(ctx context.Context, p part) outcome {
	begin := time.Now()
	o := outcome{part: p}
	for _, prepare := range p.prepare {
		if err := prepare(ctx, r); err != nil {
			fmt.Fprintf(r.out, "FAIL %s: preparing\n%s", p.name, indent(err.Error()))
			o.tally = tally{failed: 1, failures: []string{p.name + ": preparing"}}
			o.seconds = time.Since(begin).Seconds()
			return o
		}
	}
	o.prepare = time.Since(begin).Seconds()
	o.tally, o.notes = p.run(ctx, r)
	o.seconds = time.Since(begin).Seconds()
	return o
}

// report prints the table and the closing line, and returns the sum.
func report(outcomes []outcome) tally {
	var total tally
	var seconds float64
	fmt.Printf("\n%-12s %9s %9s %7s %7s %7s\n", "part", "seconds", "preparing", "passed", "failed", "skipped")
	for _, o := range outcomes {
		fmt.Printf("%-12s %9.1f %9.1f %7d %7d %7d\n", o.part.name, o.seconds, o.prepare, o.tally.passed, o.tally.failed, o.tally.skipped)
		total.add(o.tally)
		seconds += o.seconds
	}
	fmt.Printf("%-12s %9.1f\n", "together", seconds)
	for _, o := range outcomes {
		if o.notes != "" {
			fmt.Printf("\n%s\n", strings.TrimRight(o.notes, "\n"))
		}
	}
	for _, name := range total.failures {
		fmt.Printf("failed: %s\n", name)
	}
	for _, name := range total.skips {
		fmt.Printf("skipped, which counts as a failure: %s\n", name)
	}
	fmt.Printf("\n%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
	return total
}
