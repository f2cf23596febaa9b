// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// programPath is where the program lies in its image.
const programPath = "/program"

// programImage returns an image that holds one of our programs and nothing
// else, made on the engine from the program itself: no registry is asked. It
// stays there, as a pulled one does.
func (e *Extension) programImage(ctx context.Context, eng engine, name string, p program) (string, error) {
	ref := "sandboxer.local/" + name + ":" + p.digest
	_, err := eng.ImageInspect(ctx, ref)
	if !errdefs.IsNotFound(err) {
		return ref, e.translate(err, "look for "+ref)
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	// To memory, from our own header.
	_ = w.WriteHeader(&tar.Header{Name: programPath[1:], Mode: 0o755, Size: int64(len(p.content)), Typeflag: tar.TypeReg})
	_, _ = w.Write(p.content)
	_ = w.Close()
	answer, err := eng.ImageImport(ctx, client.ImageImportSource{Source: &packed, SourceName: "-"}, ref, client.ImageImportOptions{})
	if err != nil {
		return "", e.translate(err, "import "+ref)
	}
	defer answer.Close()
	return ref, answered(answer, "import "+ref)
}
