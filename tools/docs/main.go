// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command docs renders docs/ with tfplugindocs from the provider's schemas,
// templates/ and examples/, and before that the guide of the command line
// from its help. It needs neither Terraform nor the network.
//
//	go run ./tools/docs         # writes docs/ and templates/guides/cli.md
//	go run ./tools/docs -check  # fails when they are not what it would write
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/provider"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/schemajson"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/toolbin"
)

// name is the provider's short name.
const name = "sandboxer"

// rendered are the parts of docs/ that tfplugindocs owns; what else lies in
// docs/ is written by hand.
var rendered = []string{"index.md", "resources", "data-sources", "ephemeral-resources", "functions", "actions", "list-resources", "guides"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(ctx, *check); err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, check bool) error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	server, err := providerserver.NewProtocol6WithError(provider.New(provider.Options{Version: repo.DevVersion}))()
	if err != nil {
		return err
	}
	schemas, err := schemajson.Fetch(ctx, server)
	if err != nil {
		return err
	}
	if err := errors.Join(complain(schemas.Undescribed()), complain(missingExamples(root, schemas))); err != nil {
		return err
	}
	page, err := renderCLI(ctx)
	if err != nil {
		return err
	}
	pageFile := filepath.Join(root, filepath.FromSlash(cliPage))
	if check {
		if old, err := os.ReadFile(pageFile); err != nil {
			return err
		} else if !bytes.Equal(old, page) {
			return fmt.Errorf("%s is not what the command line's help gives (`make docs` renders it)", cliPage)
		}
	} else if err := os.WriteFile(pageFile, page, 0o644); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "sandboxer-docs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	document, err := schemajson.Marshal(name, schemas)
	if err != nil {
		return err
	}
	schemaFile := filepath.Join(scratch, "schema.json")
	if err := os.WriteFile(schemaFile, document, 0o600); err != nil {
		return err
	}
	tool, err := toolbin.Find("tfplugindocs")
	if err != nil {
		return err
	}
	binary, err := toolbin.Ensure(ctx, root, tool, func(line string) { fmt.Fprintln(os.Stderr, line) })
	if err != nil {
		return err
	}
	g := generator{binary: binary, root: root, schema: schemaFile}
	if !check {
		if err := g.run(ctx, "generate", "docs"); err != nil {
			return err
		}
		return g.run(ctx, "validate", "")
	}
	// It takes a directory below the provider's only.
	fresh, err := os.MkdirTemp(filepath.Join(root, ".cache"), "docs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	relative, err := filepath.Rel(root, fresh)
	if err != nil {
		return err
	}
	if err := g.run(ctx, "generate", relative); err != nil {
		return err
	}
	differing, err := compare(filepath.Join(root, "docs"), fresh)
	if err != nil {
		return err
	}
	if len(differing) > 0 {
		return fmt.Errorf("docs/ is not what its sources give (`make docs` renders it):\n  %s", strings.Join(differing, "\n  "))
	}
	return g.run(ctx, "validate", "")
}

// generator runs tfplugindocs.
type generator struct{ binary, root, schema string }

func (g generator) run(ctx context.Context, verb, out string) error {
	args := []string{verb, "--provider-dir", g.root, "--provider-name", name, "--providers-schema", g.schema}
	if out != "" {
		args = append(args, "--rendered-website-dir", out)
	}
	cmd := repo.Command(ctx, g.root, g.binary, args...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("tfplugindocs %s: %w\n%s", verb, err, output)
	}
	return nil
}

func complain(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "\n"))
}
