// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/tfrun"
)

// tour runs the steps and shows each as a person would have typed it.
type tour struct {
	*tfrun.Workspace
	sandboxer string // path of the command line
	out       io.Writer
	begin     time.Time
	steps     int
}

// step announces what comes next and returns a function that prints its time.
func (t *tour) step(title string) func() {
	t.steps++
	fmt.Fprintf(t.out, "\n%d. %s\n", t.steps, title)
	begin := time.Now()
	return func() { fmt.Fprintf(t.out, "   (%.1f s)\n", time.Since(begin).Seconds()) }
}

// say prints one line below a step.
func (t *tour) say(format string, args ...any) {
	fmt.Fprintf(t.out, "   "+format+"\n", args...)
}

// terraform runs a command of Terraform, shows it, and shows of its output
// the lines that tell what happened.
func (t *tour) terraform(ctx context.Context, args ...string) error {
	t.say("$ %s %s", filepath.Base(t.CLI), strings.Join(args, " "))
	full := args
	switch args[0] {
	case "apply", "destroy":
		full = append([]string{args[0], "-auto-approve", "-input=false", "-no-color"}, args[1:]...)
	case "init":
		full = append([]string{args[0], "-input=false", "-no-color"}, args[1:]...)
	case "plan":
		full = append([]string{args[0], "-input=false", "-no-color"}, args[1:]...)
	}
	output, err := t.Terraform(ctx, full...)
	if err != nil {
		return err
	}
	for _, line := range strings.Split(output, "\n") {
		if telling(line) {
			t.say("  %s", strings.TrimSpace(line))
		}
	}
	return nil
}

// telling picks the lines of Terraform's output that a reader of the tour
// needs; the rest is the plan in full.
func telling(line string) bool {
	for _, part := range []string{
		"Creation complete", "Destruction complete", "Modifications complete", "must be replaced", "will be replaced",
		"Apply complete!", "Destroy complete!", "No changes.", "Plan:", "has been successfully initialized",
	} {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}

// run runs the command line of sandboxer, shows it and its output, and
// returns what it wrote to standard output.
func (t *tour) run(ctx context.Context, args ...string) (string, error) {
	t.say("$ sandboxer %s", quoted(args))
	out, err := t.quiet(ctx, args...)
	for _, line := range strings.Split(strings.TrimRight(out, "\n"), "\n") {
		if line != "" {
			t.say("  %s", line)
		}
	}
	return out, err
}

// quiet runs the command line of sandboxer without showing it.
func (t *tour) quiet(ctx context.Context, args ...string) (string, error) {
	cmd := t.Command(ctx, t.sandboxer, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("sandboxer %s: %w\n%s%s", quoted(args), err, out.String(), said.String())
	}
	return out.String(), nil
}

// outputs reads Terraform's outputs.
func (t *tour) outputs(ctx context.Context) (warm string, forks []string, short string, err error) {
	text, err := t.Terraform(ctx, "output", "-json")
	if err != nil {
		return "", nil, "", err
	}
	var o struct {
		Warm  struct{ Value string }
		Forks struct{ Value []string }
		Short struct{ Value *string }
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return "", nil, "", fmt.Errorf("terraform output: %w\n%s", err, text)
	}
	if o.Short.Value != nil {
		short = *o.Short.Value
	}
	return o.Warm.Value, o.Forks.Value, short, nil
}

// ids returns the ids that a listing of the command line shows.
func (t *tour) ids(ctx context.Context, args ...string) ([]string, error) {
	text, err := t.quiet(ctx, append(args, "-o", "json")...)
	if err != nil {
		return nil, err
	}
	var rows []struct{ ID string }
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return nil, fmt.Errorf("sandboxer %s: %w\n%s", quoted(args), err, text)
	}
	var ids []string
	for _, row := range rows {
		ids = append(ids, row.ID)
	}
	return ids, nil
}

// processes returns the processes that still belong to the tour: those whose
// command line names its directory, this program's own children aside.
func (t *tour) processes() []string {
	scratch := filepath.Dir(t.Dir)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []string
	for _, entry := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || !bytes.Contains(line, []byte(scratch)) {
			continue
		}
		found = append(found, entry.Name()+" "+strings.ReplaceAll(string(bytes.TrimRight(line, "\x00")), "\x00", " "))
	}
	return found
}

// quoted joins words as a person would type them.
func quoted(words []string) string {
	shown := make([]string, len(words))
	for i, word := range words {
		shown[i] = word
		if strings.ContainsAny(word, " $;|&<>\"") {
			shown[i] = "'" + word + "'"
		}
	}
	return strings.Join(shown, " ")
}
