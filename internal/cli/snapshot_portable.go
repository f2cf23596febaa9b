// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) snapshotExportCommand() *cobra.Command {
	var opts lifecycle.ExportSnapshotOptions
	var quiet bool
	cmd := &cobra.Command{
		Use:   "export SNAPSHOT FILE",
		Short: "Write a snapshot to a file that other backends take",
		Long: "Write a filesystem snapshot to a file, or to stdout as -, for `sandboxer snapshot import` on another machine or another " +
			"backend. The file is an OCI image layout in a tar: tools for images can look at it, and a profile's image may name it.\n\n" +
			"Secrets and the variables that were given to create are not in it. What else is not carried is printed, and in the file: " +
			"it is the loss report. With - it goes to stderr.",
		Example: "  sandboxer snapshot export snp-0123456789abcdefghij seeded.tar\n  sandboxer snapshot import seeded.tar --backend local",
		Args:    exactly("the id of a snapshot", "a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := snapshotID(args[0]); err != nil {
				return err
			}
			bar := a.progress()
			opts.Progress = bar.told
			return a.use(func(runtime *config.Runtime) error {
				exported, err := a.export(cmd.Context(), runtime.Manager, args[0], args[1], opts)
				bar.done()
				switch {
				case err != nil:
					return err
				case args[1] == "-":
					a.noteLosses(exported.Losses)
					return nil
				case quiet:
					return nil
				}
				if err := a.print(exported, facts("ID", exported.ID, "BACKEND", exported.Backend, "FILE", args[1],
					"SIZE", sizeOf(exported.Bytes), "DIGEST", exported.Digest)); err != nil {
					return err
				}
				a.reportLosses(exported.Losses)
				return nil
			})
		},
	}
	backendFlag(cmd, &opts.Backend, whereItIs)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	a.printsData(cmd)
	return cmd
}

// export writes to a file beside the one that is named, which is replaced when
// all is on disk: a file of that name is a whole archive.
func (a *app) export(ctx context.Context, manager *lifecycle.Manager, id, name string, opts lifecycle.ExportSnapshotOptions) (exported lifecycle.ExportedSnapshot, err error) {
	if name == "-" {
		opts.Archive = a.Stdout
		return manager.ExportSnapshot(ctx, id, opts)
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return exported, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	buffered := bufio.NewWriterSize(f, 1<<20)
	opts.Archive = buffered
	exported, err = manager.ExportSnapshot(ctx, id, opts)
	if err := errors.Join(err, buffered.Flush(), f.Sync(), f.Close()); err != nil {
		return exported, err
	}
	return exported, os.Rename(f.Name(), name)
}

func (a *app) snapshotImportCommand() *cobra.Command {
	var opts lifecycle.ImportSnapshotOptions
	var ttl durationFlag
	var labels pairsFlag
	var quiet bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Make a snapshot from a file that another backend wrote",
		Long: "Make a snapshot from what `sandboxer snapshot export` wrote, on whatever backend; - is stdin. It is a snapshot like any " +
			"other, with a retention of its own, and `sandboxer restore` makes sandboxes from it.\n\n" +
			"The file is not trusted: digests, names and sizes are checked before the backend sees any of it. The profile in it says " +
			"what a restored sandbox may do, its network included: look at it with `sandboxer snapshot get` when the file is not yours.",
		Args: exactly("a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, err := a.openArchive(args[0])
			if err != nil {
				return err
			}
			defer archive.Close()
			opts.Archive, opts.TTL, opts.Labels = archive, time.Duration(ttl), labels.pairs
			bar := a.progress()
			opts.Progress = bar.told
			return a.use(func(runtime *config.Runtime) error {
				made, err := runtime.Manager.ImportSnapshot(cmd.Context(), opts)
				bar.done()
				if err != nil {
					return err
				}
				if quiet {
					return writeAll(a.Stdout, made.ID+"\n")
				}
				if a.format != formatTable {
					return a.print(made, nil)
				}
				if err := a.printSnapshot(made.Snapshot, runtime.Manager.Now()); err != nil {
					return err
				}
				a.reportLosses(made.Losses)
				return nil
			})
		},
	}
	flags := cmd.Flags()
	backendFlag(cmd, &opts.Backend, theDefault)
	flags.Var(&ttl, "ttl", "how long it is kept (default: a week)")
	flags.Var(&labels, "label", "label, may be given several times")
	flags.StringVar(&opts.Attribution.Owner, "owner", "", "`NAME` of the team or person that it is for")
	flags.BoolVarP(&quiet, "quiet", "q", false, "print nothing but the id")
	a.printsData(cmd)
	return cmd
}

func (a *app) openArchive(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.Stdin), nil
	}
	return os.Open(name)
}

// reportLosses prints a loss report below a table; JSON has it already.
func (a *app) reportLosses(losses []sdk.Loss) {
	if a.format == formatTable {
		a.noteLosses(losses)
	}
}

func (a *app) noteLosses(losses []sdk.Loss) {
	if len(losses) == 0 {
		return
	}
	a.note("not carried:")
	for _, loss := range losses {
		line := printable(loss.String(), false)
		if loss.Count > 0 {
			line += " (" + strconv.FormatInt(loss.Count, 10) + ")"
		}
		a.note("  %s", line)
	}
}
