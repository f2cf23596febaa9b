// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// Copying into a sandbox and out of it, by the tar that its image has.

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/copytar"
)

const (
	// storeScript keeps what comes in, copyInScript unpacks it below a
	// directory when its names have been checked.
	storeScript  = `cat > "$1"`
	copyInScript = `trap 'rm -f "$1"' EXIT
mkdir -p "$2" && tar -xpf "$1" -C "$2" --no-same-owner`
)

// CopyIn implements [sdk.Copier].
func (e *Extension) CopyIn(ctx context.Context, opts sdk.CopyInOptions) (sdk.CopyInResult, error) {
	if !path.IsAbs(opts.Path) {
		return sdk.CopyInResult{}, sdk.Invalid("path", "%.80q is not an absolute path", opts.Path)
	}
	f, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.CopyInResult{}, err
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	name := "/tmp/.sandboxer-" + hex.EncodeToString(random) + ".tar"
	// Checked entry by entry on its way.
	read, written := io.Pipe()
	checked := make(chan checkResult, 1)
	go func() {
		bytes, err := checkArchive(written, opts.Archive)
		_ = written.CloseWithError(err) // nil is the end
		checked <- checkResult{bytes, err}
	}()
	err = e.script(ctx, f, read, storeScript, name)
	_ = read.CloseWithError(io.ErrClosedPipe) // so that the check ends, too
	result := <-checked
	if result.err != nil && !errors.Is(result.err, io.ErrClosedPipe) {
		// What came of it so far is removed when that is possible.
		return sdk.CopyInResult{}, errors.Join(result.err, e.script(context.WithoutCancel(ctx), f, nil, `rm -f "$1"`, name))
	}
	if err != nil {
		return sdk.CopyInResult{}, fmt.Errorf("send the archive: %w", err)
	}
	if err := e.script(ctx, f, nil, copyInScript, name, opts.Path); err != nil {
		return sdk.CopyInResult{}, fmt.Errorf("unpack the archive in %.80q: %w", opts.Path, err)
	}
	return sdk.CopyInResult{Bytes: result.bytes}, nil
}

type checkResult struct {
	bytes int64
	err   error
}

// checkArchive passes an archive on whose names stay below the directory, and
// whose links do as well: what is unpacked after a link could go through it.
func checkArchive(to io.Writer, from io.Reader) (int64, error) {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	links := map[string]bool{}
	var total int64
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return total, out.Close()
		}
		if err != nil {
			return total, sdk.Invalid("archive", "%s", err)
		}
		name := path.Clean(strings.TrimSuffix(header.Name, "/"))
		if path.IsAbs(header.Name) || name == ".." || strings.HasPrefix(name, "../") {
			return total, sdk.Invalid("archive", "%.80q leads out of the directory", header.Name)
		}
		for dir := name; dir != "."; dir = path.Dir(dir) {
			if links[dir] {
				return total, sdk.Invalid("archive", "%.80q lies behind a link of the archive", header.Name)
			}
		}
		switch header.Typeflag {
		case tar.TypeReg, tar.TypeDir:
		case tar.TypeSymlink:
			links[name] = true
		case tar.TypeLink:
			target := path.Clean(header.Linkname)
			if path.IsAbs(target) || target == ".." || strings.HasPrefix(target, "../") {
				return total, sdk.Invalid("archive", "%.80q is a link out of the directory", header.Name)
			}
		default:
			return total, sdk.Unsupported("archive", "%.80q is neither file, directory nor link", header.Name)
		}
		if err := out.WriteHeader(header); err != nil {
			return total, err
		}
		n, err := io.Copy(out, in)
		total += n
		if err != nil {
			return total, err
		}
	}
}

// CopyOut implements [sdk.Copier].
func (e *Extension) CopyOut(ctx context.Context, opts sdk.CopyOutOptions) (sdk.CopyOutResult, error) {
	if !path.IsAbs(opts.Path) {
		return sdk.CopyOutResult{}, sdk.Invalid("path", "%.80q is not an absolute path", opts.Path)
	}
	f, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.CopyOutResult{}, err
	}
	clean := path.Clean(opts.Path)
	dir, base := path.Dir(clean), path.Base(clean)
	if clean == "/" {
		dir, base = "/", "."
	}
	read, written := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- e.pack(ctx, f, dir, base, written) }()
	bytes, err := copytar.Check(opts.Archive, read, clean)
	if err == nil {
		_, err = io.Copy(io.Discard, read) // tar pads its archives
	}
	_ = read.CloseWithError(io.ErrClosedPipe) // so that the command ends, too
	if packErr := <-ended; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return sdk.CopyOutResult{}, packErr // why there was no archive
	}
	return sdk.CopyOutResult{Bytes: bytes}, err
}

// pack has the sandbox write an archive. An exit code of its own tells that
// there is nothing at the path.
func (e *Extension) pack(ctx context.Context, f found, dir, base string, to *io.PipeWriter) error {
	const missing = 44
	said := &limited{}
	result, err := e.run(ctx, f, command{
		args:    []string{"/bin/sh", "-c", fmt.Sprintf(`[ -e "$1/$2" ] || [ -L "$1/$2" ] || exit %d; exec tar -cf - -C "$1" -- "$2"`, missing), "sh", dir, base},
		workdir: "/", stdout: to, stderr: said,
	})
	switch {
	case err != nil:
	case result.ExitCode == missing:
		err = sdk.Errorf(sdk.ErrNotFound, "there is nothing at %.80q in the sandbox", path.Join(dir, base))
	case result.ExitCode != 0:
		err = fmt.Errorf("pack %.80q: exit code %d: %s", path.Join(dir, base), result.ExitCode, said)
	}
	_ = to.CloseWithError(err) // nil is the end
	return err
}
