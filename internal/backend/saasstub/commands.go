// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Commands of a box, on the vendor's side.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"
)

// running returns a box that is about to be used.
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
		found.use(now)
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
		held:  func() (bool, error) { return s.held(ctx, id) },
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
	if err == nil {
		_, err = s.held(ctx, id)
	}
	switch {
	case errors.Is(err, errTimedOut):
		return CommandResult{TimedOut: true}, nil
	case errors.Is(err, errKilled):
		return CommandResult{ExitCode: 128 + 9}, nil
	}
	return CommandResult{ExitCode: code}, err
}

// held tells a command whether its box is paused. A box that has ended, or is
// paused by its deadline, kills its commands.
func (s honest) held(ctx context.Context, id string) (paused bool, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		b, ok := st.Boxes[id]
		if !ok {
			return errKilled
		}
		s.settle(b, now)
		if b.State == Running {
			b.use(now)
		}
		paused = b.State == Paused && b.StateReason == ""
		if b.State != Running && !paused {
			return errKilled
		}
		return nil
	})
	return paused, err
}

func (s honest) GetLog(ctx context.Context, id string) (log []byte, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		b, err := st.box(id)
		if err == nil {
			s.settle(b, now)
			log = bytes.Clone(b.Log)
		}
		return err
	})
	return log, err
}
