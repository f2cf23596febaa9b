// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/tfrun"
)

// footprint is what an idle sandbox takes of the machine's memory, in bytes,
// measured (30 MB) and rounded up.
const footprint = 40e6

// room returns how many sandboxes of those wanted the free memory has room
// for, with half of it left alone.
func room(wanted int, availableBytes float64) int {
	if availableBytes <= 0 {
		return wanted
	}
	return min(wanted, int(availableBytes/2/footprint))
}

// available returns the free memory in bytes; 0 where the kernel does not tell.
func available() float64 {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(info), "\n") {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024
		}
	}
	return 0
}

// planBound is half a second on top of the two that Terraform itself needs for
// the plan of 300 resources on an idle machine of two cores. As a ratio it
// holds on a busy one too.
const planBound = 1.25

// plan measures what reading the backend adds to a plan of many sandboxes:
// the same plan with and without a refresh, on real ones.
func plan(ctx context.Context, b *bench) (figures []figure, err error) {
	planned := room(b.planned, available())
	if planned < b.planned {
		b.note("there is memory for %d sandboxes, not for %d: the bound stays the same", planned, b.planned)
	}
	cli, err := tfrun.FindCLI(ctx, b.root, func(line string) { b.note("%s", line) })
	if err != nil {
		return nil, err
	}
	scratch := filepath.Join(b.scratch, "plan")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return nil, err
	}
	w, err := tfrun.New(cli, filepath.Join(b.root, "bin"), scratch)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`
terraform {
  required_providers {
    sandboxer = { source = "sand-boxer/sandboxer" }
  }
}
provider "sandboxer" { fleet = "bench" }
resource "sandboxer_profile" "bench" {
  name = "bench"
}
resource "sandboxer_sandbox" "many" {
  count   = %d
  profile = sandboxer_profile.bench.document
  ttl     = "1h"
}
`, planned)
	if err := os.WriteFile(filepath.Join(w.Dir, "main.tf"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	if _, err := w.Terraform(ctx, "init", "-input=false", "-no-color"); err != nil {
		return nil, err
	}
	b.note("making %d sandboxes", planned)
	begin := time.Now()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		_, destroyErr := w.Terraform(ctx, "destroy", "-auto-approve", "-input=false", "-no-color", "-refresh=false")
		err = errors.Join(err, destroyErr)
	}()
	if _, err := w.Terraform(ctx, "apply", "-auto-approve", "-input=false", "-no-color"); err != nil {
		return nil, err
	}
	b.note("made in %.0f s", time.Since(begin).Seconds())
	timedPlan := func(args ...string) side {
		return func(ctx context.Context) (time.Duration, error) {
			return timed(func() error {
				_, err := w.Terraform(ctx, append([]string{"plan", "-input=false", "-no-color", "-detailed-exitcode"}, args...)...)
				return err
			})
		}
	}
	measured, err := interleave(ctx, min(b.runs, 7), timedPlan(), timedPlan("-refresh=false"))
	if err != nil {
		return nil, err
	}
	f := ratio(fmt.Sprintf("plan of %d: against -refresh=false", planned), planBound, measured[0], measured[1])
	f.detail += fmt.Sprintf(", %s more", short(median(measured[0])-median(measured[1])))
	return []figure{f}, nil
}
