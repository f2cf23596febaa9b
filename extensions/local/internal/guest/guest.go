// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package guest is what this binary does inside a sandbox. It is started
// there from a descriptor of the host's file, so nothing has to be installed
// in the sandbox, and every path is resolved by the sandbox's own kernel: a
// hostile link in it leads nowhere outside.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/copytar"
)

// Argv0 sends a start of this binary here.
const Argv0 = "sandboxer-guest"

// CourierName is what a courier is called in the sandbox's process table; see
// package initproc.
const CourierName = "sandboxer-exec"

// File is one file to place.
type File struct {
	Path    string
	Content []byte
	Mode    uint32
	UID     int
	GID     int
}

// Main runs one helper and returns its exit code.
func Main(args []string) int {
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxer:", err)
		return 1
	}
	return 0
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("no helper named")
	}
	arg := ""
	if len(args) > 2 {
		arg = args[2]
	}
	switch args[1] {
	case "place":
		return place(os.Stdin)
	case "tar-in":
		n, err := copytar.Unpack(arg, os.Stdin)
		if err == nil {
			_, err = fmt.Fprintln(os.Stdout, n)
		}
		return err
	case "tar-out":
		return copytar.Pack(os.Stdout, arg)
	case "attributes-out":
		return attributesOut(os.Stdin, os.Stdout)
	case "attributes-in":
		return attributesIn(os.Stdin)
	case "user":
		return printUser(os.Stdout, arg)
	case Look:
		return look(os.Stdout, args[2:])
	case "kill":
		mark := ""
		if len(args) > 3 {
			mark = args[3]
		}
		return killTree(arg, mark)
	}
	return fmt.Errorf("no helper %q", args[1])
}

// place writes files from a JSON list.
func place(from io.Reader) error {
	var files []File
	if err := json.NewDecoder(from).Decode(&files); err != nil {
		return err
	}
	for _, f := range files {
		if err := placeOne(f); err != nil {
			return fmt.Errorf("place %s: %w", f.Path, err)
		}
	}
	return nil
}

func placeOne(f File) error {
	if !path.IsAbs(f.Path) {
		return errors.New("not an absolute path")
	}
	if err := mkdirOwned(filepath.Dir(f.Path), f.UID, f.GID); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(f.Path), ".sandboxer-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	if _, err := temp.Write(f.Content); err != nil {
		return err
	}
	if err := temp.Chmod(os.FileMode(f.Mode)); err != nil {
		return err
	}
	if err := temp.Chown(f.UID, f.GID); err != nil {
		return err
	}
	return os.Rename(temp.Name(), f.Path)
}

// mkdirOwned makes missing directories, owned by the file's owner.
func mkdirOwned(dir string, uid, gid int) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		return nil
	}
	if err := mkdirOwned(filepath.Dir(dir), uid, gid); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chown(dir, uid, gid)
}
