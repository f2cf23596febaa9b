// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		value, bound float64
		want         string
	}{
		{1.2, 1.6, "ok"}, {1.6, 1.6, "ok"}, {1.7, 1.6, "over"}, {2.4, 1.6, "over"}, {2.5, 1.6, "MISSED"},
		{0, 0, "ok"}, {1, 0, "MISSED"}, {99, told, "told"}, {-0.1, 0.5, "ok"},
	} {
		if got := (figure{value: c.value, bound: c.bound}).verdict(); got != c.want {
			t.Errorf("%v with the bound %v is %s, want %s", c.value, c.bound, got, c.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

// The sides take turns, and the first round of each is thrown away.
func TestInterleave(t *testing.T) {
	order := ""
	count := 0
	record := func(name string) side {
		return func(context.Context) (time.Duration, error) {
			order += name
			count++
			return time.Duration(count), nil
		}
	}
	measured, err := interleave(t.Context(), 2, record("a"), record("b"))
	if err != nil || order != "ababab" {
		t.Fatalf("order %q, error %v", order, err)
	}
	if measured[0][0] != 3 || measured[1][1] != 6 || len(measured[0]) != 2 {
		t.Errorf("measured %v", measured)
	}
	refused := errors.New("refused")
	_, err = interleave(t.Context(), 1, func(context.Context) (time.Duration, error) { return 0, refused })
	if !errors.Is(err, refused) {
		t.Errorf("error %v, want %v", err, refused)
	}
}

func TestRoom(t *testing.T) {
	for _, c := range []struct {
		available float64
		want      int
	}{{0, 300}, {24e9, 300}, {8e9, 100}, {80e6, 1}} {
		if got := room(300, c.available); got != c.want {
			t.Errorf("room(300, %v) = %d, want %d", c.available, got, c.want)
		}
	}
}

// What the Docker benchmarks print becomes figures, and one that is missing is
// an error.
func TestDockerFigures(t *testing.T) {
	const printed = `goos: linux
BenchmarkCreate-2           1    324.1 base-ms    348.2 ours-ms    1.074 ratio
BenchmarkCreateOverSSH-2    1    100 base-ms      120 ours-ms      1.2 ratio
BenchmarkReap-2             1    1000 base-ms     1300 ours-ms     1.3 ratio
BenchmarkTerraform-2        1    1000 base-ms     1100 ours-ms     1.1 ratio  3000 refresh-bytes/sandbox  4.000 refresh-requests  14.5 requests/sandbox
PASS
`
	figures, err := dockerFigures([]byte(printed))
	if err != nil || len(figures) != 7 {
		t.Fatalf("%d figures, %v", len(figures), err)
	}
	if f := figures[0]; f.value != 1.074 || f.detail != "348 ms against 324 ms" || f.verdict() != "ok" {
		t.Errorf("%+v", f)
	}
	if f := figures[5]; fmt.Sprintf("%.3f%s", f.value, f.unit) != "0.900 MB" {
		t.Errorf("%+v", f)
	}
	if _, err := dockerFigures([]byte(strings.ReplaceAll(printed, "refresh-requests", "other"))); err == nil {
		t.Error("a figure that was not reported is not missed")
	}
}

// A provider that says nothing is an error, not a fast start.
func TestStartPluginNeedsAHandshake(t *testing.T) {
	if _, _, err := startPlugin(t.Context(), "/bin/true"); err == nil {
		t.Error("/bin/true was taken for a provider")
	}
}
