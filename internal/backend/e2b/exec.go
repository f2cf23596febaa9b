// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// Running commands. A connection that ends does not end a command, and envd's
// own timeout kills only the direct process: so each command carries a mark in
// its environment, and when it is to end, whatever has the mark is killed.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// markVariable is in the environment of every process that a command starts.
const markVariable = "SANDBOXER_EXEC"

// killScript ends every process that has a mark, and looks again until there is
// none: one may just have been starting another.
const killScript = `n=0
while [ $n -lt 100 ]; do
  n=$((n+1)); found=
  for f in $(grep -lsF "$1" /proc/[0-9]*/environ); do
    p=${f#/proc/}; p=${p%/environ}
    kill -9 "$p" 2>/dev/null && found=1
  done
  [ -n "$found" ] || exit 0
done
exit 1`

// killDeadline bounds the killing, which goes on when the caller has given up.
const killDeadline = 20 * time.Second

// usable returns a sandbox that can be used, and how envd of it is reached.
func (e *Extension) usable(ctx context.Context, target sdk.Target) (found, access, error) {
	f, err := e.find(ctx, target)
	if err != nil {
		return f, access{}, err
	}
	if err := f.alive(); err != nil {
		return f, access{}, err
	}
	if f.vendor.State == statePaused {
		return f, access{}, sdk.Conflict(f.sandbox.Lease, "sandbox %s is paused", target.ID)
	}
	a, err := e.accessOf(ctx, f.vendor)
	return f, a, err
}

// command is one command for envd.
type command struct {
	args    []string
	env     map[string]string
	user    string // empty is the sandbox's own
	workdir string // empty is the user's home
	stdin   io.Reader
	stdout  io.Writer // nil discards
	stderr  io.Writer
	timeout time.Duration // zero is none
}

// Exec implements [sdk.Execer].
func (e *Extension) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		return sdk.ExecResult{}, sdk.Invalid("command", "there is no command")
	}
	f, a, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.ExecResult{}, err
	}
	c := command{
		args: opts.Command, env: opts.Env, user: opts.User, workdir: opts.Workdir, stdin: opts.Stdin, stdout: opts.Stdout, stderr: opts.Stderr, timeout: opts.Timeout,
	}
	if c.user == "" {
		c.user = f.object.Profile.User
	}
	if c.workdir == "" {
		c.workdir = f.object.Profile.Workdir
	}
	if err := c.check(); err != nil {
		return sdk.ExecResult{}, err
	}
	result, err := e.run(ctx, a, c)
	if err == nil || ctx.Err() != nil {
		return result, err
	}
	// A stream that was cut may be the end of the sandbox.
	if _, _, gone := e.usable(ctx, opts.Target); gone != nil && !errors.Is(gone, sdk.ErrUnreachable) {
		return result, errors.Join(gone, err)
	}
	return result, err
}

func (c command) check() error {
	if c.workdir != "" && !path.IsAbs(c.workdir) {
		return sdk.Invalid("workdir", "%.80q is not an absolute path", c.workdir)
	}
	if c.user != "" && !sdk.IsName(c.user, 64) {
		return sdk.Invalid("user", "%.80q is not the name of a user, which is what E2B takes", c.user)
	}
	for _, arg := range c.args {
		if strings.ContainsRune(arg, 0) {
			return sdk.Invalid("command", "an argument holds a zero byte")
		}
	}
	return nil
}

