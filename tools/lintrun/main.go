// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command lintrun runs the pinned golangci-lint on the root module and on each
// extension's module, with the one configuration of the root. Arguments are
// handed on, `-fix` for one.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/toolbin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lintrun:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	tool, err := toolbin.Find("golangci-lint")
	if err != nil {
		return err
	}
	linter, err := toolbin.Ensure(ctx, root, tool, func(line string) { fmt.Fprintln(os.Stderr, line) })
	if err != nil {
		return err
	}
	modules, err := filepath.Glob(filepath.Join(root, "extensions", "*", "go.mod"))
	if err != nil {
		return err
	}
	modules = append([]string{filepath.Join(root, "go.mod")}, modules...)
	faulty := 0
	for _, module := range modules {
		dir := filepath.Dir(module)
		begin := time.Now()
		line := append([]string{"run", "--config", filepath.Join(root, ".golangci.yml")}, args...)
		cmd := repo.Command(ctx, dir, linter, append(line, "./...")...)
		cmd.Env = append(os.Environ(), "GOWORK=off")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		err := cmd.Run()
		name, _ := filepath.Rel(root, dir)
		fmt.Fprintf(os.Stderr, "lint %-20s %6.1f s\n", name, time.Since(begin).Seconds())
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			faulty++
		}
	}
	if faulty > 0 {
		return fmt.Errorf("%d of %d modules have findings", faulty, len(modules))
	}
	return nil
}
