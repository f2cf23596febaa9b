// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"
)

// The test images.
const (
	// Busybox is a static busybox with all its applets, and what a small
	// distribution has besides.
	Busybox = "sandboxer-test/busybox:1"
	// Defaults is Busybox with every default that an image can bring: a user,
	// a directory, variables, a command, volumes, labels, a health check.
	Defaults = "sandboxer-test/defaults:1"
	// Empty holds one file and no program.
	Empty = "sandboxer-test/empty:1"
)

var images struct {
	once sync.Once
	err  error
}

// Images makes the test images, once a run.
func (e *Engine) Images(t testing.TB) {
	t.Helper()
	images.once.Do(func() { images.err = e.makeImages(context.Background()) })
	if images.err != nil {
		t.Fatalf("make the test images: %v", images.err)
	}
}

func (e *Engine) makeImages(ctx context.Context) error {
	root, err := BusyboxRoot(ctx)
	if err != nil {
		return err
	}
	empty, err := pack(entry{name: "etc/", mode: 0o755}, entry{name: "etc/hostname", mode: 0o644, content: []byte("empty\n")})
	if err != nil {
		return err
	}
	return errors.Join(
		e.importImage(ctx, Busybox, root),
		e.importImage(ctx, Defaults, root,
			"USER app", "WORKDIR /srv", "ENV FROM_IMAGE=yes PATH=/bin:/srv/bin", `CMD ["sh", "-c", "exit 3"]`, `ENTRYPOINT ["/bin/false"]`,
			"VOLUME /data /var/cache", "LABEL vendor=example", "EXPOSE 9000", `HEALTHCHECK CMD ["/bin/false"]`),
		e.importImage(ctx, Empty, empty))
}

func (e *Engine) importImage(ctx context.Context, ref string, root []byte, changes ...string) error {
	answer, err := e.Client.ImageImport(ctx, client.ImageImportSource{Source: bytes.NewReader(root), SourceName: "-"}, ref, client.ImageImportOptions{Changes: changes})
	if err != nil {
		return fmt.Errorf("import %s: %w", ref, err)
	}
	defer answer.Close()
	said, err := io.ReadAll(answer)
	if err != nil || bytes.Contains(said, []byte(`"error"`)) {
		return fmt.Errorf("import %s: %w: %s", ref, err, said)
	}
	return nil
}

// BusyboxRoot returns a root filesystem with a busybox, as a tar.
func BusyboxRoot(ctx context.Context) ([]byte, error) {
	const program = "/bin/busybox"
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("%w (Debian: busybox-static)", err)
	}
	list, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, err
	}
	entries := []entry{
		{name: "bin/", mode: 0o755}, {name: "bin/busybox", mode: 0o755, content: binary},
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\napp:x:1000:\n")},
		{name: "root/", mode: 0o700}, {name: "srv/", mode: 0o777}, {name: "tmp/", mode: 0o1777}, {name: "var/", mode: 0o755},
		{name: "home/", mode: 0o755}, {name: "home/app/", mode: 0o755, uid: 1000},
	}
	for _, applet := range strings.Fields(string(list)) {
		if applet != "busybox" {
			entries = append(entries, entry{name: "bin/" + applet, link: "busybox"})
		}
	}
	return pack(entries...)
}

// entry is one entry of an image: a directory when its name ends with a
// slash.
type entry struct {
	name, link string
	mode       int64
	uid        int
	content    []byte
}

func pack(entries ...entry) ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.uid, Gid: e.uid, Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		switch {
		case e.link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		case strings.HasSuffix(e.name, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	return packed.Bytes(), w.Close()
}
