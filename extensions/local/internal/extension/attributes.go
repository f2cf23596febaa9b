// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// A filesystem snapshot is the runtime's archive of the writable layer, which
// any system can read, and beside it what that archive leaves out: see
// guest.Attributes.

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// writeAttributes writes the attributes of what is in the archive of a
// snapshot that is being made.
func (e *Extension) writeAttributes(ctx context.Context, target sdk.Target, dir string) error {
	modified, err := archived(filepath.Join(dir, supervisor.UpperName))
	if err != nil || len(modified) == 0 {
		return err
	}
	names, write := io.Pipe()
	go func() {
		out := json.NewEncoder(write)
		for name := range modified {
			if err := out.Encode([]byte(name)); err != nil {
				return
			}
		}
		write.Close()
	}()
	defer names.Close()
	file, err := os.OpenFile(filepath.Join(dir, supervisor.AttributesName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := e.store.own(file.Name()); err != nil { // a supervisor reads it
		return err
	}
	read, found := io.Pipe()
	kept := make(chan error, 1)
	go func() {
		err := keepAttributes(read, file, modified)
		read.CloseWithError(err)
		kept <- err
	}()
	err = e.helper(ctx, target, "read attributes", names, found, "attributes-out")
	found.CloseWithError(err)
	return errors.Join(err, <-kept)
}

// archived returns the times of what is in an archive, as the archive has
// them: rounded to seconds. What it says is deleted is left out.
func archived(path string) (map[string]time.Time, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	modified := map[string]time.Time{}
	for archive := tar.NewReader(f); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return modified, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", supervisor.UpperName, err)
		}
		if header.Typeflag != tar.TypeChar {
			modified[header.Name] = header.ModTime
		}
	}
}

// keepAttributes copies what a sandbox says about files of the archive. It is
// bounded by the names in there, and a time counts only where it is the
// archive's, with its fraction: the sandbox goes on meanwhile.
func keepAttributes(from io.Reader, to io.Writer, modified map[string]time.Time) error {
	in, out := json.NewDecoder(from), json.NewEncoder(to)
	for {
		var a guest.Attributes
		if err := in.Decode(&a); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("the sandbox sent no attributes: %w", err)
		}
		rounded, asked := modified[string(a.Path)]
		if !asked {
			return fmt.Errorf("the sandbox sent attributes of %.120q, which is not in the archive", a.Path)
		}
		delete(modified, string(a.Path))
		if !a.Modified.Round(time.Second).Equal(rounded) {
			a.Modified = time.Time{}
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}