// run runs a command to its end. When the timeout or the context ends first,
// all that it has started is killed before run returns.
func (e *Extension) run(ctx context.Context, a access, c command) (sdk.ExecResult, error) {
	random := make([]byte, 12)
	_, _ = rand.Read(random) // never fails
	mark := hex.EncodeToString(random)
	env := map[string]string{markVariable: mark}
	for name, value := range c.env {
		env[name] = value
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if c.timeout > 0 {
		go func() {
			if e.opts.Clock.Sleep(running, c.timeout) == nil {
				stop(errTimedOut)
			}
		}()
	}
	end, err := e.follow(running, a, c, startRequest{
		Process: process{Cmd: c.args[0], Args: c.args[1:], Envs: env, Cwd: c.workdir}, Tag: mark, Stdin: c.stdin != nil,
	})
	timedOut := errors.Is(context.Cause(running), errTimedOut)
	if err == nil {
		return sdk.ExecResult{ExitCode: end.code()}, nil
	}
	if killErr := e.killMarked(ctx, a, mark); killErr != nil {
		err = errors.Join(err, fmt.Errorf("what the command started could not be ended: %w", killErr))
		if !timedOut && ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return sdk.ExecResult{TimedOut: timedOut}, err
	}
	switch {
	case timedOut:
		return sdk.ExecResult{TimedOut: true}, nil
	case ctx.Err() != nil:
		return sdk.ExecResult{}, context.Cause(ctx)
	}
	return sdk.ExecResult{}, err
}

var errTimedOut = errors.New("the command's timeout passed")

// killMarked ends what a command has started. A sandbox that can't be reached
// any more because it is over has nothing left to end.
func (e *Extension) killMarked(ctx context.Context, a access, mark string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	end, err := e.follow(ctx, a, command{user: "root"}, startRequest{
		Process: process{Cmd: "/bin/sh", Args: []string{"-c", killScript, "sh", markVariable + "=" + mark}, Cwd: "/"},
	})
	switch {
	case errors.Is(err, errEdge):
		v, look := e.client.getSandbox(ctx, a.ref)
		if absent(look) || (look == nil && v.State == statePaused) {
			return nil
		}
		return errors.Join(err, look)
	case err != nil:
		return err
	case end.code() != 0:
		return fmt.Errorf("processes with its mark were still starting others (exit code %d)", end.code())
	}
	return nil
}

// follow starts a process, feeds it its input and hands on what it writes, up
// to its end.
func (e *Extension) follow(ctx context.Context, a access, c command, body startRequest) (processEnd, error) {
	stream, err := e.start(ctx, a, c.user, body, 0)
	if err != nil {
		return processEnd{}, err
	}
	defer func() { _ = stream.close() }() // it has been read to its end, or is given up
	var feeding sync.WaitGroup
	defer feeding.Wait()
	feed, done := context.WithCancel(ctx)
	defer done()
	var end *processEnd
	for {
		event, err := stream.next()
		switch {
		case errors.Is(err, io.EOF) && end != nil:
			return *end, nil
		case errors.Is(err, io.EOF):
			return processEnd{}, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "the sandbox did not say how the command ended"}
		case err != nil && ctx.Err() != nil:
			return processEnd{}, context.Cause(ctx)
		case errors.Is(err, errCut):
			return processEnd{}, &sdk.Error{Kind: sdk.ErrUnreachable, Message: "the end of the command is not known", Err: err}
		case err != nil:
			return processEnd{}, err
		}
		switch {
		case event.Start != nil && c.stdin != nil:
			pid := event.Start.PID
			feeding.Go(func() { e.feed(feed, a, pid, c.stdin) })
		case event.Data != nil:
			if err := write(c.stdout, event.Data.Stdout); err != nil {
				return processEnd{}, err
			}
			if err := write(c.stderr, event.Data.Stderr); err != nil {
				return processEnd{}, err
			}
		case event.End != nil:
			end = event.End
			done() // a process that has ended reads no more
		}
	}
}

func write(to io.Writer, data []byte) error {
	if to == nil || len(data) == 0 {
		return nil
	}
	_, err := to.Write(data)
	return err
}

// inputChunk is how much input goes into one request.
const inputChunk = 256 << 10

// feed sends the input of a process, and its end. Why it could not be sent does
// not matter: a process that ended does not want it, and for any other reason
// the stream of its output ends as well.
func (e *Extension) feed(ctx context.Context, a access, pid int, from io.Reader) {
	type chunk struct {
		data []byte
		err  error
	}
	// A reader that blocks must not keep a command from ending: it is left to
	// whoever gave it.
	chunks := make(chan chunk)
	go func() {
		defer close(chunks)
		buffer := make([]byte, inputChunk)
		for {
			n, err := from.Read(buffer)
			select {
			case chunks <- chunk{append([]byte(nil), buffer[:n]...), err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	process := selector{PID: pid}
	for {
		select {
		case <-ctx.Done():
			return
		case c, ok := <-chunks:
			if !ok {
				return
			}
			if len(c.data) > 0 && e.unary(ctx, a, "SendInput", map[string]any{"process": process, "input": map[string][]byte{"stdin": c.data}}) != nil {
				return
			}
			if c.err != nil {
				_ = e.unary(ctx, a, "CloseStdin", map[string]any{"process": process}) // see above
				return
			}
		}
	}
}
