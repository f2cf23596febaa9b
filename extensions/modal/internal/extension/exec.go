// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// Running commands. A client that goes ends no command, and the vendor has no
// call that ends one: so each carries a mark in its environment, and when it is
// to end, whatever has the mark is killed by a second command.

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

	modal "github.com/modal-labs/modal-client/go"

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

const (
	// killDeadline bounds the killing, which goes on when the caller has given up.
	killDeadline = 20 * time.Second
	// maxArguments is what the vendor's client takes, in bytes together.
	maxArguments = 1 << 16
	// margin is by how much the vendor's own timeout of a command, which kills
	// its first process only, comes after ours.
	margin = 15 * time.Second
	// watchAfter is how long a command runs before its sandbox is watched, and
	// watchWait how long one call of the watch lasts.
	watchAfter = 2 * time.Second
	watchWait  = 30 * time.Second
)

// usable returns a sandbox that can be used.
func (e *Extension) usable(ctx context.Context, target sdk.Target) (found, error) {
	f, err := e.find(ctx, target)
	if err != nil {
		return f, err
	}
	return f, f.alive()
}

// command is one command.
type command struct {
	args    []string
	env     map[string]string
	workdir string // empty is the image's
	stdin   io.Reader
	stdout  io.Writer // nil discards
	stderr  io.Writer
	timeout time.Duration // zero is none
}

// Exec implements [sdk.Execer].
func (e *Extension) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	c := command{
		args: opts.Command, env: opts.Env, workdir: opts.Workdir, stdin: opts.Stdin, stdout: opts.Stdout, stderr: opts.Stderr, timeout: opts.Timeout,
	}
	if err := c.check(opts.User); err != nil {
		return sdk.ExecResult{}, err
	}
	f, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.ExecResult{}, err
	}
	if c.workdir == "" {
		c.workdir = f.object.Profile.Workdir
	}
	result, err := e.run(ctx, f, c)
	if err == nil || ctx.Err() != nil {
		return result, err
	}
	// A stream that was cut may be the end of the sandbox.
	if _, gone := e.usable(ctx, opts.Target); gone != nil && !errors.Is(gone, sdk.ErrUnreachable) {
		return result, errors.Join(gone, err)
	}
	return result, err
}

func (c command) check(user string) error {
	if len(c.args) == 0 || c.args[0] == "" {
		return sdk.Invalid("command", "there is no command")
	}
	size := 0
	for _, arg := range c.args {
		if size += len(arg); strings.ContainsRune(arg, 0) {
			return sdk.Invalid("command", "an argument holds a zero byte")
		}
	}
	switch {
	case size > maxArguments:
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: "command", Message: fmt.Sprintf("the arguments have %d bytes, and Modal takes %d", size, maxArguments), Advice: "copy a script in, and run that"}
	case c.workdir != "" && !path.IsAbs(c.workdir):
		return sdk.Invalid("workdir", "%.80q is not an absolute path", c.workdir)
	case !isRoot(user):
		return sdk.Unsupported("user", "Modal runs every command as root, not as %.80q", user)
	}
	for name := range c.env {
		if !isVariable(name) {
			return sdk.Invalid("env", "%.80q is not a variable that Modal takes: letters, digits and _ make its name", name)
		}
	}
	return nil
}

// What ends a command before its time.
var (
	errTimedOut = errors.New("the command's timeout passed")
	errEnded    = errors.New("the sandbox has ended")
)

// run runs a command to its end. When the timeout, the lease or the context ends
// first, all that it has started is killed before run returns.
func (e *Extension) run(ctx context.Context, f found, c command) (sdk.ExecResult, error) {
	random := make([]byte, 12)
	_, _ = rand.Read(random) // never fails
	mark := hex.EncodeToString(random)
	env := map[string]string{}
	for name, value := range c.env {
		env[name] = value
	}
	env[markVariable] = mark
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if c.timeout > 0 {
		go func() {
			if e.opts.Clock.Sleep(running, c.timeout) == nil {
				stop(errTimedOut)
			}
		}()
	}
	go e.watch(running, f, stop)
	code, err := e.follow(running, f, c, env)
	if err == nil {
		return sdk.ExecResult{ExitCode: code}, nil
	}
	cause := context.Cause(running)
	timedOut := errors.Is(cause, errTimedOut)
	if cause != nil {
		err = cause
	}
	if errors.Is(cause, errEnded) {
		return sdk.ExecResult{}, cause // nothing of it is left
	}
	if killErr := e.killMarked(ctx, f, mark); killErr != nil {
		return sdk.ExecResult{TimedOut: timedOut}, errors.Join(err, fmt.Errorf("what the command started could not be ended: %w", killErr))
	}
	if timedOut {
		return sdk.ExecResult{TimedOut: true}, nil
	}
	return sdk.ExecResult{}, err
}

