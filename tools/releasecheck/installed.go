// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// maxFile bounds what is unpacked from one file of an archive.
const maxFile = 256 << 20

// unpack returns the files of an archive by name.
func unpack(archive []byte) (map[string][]byte, error) {
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, file := range z.File {
		in, err := file.Open()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name, err)
		}
		data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
		in.Close()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file.Name, err)
		case len(data) > maxFile:
			return nil, fmt.Errorf("%s has more than %d bytes", file.Name, maxFile)
		}
		files[file.Name] = data
	}
	return files, nil
}

// programs are what an archive must bring along that can be executed.
func (a *assets) programs() []string {
	binary := project + "_v" + a.version
	if a.os == "windows" {
		binary += ".exe"
	}
	names := []string{binary}
	if slices.Contains(repo.ExtensionPlatforms, a.os+"/"+a.arch) {
		names = append(names, repo.ExtensionLocal.Name)
	}
	for _, b := range repo.DockerPrograms {
		for _, arch := range repo.EngineArchs {
			names = append(names, b.Name+"-linux-"+arch)
		}
	}
	return names
}

// checkInstalled compares what Terraform installed into a directory with the
// archive: every file with its bytes and no other, and the programs can be
// executed.
func (a *assets) checkInstalled(dir string) error {
	want, err := unpack(a.files[a.archive()])
	if err != nil {
		return err
	}
	for _, name := range a.programs() {
		if _, there := want[name]; !there {
			return fmt.Errorf("%s has no %s", a.archive(), name)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o111 == 0 {
			return fmt.Errorf("%s was installed with the mode %v: it can't be executed", name, info.Mode())
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		content, there := want[entry.Name()]
		if !there {
			return fmt.Errorf("%s was installed, and the archive has no such file", entry.Name())
		}
		got, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, content) {
			return fmt.Errorf("%s was installed with other bytes than the archive has", entry.Name())
		}
		delete(want, entry.Name())
	}
	for name := range want {
		return fmt.Errorf("%s is in the archive and was not installed", name)
	}
	return nil
}
