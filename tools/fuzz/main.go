// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command fuzz runs each fuzz target of the checkout for a while and fails
// when one finds something. Go leaves the finding beside the target, in
// testdata/fuzz, where every later test run tries it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	each := flag.Duration("time", time.Minute, "how long each target runs")
	only := flag.String("only", "", "regular expression that the names of targets must match")
	flag.Parse()
	if err := run(ctx, *each, *only); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// target is one fuzz target.
type target struct {
	name   string
	module string // directory
	dir    string // directory of its package, relative to the module's
}

func run(ctx context.Context, each time.Duration, only string) error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	targets, err := find(root)
	if err != nil {
		return err
	}
	var ran, found int
	for _, t := range targets {
		if !wanted.MatchString(t.name) {
			continue
		}
		ran++
		begin := time.Now()
		cmd := repo.Command(ctx, t.module, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "./"+t.dir)
		output, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		verdict := "ok"
		if err != nil {
			found++
			verdict = "FAIL\n" + string(output)
		}
		fmt.Printf("%-24s %-40s %5.0f s  %s\n", t.name, t.dir, time.Since(begin).Seconds(), verdict)
	}
	if ran == 0 {
		return fmt.Errorf("no target matches %q", only)
	}
	if found > 0 {
		return fmt.Errorf("%d of %d targets found something", found, ran)
	}
	return nil
}

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// find returns the targets of all modules, in the order of the files.
func find(root string) ([]target, error) {
	var targets []target
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range declaration.FindAllStringSubmatch(string(source), -1) {
			module, err := moduleOf(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			dir, err := filepath.Rel(module, filepath.Dir(path))
			if err != nil {
				return err
			}
			targets = append(targets, target{name: match[1], module: module, dir: filepath.ToSlash(dir)})
		}
		return nil
	})
	return targets, err
}

// moduleOf returns the directory of the module that a directory is in.
func moduleOf(root, dir string) (string, error) {
	for ; len(dir) >= len(root); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is in no module", dir)
}
