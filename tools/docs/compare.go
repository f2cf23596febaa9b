// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/schemajson"
)

// missingExamples returns the objects without an example, and the examples
// without an object.
func missingExamples(root string, p schemajson.Provider) []string {
	var faults []string
	for folder, objects := range map[string][]string{
		"resources":           slices.Collect(maps.Keys(p.Resources)),
		"data-sources":        slices.Collect(maps.Keys(p.DataSources)),
		"ephemeral-resources": slices.Collect(maps.Keys(p.EphemeralResources)),
		"list-resources":      slices.Collect(maps.Keys(p.Lists)),
		"actions":             slices.Collect(maps.Keys(p.Actions)),
		"functions":           slices.Collect(maps.Keys(p.Functions)),
	} {
		for _, object := range objects {
			files, err := filepath.Glob(filepath.Join(root, "examples", folder, object, "*.tf*"))
			if err != nil || len(files) == 0 {
				faults = append(faults, fmt.Sprintf("examples/%s/%s has no example", folder, object))
			}
			if folder == "resources" {
				if _, err := os.Stat(filepath.Join(root, "examples", folder, object, "import.sh")); err != nil {
					faults = append(faults, fmt.Sprintf("examples/%s/%s has no import.sh", folder, object))
				}
			}
		}
		entries, err := os.ReadDir(filepath.Join(root, "examples", folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err.Error())
		}
		for _, entry := range entries {
			if !slices.Contains(objects, entry.Name()) {
				faults = append(faults, fmt.Sprintf("examples/%s/%s is of an object that does not exist", folder, entry.Name()))
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// compare returns the files of the rendered parts that differ between two
// trees, or are in only one of them.
func compare(committed, fresh string) ([]string, error) {
	before, err := tree(committed)
	if err != nil {
		return nil, err
	}
	after, err := tree(fresh)
	if err != nil {
		return nil, err
	}
	var differing []string
	for path, content := range after {
		if old, there := before[path]; !there {
			differing = append(differing, path+" is missing")
		} else if !bytes.Equal(old, content) {
			differing = append(differing, path+" differs")
		}
	}
	for path := range before {
		if _, there := after[path]; !there {
			differing = append(differing, path+" has no source")
		}
	}
	slices.Sort(differing)
	return differing, nil
}

// tree reads the rendered parts of a documentation folder.
func tree(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, part := range rendered {
		err := filepath.WalkDir(filepath.Join(dir, part), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(dir, path)
			files[filepath.ToSlash(relative)] = content
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}
