// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// maxProvider is the promised size of the provider's binary, 30 MiB.
const maxProvider = 30 << 20

// checkRelease looks at what was made with a registry's eyes.
func checkRelease(ctx context.Context, p *packer, names []string) error {
	var faults []error
	provider, err := p.build("provider")
	if err != nil {
		return err
	}
	for _, pl := range p.platforms(provider) {
		name := fmt.Sprintf("%s_%s_%s_%s.zip", p.ProjectName, p.values.Version, pl.OS, pl.Arch)
		if !slices.Contains(names, name) {
			faults = append(faults, fmt.Errorf("%s is missing", name))
			continue
		}
		faults = append(faults, checkProvider(p, name, pl))
	}
	manifest := fmt.Sprintf("%s_%s_manifest.json", p.ProjectName, p.values.Version)
	sums := fmt.Sprintf("%s_%s_SHA256SUMS", p.ProjectName, p.values.Version)
	listed, err := os.ReadFile(filepath.Join(p.dist, sums))
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	if !strings.Contains(string(listed), "  "+manifest+"\n") {
		faults = append(faults, fmt.Errorf("%s does not list %s", sums, manifest))
	}
	return errors.Join(append(faults, checkRuns(ctx, p))...)
}

// checkProvider looks into one provider archive.
func checkProvider(p *packer, name string, pl platform) error {
	z, err := zip.OpenReader(filepath.Join(p.dist, name))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer z.Close()
	sizes := map[string]uint64{}
	for _, file := range z.File {
		sizes[file.Name] = file.UncompressedSize64
		if strings.HasPrefix(file.Name, "sandboxer-") || strings.HasPrefix(file.Name, p.ProjectName) {
			if file.Mode().Perm() != 0o755 {
				return fmt.Errorf("%s: %s has the mode %v", name, file.Name, file.Mode())
			}
		}
	}
	for _, file := range z.File {
		if err := checkNoFailpoints(file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	binary := p.ProjectName + "_v" + p.values.Version
	if pl.OS == "windows" {
		binary += ".exe"
	}
	size, there := sizes[binary]
	switch {
	case !there:
		return fmt.Errorf("%s has no %s", name, binary)
	case size > maxProvider:
		return fmt.Errorf("%s: %s has %d bytes, more than %d", name, binary, size, maxProvider)
	}
	for _, b := range repo.DockerPrograms {
		for _, arch := range repo.EngineArchs {
			if program := b.Name + "-linux-" + arch; sizes[program] == 0 {
				return fmt.Errorf("%s has no %s", name, program)
			}
		}
	}
	_, extension := sizes[repo.ExtensionLocal.Name]
	if want := slices.Contains(repo.ExtensionPlatforms, pl.OS+"/"+pl.Arch); extension != want {
		return fmt.Errorf("%s: embedded backend in the archive: %v, want %v", name, extension, want)
	}
	modal, err := p.build("extension-modal")
	if err != nil {
		return err
	}
	file := repo.ExtensionModal.Name
	if pl.OS == "windows" {
		file += ".exe"
	}
	_, extension = sizes[file]
	if want := slices.Contains(modal.platforms(), pl); extension != want {
		return fmt.Errorf("%s: extension for Modal in the archive: %v, want %v", name, extension, want)
	}
	return nil
}

// checkNoFailpoints makes sure that a file is not from the crash suite's
// build: only that one knows the variable.
func checkNoFailpoints(file *zip.File) error {
	opened, err := file.Open()
	if err != nil {
		return err
	}
	defer opened.Close()
	content, err := io.ReadAll(opened)
	if err != nil {
		return err
	}
	if bytes.Contains(content, []byte("SANDBOXER_FAILPOINTS")) {
		return fmt.Errorf("%s was built with failpoints", file.Name)
	}
	return nil
}

// checkRuns starts this platform's command line as it lies in dist.
func checkRuns(ctx context.Context, p *packer) error {
	for key, path := range p.built {
		if !strings.HasPrefix(key, "|") || !strings.HasSuffix(key, "|"+here().OS+"|"+here().Arch) {
			continue
		}
		out, err := repo.Output(ctx, p.dist, path, "version")
		if err != nil {
			return err
		}
		if !strings.Contains(out, p.values.Version) {
			return fmt.Errorf("the command line calls itself %q, not %s", out, p.values.Version)
		}
		return nil
	}
	return fmt.Errorf("nothing was built for %s/%s", here().OS, here().Arch)
}
