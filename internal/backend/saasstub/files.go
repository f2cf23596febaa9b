// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Files of a box, on the vendor's side.

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// inBox lets a command see the files of a box while the store is not locked
// around it: it may sleep.
type inBox struct {
	honest
	id string
}

// with runs act on the box. A box that has gone meanwhile has no files.
func (f inBox) with(act func(b *box)) {
	_ = f.do(context.Background(), func(st *state, now time.Time) error {
		b, ok := st.Boxes[f.id]
		if !ok {
			return nil
		}
		if f.settle(b, now); b.State == Running {
			act(b)
		}
		return nil
	})
}

func (f inBox) read(name string) (file BoxFile, ok bool) {
	f.with(func(b *box) {
		if secret, found := strings.CutPrefix(name, secretsDir); found {
			var value string
			if value, ok = f.secrets[b.ID][secret]; ok {
				file = BoxFile{Content: []byte(value), Mode: 0o400}
			}
			return
		}
		file, ok = b.Files[name]
	})
	return file, ok
}

func (f inBox) write(name string, file BoxFile) { f.with(func(b *box) { b.Files[name] = file }) }

func (f inBox) remove(name string) (found bool) {
	f.with(func(b *box) {
		_, found = b.Files[name]
		delete(b.Files, name)
	})
	return found
}

func (f inBox) names() (names []string) {
	f.with(func(b *box) {
		names = slices.Collect(maps.Keys(b.Files))
		for name := range f.secrets[b.ID] {
			names = append(names, secretsDir+name)
		}
	})
	return names
}

func (s honest) PutFiles(ctx context.Context, id string, files map[string]BoxFile) error {
	if _, err := s.running(ctx, id); err != nil {
		return err
	}
	_, err := s.change(ctx, id, func(b *box, _ time.Time) error {
		after := maps.Clone(b.Files)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := place(after, name, files[name]); err != nil {
				return err
			}
		}
		b.Files = after
		return nil
	})
	return err
}

// place puts one file or directory among others. Nothing is both.
func place(files map[string]BoxFile, name string, file BoxFile) error {
	if old, ok := files[name]; ok && old.Dir != file.Dir {
		return &APIError{Status: 422, Code: "path", Message: fmt.Sprintf("%.80q is there, and is of the other kind of file and directory", name)}
	}
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if above, ok := files[dir]; ok && !above.Dir {
			return &APIError{Status: 422, Code: "path", Message: fmt.Sprintf("%.80q is below %.80q, which is a file", name, dir)}
		}
	}
	files[name] = file
	return nil
}

// GetFiles returns a file, or a directory and all that is below it, by
// absolute path.
func (s honest) GetFiles(ctx context.Context, id, from string) (map[string]BoxFile, error) {
	if _, err := s.running(ctx, id); err != nil {
		return nil, err
	}
	found := map[string]BoxFile{}
	files := inBox{s, id}
	for _, name := range files.names() {
		if name == from || strings.HasPrefix(name, strings.TrimSuffix(from, "/")+"/") {
			if file, ok := files.read(name); ok {
				found[name] = file
			}
		}
	}
	if len(found) == 0 {
		return nil, &APIError{Status: 404, Code: "no_such_path", Message: fmt.Sprintf("no %.80q in the box", from)}
	}
	return found, nil
}