// watch ends a command when its sandbox is over: the vendor's client waits for
// the command of a dead sandbox without end, and the lease is ours.
func (e *Extension) watch(ctx context.Context, f found, stop context.CancelCauseFunc) {
	lease := f.lease
	go func() {
		for {
			if e.opts.Clock.Sleep(ctx, lease.ExpiresAt.Sub(e.now())) != nil {
				return
			}
			// It may have been extended meanwhile.
			now, err := e.find(ctx, sdk.Target{ID: f.sandbox.ID, Ref: f.vendor.ref, Fleet: f.object.Identity.Fleet})
			switch {
			case ctx.Err() != nil:
				return
			case err == nil && !now.lease.Expired(e.now()) && !now.lease.Claimed:
				lease = now.lease
			default:
				stop(sdk.Expired(lease, "sandbox %s has expired", f.sandbox.ID))
				return
			}
		}
	}()
	if e.opts.Clock.Sleep(ctx, watchAfter) != nil {
		return
	}
	for ctx.Err() == nil {
		end, err := e.client.ended(ctx, f.vendor.ref, watchWait)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && end != nil, errors.Is(err, sdk.ErrNotFound):
			stop(errEnded)
			return
		case err != nil:
			if e.opts.Clock.Sleep(ctx, watchAfter) != nil {
				return
			}
		}
	}
}

// killMarked ends what a command has started. A sandbox that is over has nothing
// left to end.
func (e *Extension) killMarked(ctx context.Context, f found, mark string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	code, err := e.follow(ctx, f, command{args: []string{"/bin/sh", "-c", killScript, "sh", markVariable + "=" + mark}, workdir: "/"}, nil)
	if err != nil {
		end, look := e.client.ended(ctx, f.vendor.ref, 0)
		if end != nil || errors.Is(look, sdk.ErrNotFound) {
			return nil
		}
		return errors.Join(err, look)
	}
	if code != 0 {
		return fmt.Errorf("processes with its mark were still starting others (exit code %d)", code)
	}
	return nil
}

// follow starts a command, feeds it its input and hands on what it writes, up to
// its end.
func (e *Extension) follow(ctx context.Context, f found, c command, env map[string]string) (int, error) {
	handle, err := e.handle(ctx, f.vendor.ref)
	if err != nil {
		return 0, err
	}
	params := &modal.SandboxExecParams{Workdir: c.workdir, Env: env}
	if c.timeout > 0 {
		params.Timeout = (c.timeout + margin).Round(time.Second)
	}
	for _, out := range []struct {
		to   io.Writer
		into *modal.StdioBehavior
	}{{c.stdout, &params.Stdout}, {c.stderr, &params.Stderr}} {
		if *out.into = modal.Pipe; out.to == nil {
			*out.into = modal.Ignore
		}
	}
	process, err := handle.Exec(ctx, c.args, params)
	if err != nil {
		e.forget(f.vendor.ref) // its connection may be of a task that is over
		return 0, e.client.translate(ctx, err)
	}
	// The readers of the vendor's client know no context: closing them is what
	// ends them.
	defer context.AfterFunc(ctx, func() {
		_ = process.Stdout.Close()
		_ = process.Stderr.Close()
	})()
	feeding, done := context.WithCancel(ctx)
	defer done()
	go feed(feeding, process.Stdin, c.stdin)
	var copies sync.WaitGroup
	var writing sync.Mutex // both may go to one writer
	errs := make([]error, 2)
	for i, stream := range []struct {
		from io.Reader
		to   io.Writer
	}{{process.Stdout, c.stdout}, {process.Stderr, c.stderr}} {
		if stream.to == nil {
			continue
		}
		copies.Go(func() { _, errs[i] = io.Copy(inTurn{&writing, stream.to}, stream.from) })
	}
	copies.Wait()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if err := errors.Join(errs...); err != nil {
		return 0, e.client.translate(ctx, err)
	}
	code, err := process.Wait(ctx, nil)
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err != nil:
		return 0, e.client.translate(ctx, err)
	}
	return code, nil
}

// inTurn writes when nobody else who has its lock does.
type inTurn struct {
	lock *sync.Mutex
	to   io.Writer
}

func (w inTurn) Write(p []byte) (int, error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.to.Write(p)
}

// inputChunk is how much input goes into one call.
const inputChunk = 256 << 10

// feed sends the input of a command, and its end. Why it could not be sent does
// not matter: a process that ended does not want it, and for any other reason
// the stream of its output ends as well.
func feed(ctx context.Context, to io.WriteCloser, from io.Reader) {
	if from == nil {
		_ = to.Close() // see above
		return
	}
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
	for {
		select {
		case <-ctx.Done():
			return
		case c, ok := <-chunks:
			if !ok {
				return
			}
			if len(c.data) > 0 {
				if _, err := to.Write(c.data); err != nil {
					return
				}
			}
			if c.err != nil {
				_ = to.Close() // see above
				return
			}
		}
	}
}
