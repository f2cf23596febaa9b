// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

func (a *app) cpCommand() *cobra.Command {
	var backend string
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files into or out of a sandbox",
		Long: "Copy a file or a directory into or out of a sandbox. One side is ID:/PATH, the other a path here.\n\n" +
			"A destination that is a directory, or ends in a slash, gets the source under its own name; any other destination is " +
			"the new name. - stands for a tar archive on stdin or stdout.\n\n" +
			"What comes out of a sandbox is not trusted: nothing is written outside of the destination, links that lead out of it " +
			"and device files are refused, and special permission bits are dropped.",
		Example: "  sandboxer cp ./suite sbx-0123456789abcdefghij:/workspace/\n  sandboxer cp sbx-0123456789abcdefghij:/workspace/report.xml .",
		Args:    exactly("a source", "a destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			fromID, from, out := sandboxPath(args[0])
			toID, to, in := sandboxPath(args[1])
			if out == in {
				return usage("cp wants ID:/PATH on exactly one side")
			}
			if out && !path.IsAbs(from) || in && !path.IsAbs(to) {
				return usage("the path in the sandbox is not absolute")
			}
			return a.use(func(runtime *config.Runtime) error {
				if in {
					return a.copyIn(cmd.Context(), runtime.Manager, args[0], toID, to, backend)
				}
				return a.copyOut(cmd.Context(), runtime.Manager, fromID, from, args[1], backend)
			})
		},
	}
	backendFlag(cmd, &backend, whereItIs)
	return cmd
}

// sandboxPath splits ID:/PATH.
func sandboxPath(arg string) (id, file string, is bool) {
	id, file, found := strings.Cut(arg, ":")
	if !found || sandbox.ParseID(id) != nil {
		return "", "", false
	}
	return id, file, true
}

// copyIn packs what is here and lets the backend unpack it there.
func (a *app) copyIn(ctx context.Context, manager *lifecycle.Manager, from, id, to, backend string) error {
	if from == "-" {
		_, err := manager.CopyIn(ctx, id, lifecycle.CopyOptions{Backend: backend, Path: path.Clean(to)}, a.Stdin)
		return err
	}
	source, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	dir, name := path.Clean(to), filepath.Base(source)
	if !strings.HasSuffix(to, "/") && !a.isDirectory(ctx, manager, id, dir, backend) {
		dir, name = path.Split(dir)
	}
	reader, writer := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		skipped, err := pack(writer, source, name, info)
		// A reader that is told of the error gives it back.
		_ = writer.CloseWithError(err)
		for _, one := range skipped {
			a.note("warning: %s is neither a file, a directory nor a link: not copied", one)
		}
		packed <- err
	}()
	_, err = manager.CopyIn(ctx, id, lifecycle.CopyOptions{Backend: backend, Path: path.Clean(dir)}, reader)
	_ = reader.Close() // lets the packing end when the backend stopped early
	if packing := <-packed; packing != nil && !errors.Is(packing, io.ErrClosedPipe) {
		return packing
	}
	return err
}

// isDirectory asks the sandbox. One that can't tell, for it has no test
// program, gets the destination as the new name.
func (a *app) isDirectory(ctx context.Context, manager *lifecycle.Manager, id, dir, backend string) bool {
	result, err := manager.Exec(ctx, id, lifecycle.ExecOptions{Backend: backend, Command: []string{"test", "-d", dir}})
	return err == nil && !result.TimedOut && result.ExitCode == 0
}

// copyOut lets the backend pack what is there and unpacks it here.
func (a *app) copyOut(ctx context.Context, manager *lifecycle.Manager, id, from, to, backend string) error {
	opts := lifecycle.CopyOptions{Backend: backend, Path: path.Clean(from)}
	if to == "-" {
		_, err := manager.CopyOut(ctx, id, opts, a.Stdout)
		return err
	}
	target, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if strings.HasSuffix(to, string(filepath.Separator)) || strings.HasSuffix(to, "/") || err == nil && info.IsDir() {
		name := path.Base(opts.Path)
		if name == "/" {
			return usage("the root of a sandbox has no name: give the destination one")
		}
		target = filepath.Join(target, name)
	}
	reader, writer := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := manager.CopyOut(ctx, id, opts, writer)
		_ = writer.CloseWithError(err)
		copied <- err
	}()
	err = unpack(reader, target)
	_ = reader.CloseWithError(err) // ends the copying when the unpacking stopped early
	if copying := <-copied; copying != nil && err == nil {
		return copying
	}
	return err
}
