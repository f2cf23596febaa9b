// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// A terminal obeys nothing that others wrote.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain ünïcode":         "plain ünïcode",
		"a\nb\tc":               "a b c",
		"\x1b[31mred\x1b]0;t\a": "�[31mred�]0;t�",
		"a\u202eb\u2066c":       "a�b�c",
		"\u009b31m":             "�31m",
	} {
		if got := printable(text, false); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := printable("a\nb\tc\r", true); got != "a\nb\tc�" {
		t.Errorf("lines: %q", got)
	}
}

func TestDurationsForPeople(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	for d, want := range map[time.Duration]string{
		1500 * time.Millisecond: "in 2s", 90 * time.Second: "in 1m30s", 61 * time.Minute: "in 1h01m",
		-5 * time.Minute: "5m00s ago", 50 * time.Hour: "in 2d2h", 0: "in 0s",
	} {
		if got := when(now.Add(d), now); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	if got := when(time.Time{}, now); got != "" {
		t.Errorf("no time: %q", got)
	}
}

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 5 << 40: "5.0 TiB", 1 << 62: "4.0 EiB"} {
		if got := sizeOf(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// One place turns errors into words and exit codes.
func TestReport(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	lease := sdk.Lease{ExpiresAt: now.Add(-time.Minute), MaxExpiresAt: now.Add(time.Hour), Generation: 3}
	cases := []struct {
		name string
		err  error
		code int
		want string
	}{
		{"none", nil, 0, ""},
		{"plain", errors.New("it broke"), 1, "error: it broke\n"},
		{"an exit code alone", exitError{code: 7}, 7, ""},
		{"misuse", usage("wrong"), 2, "error: wrong\nsee 'sandboxer exec --help'\n"},
		{"left", left("two are left"), 3, "error: two are left\n"},
		{"advice", fmt.Errorf("create: %w", &sdk.Error{Kind: sdk.ErrUnreachable, Path: "backend", Message: "no socket", Advice: "start it"}), 1,
			"error: create: backend: no socket\n  to do: start it\n"},
		{"lease", sdk.Expired(lease, "too late"), 1, "error: too late\n  lease: ends 1m00s ago, at most in 1h00m, generation 3\n"},
		{"retry", &sdk.Error{Kind: sdk.ErrQuota, Message: "full", RetryAfter: time.Second}, 1, "error: full\n  to do: try again in 1s\n"},
		{"several", errors.Join(errors.New("a"), &sdk.Error{Kind: sdk.ErrInvalid, Message: "b", Advice: "c"}), 1, "error: a\nb\n  to do: c\n"},
		{"interrupted", fmt.Errorf("wait: %w", context.Canceled), 1, "error: wait: interrupted\n"},
		{"faults", fault.Faults{{File: "f.yaml", Line: 2, Column: 3, Path: "a", Message: "wrong"}}, 1, "f.yaml:2:3: a: wrong\n"},
		{"hostile text", errors.New("\x1b[2J"), 1, "error: �[2J\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var said strings.Builder
			a := &app{path: "sandboxer exec", Options: Options{Stderr: &said, Clock: clock.NewFake(now)}}
			if code := a.report(c.err); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.HasPrefix(said.String(), c.want) || c.want == "" && said.Len() > 0 {
				t.Errorf("said %q, want %q", said.String(), c.want)
			}
		})
	}
}

func TestProgressLine(t *testing.T) {
	for want, step := range map[string]sdk.Progress{
		"pull: app:1 512 B of 1.0 KiB (50%)": {Phase: "pull", Message: "app:1", Done: 512, Total: 1024},
		"unpack 2.0 KiB":                     {Phase: "unpack", Done: 2048},
		"boot":                               {Phase: "boot"},
	} {
		if got := progressLine(step); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := progressLine(sdk.Progress{Phase: "x", Message: strings.Repeat("é", 200)}); len([]rune(got)) != 78 {
		t.Errorf("%d characters", len([]rune(got)))
	}
}

// Every command and every flag says what it is for.
func TestEverythingIsDescribed(t *testing.T) {
	a := &app{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Usage == "" {
				t.Errorf("%s --%s has no description", cmd.CommandPath(), flag.Name)
			}
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(a.root())
}
