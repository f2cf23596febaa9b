// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package examples holds the test that applies every example of the
// documentation, the README's included, with a real Terraform: what a reader
// copies has been run.
package examples

import (
	"os"
	"path/filepath"
	"strings"
)

// example is one configuration that a reader may copy.
type example struct {
	name   string
	config string
}

// all returns the examples of the objects and the one of the README.
func all(root string) ([]example, error) {
	var found []example
	for _, pattern := range []string{"resources/*/resource.tf", "data-sources/*/data-source.tf", "functions/*/function.tf", "provider/provider.tf"} {
		files, err := filepath.Glob(filepath.Join(root, "examples", filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			config, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				return nil, err
			}
			found = append(found, example{name: filepath.ToSlash(name), config: string(config)})
		}
	}
	for _, file := range []string{"README.md", "templates/guides/quickstart.md"} {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			return nil, err
		}
		if block := firstBlock(string(text)); block != "" {
			found = append(found, example{name: file, config: block})
		}
	}
	return found, nil
}

// firstBlock returns the first block of HCL in a page.
func firstBlock(page string) string {
	_, after, there := strings.Cut(page, "```terraform\n")
	if !there {
		return ""
	}
	block, _, _ := strings.Cut(after, "```")
	return block
}
