// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command toolbin builds the named tools into .cache/bin and prints their
// paths; without names it lists what there is.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/toolbin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "toolbin:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		for _, tool := range toolbin.All {
			fmt.Printf("%-16s %s\n", tool.Name, tool.Why)
		}
		return nil
	}
	for _, name := range names {
		tool, err := toolbin.Find(name)
		if err != nil {
			return err
		}
		path, err := toolbin.Ensure(ctx, root, tool, func(line string) { fmt.Fprintln(os.Stderr, line) })
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}
