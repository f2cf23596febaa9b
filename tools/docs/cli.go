// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/cli"
)

// cliPage is the guide that is written from the help of the command line.
const cliPage = "templates/guides/cli.md"

const cliHead = `---
page_title: "Command line"
subcategory: ""
description: |-
  Every command of sandboxer, with its flags and exit codes.
---

# Command line

What ` + "`sandboxer --help`" + ` and ` + "`sandboxer COMMAND --help`" + ` say, on one page. The flags of
` + "`sandboxer`" + ` itself go with each command. ` + "`sandboxer`" + ` and ` + "`terraform-provider-sandboxer`" + `
are one program under two names.

Completion of commands and flags comes from ` + "`sandboxer completion SHELL`" + `, for ` + "`bash`, `zsh`,\n`fish` and `powershell`" + `:

` + "```sh\nsource <(sandboxer completion bash)\n```" + `
`

// renderCLI returns the guide of the command line.
func renderCLI(ctx context.Context) ([]byte, error) {
	var page bytes.Buffer
	page.WriteString(cliHead)
	if err := describe(ctx, &page, nil); err != nil {
		return nil, err
	}
	return page.Bytes(), nil
}

// describe writes the help of a command and of those below it, as a reader
// would ask for it. What the library adds by itself is left out.
func describe(ctx context.Context, page *bytes.Buffer, path []string) error {
	var out, said bytes.Buffer
	code := cli.Run(ctx, append(path[:len(path):len(path)], "--help"), cli.Options{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &said, Getenv: func(string) string { return "" },
	})
	name := strings.Join(append([]string{"sandboxer"}, path...), " ")
	if code != 0 {
		return fmt.Errorf("%s --help ended with %d: %s", name, code, said.String())
	}
	help, _, _ := strings.Cut(out.String(), "\nGlobal Flags:\n")
	help, _, _ = strings.Cut(help, "\nUse \"")
	fmt.Fprintf(page, "\n## %s\n\n```text\n%s\n```\n", name, strings.TrimSpace(help))
	for _, child := range children(help) {
		if err := describe(ctx, page, append(path[:len(path):len(path)], child)); err != nil {
			return err
		}
	}
	return nil
}

// children returns the commands that a help text lists.
func children(help string) []string {
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var names []string
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "help" && fields[0] != "completion" {
			names = append(names, fields[0])
		}
	}
	return names
}
