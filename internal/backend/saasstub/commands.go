// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Commands and files of a box, on the vendor's side.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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

// alone is the file system of a main process: it writes nothing but its log.
type alone struct{ files map[string]BoxFile }

func (f alone) read(name string) (BoxFile, bool) { file, ok := f.files[name]; return file, ok }
func (alone) write(string, BoxFile)              {}
func (alone) remove(string) bool                 { return false }
func (f alone) names() []string                  { return slices.Collect(maps.Keys(f.files)) }

// noWait is a clock for a main process, whose sleeping would hold up the
// store: it goes on at once.
type noWait struct{}

func (noWait) Now() time.Time                             { return time.Time{} }
func (noWait) Sleep(context.Context, time.Duration) error { return nil }

// runMain gives the box the log that its main process would write.
func (s *Server) runMain(b *box, command []string) {
	var log bytes.Buffer
	p := &process{ctx: context.Background(), clock: noWait{}, files: alone{b.Files}, env: b.Env, dir: b.Workdir, stdin: strings.NewReader(""), stdout: &log, stderr: &log}
	if code, err := p.run(command); err != nil || code != 0 {
		fmt.Fprintf(&log, "the main process ended with %d\n", code)
	}
	b.Log = log.Bytes()
}

func (s honest) running(ctx context.Context, id string) (b box, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		found, err := st.box(id)
		if err != nil {
			return err
		}
		s.settle(found, now)
		if found.State != Running {
			return &APIError{Status: 409, Code: CodeWrongState, Message: fmt.Sprintf("the box is %s", found.State)}
		}
		b = *found
		b.Env = maps.Clone(found.Env)
		return nil
	})
	return b, err
}

func (s honest) RunCommand(ctx context.Context, id string, req CommandRequest) (CommandResult, error) {
	b, err := s.running(ctx, id)
	if err != nil {
		return CommandResult{}, err
	}
	maps.Copy(b.Env, req.Env)
	p := &process{
		ctx: ctx, clock: s.options.Clock, files: inBox{s, id}, env: b.Env, dir: cmp.Or(req.Workdir, b.Workdir),
		stdin: req.Stdin, stdout: req.Stdout, stderr: req.Stderr,
	}
	if req.Timeout > 0 {
		p.deadline = s.options.Clock.Now().Add(req.Timeout)
	}
	if p.stdin == nil {
		p.stdin = strings.NewReader("")
	}
	if p.stdout == nil {
		p.stdout = io.Discard
	}
	if p.stderr == nil {
		p.stderr = io.Discard
	}
	code, err := p.run(req.Command)
	switch {
	case errors.Is(err, errTimedOut):
		return CommandResult{TimedOut: true}, nil
	case err != nil:
		return CommandResult{}, err
	}
	_, gone := s.running(ctx, id)
	switch {
	case hasCode(gone, CodeWrongState), hasCode(gone, CodeNotFound):
		// A command that outlives its box is killed with it.
		return CommandResult{ExitCode: 128 + 9}, nil
	case gone != nil:
		return CommandResult{}, gone
	}
	return CommandResult{ExitCode: code}, nil
}

func (s honest) PutFiles(ctx context.Context, id string, files map[string]BoxFile) error {
	if _, err := s.running(ctx, id); err != nil {
		return err
	}
	_, err := s.change(ctx, id, func(b *box, _ time.Time) error {
		maps.Copy(b.Files, files)
		return nil
	})
	return err
}

// GetFiles returns a file, or all files below a directory, by absolute path.
func (s honest) GetFiles(ctx context.Context, id, path string) (map[string]BoxFile, error) {
	if _, err := s.running(ctx, id); err != nil {
		return nil, err
	}
	found := map[string]BoxFile{}
	files := inBox{s, id}
	for _, name := range files.names() {
		if name == path || strings.HasPrefix(name, strings.TrimSuffix(path, "/")+"/") {
			if file, ok := files.read(name); ok {
				found[name] = file
			}
		}
	}
	if len(found) == 0 {
		return nil, &APIError{Status: 404, Code: "no_such_path", Message: fmt.Sprintf("no %.80q in the box", path)}
	}
	return found, nil
}

func (s honest) GetLog(ctx context.Context, id string) (log []byte, err error) {
	err = s.do(ctx, func(st *state, _ time.Time) error {
		b, err := st.box(id)
		if err == nil {
			log = bytes.Clone(b.Log)
		}
		return err
	})
	return log, err
}
