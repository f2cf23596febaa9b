// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// killGrace bounds the wait for a host to say that a command was ended. Under
// this, a host that does not answer delays whoever gave up.
const killGrace = 2 * time.Second

// ExecOptions are the options of [Host.Exec].
type ExecOptions struct {
	Command []string          // program and arguments, as they are: no shell reads them
	Env     map[string]string // added to that of the host
	Dir     string            // empty is the user's home directory
	Stdin   io.Reader         // nil is empty. It costs a second session
	Stdout  io.Writer         // nil discards
	Stderr  io.Writer         // nil discards
}

// ExecResult is how a command ended.
type ExecResult struct {
	ExitCode int    // 128+n for the signal n, 127 when there is no such program
	Signal   string // that ended it, without SIG; empty when none did or the server does not tell
}

// Exec runs a command on the host and returns when it has ended. A command
// that ran and failed is a result. When the context ends first, the command
// and everything that it started are killed before Exec returns, unless the
// host does not answer for two seconds; the same happens on the host when
// this process or the connection dies. Once a command was started, an error of
// the connection does not tell how far it came.
//
// At most eight sessions are open on a connection; Exec waits for its turn.
// One Read of Stdin may outlast the call.
func (h *Host) Exec(ctx context.Context, opts ExecOptions) (ExecResult, error) {
	line, err := quoteAll(opts.Command)
	if err != nil {
		return ExecResult{}, err
	}
	lines, err := prelude(opts.Dir, opts.Env)
	if err != nil {
		return ExecResult{}, err
	}
	sessions, run := 1, guarded
	if opts.Stdin != nil {
		sessions, run = 2, awaited
	}
	s, err := newScript(append(lines, run(line)...)...)
	if err != nil {
		return ExecResult{}, err
	}
	c, err := h.connection(ctx)
	if err != nil {
		return ExecResult{}, err
	}
	if err := c.acquire(ctx, sessions); err != nil {
		return ExecResult{}, err
	}
	cmd, err := c.start(ctx, s)
	if err != nil {
		c.sessions.Release(int64(sessions - 1))
		return ExecResult{}, err
	}
	if opts.Stdin == nil {
		return cmd.run(ctx, opts, cmd.stdin)
	}
	watcher, err := c.watch(ctx, cmd)
	if err != nil {
		return ExecResult{}, err
	}
	defer watcher.dismiss()
	return cmd.run(ctx, opts, watcher.stdin)
}

// acquire waits for a number of sessions.
func (c *connection) acquire(ctx context.Context, sessions int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.done:
			cancel(c.lost())
		case <-stop:
		}
	}()
	if c.sessions.Acquire(ctx, int64(sessions)) != nil {
		return contextError(ctx, c.host.Name(), fmt.Sprintf("waiting for one of %d sessions", maxSessions))
	}
	return nil
}

// watch opens the session that ends a command which has its stdin to itself.
// The command waits for it, and is not started without.
func (c *connection) watch(ctx context.Context, cmd *command) (*command, error) {
	s, err := newScript(watch(cmd.pid)...)
	if err == nil {
		var watcher *command
		if watcher, err = c.start(ctx, s); err == nil {
			return watcher, nil
		}
	} else {
		c.sessions.Release(1)
	}
	cmd.abandon()
	return nil, err
}

// dismiss ends a watcher, which then ends nothing. Where its stdin has ended
// before, it has done its work.
func (cmd *command) dismiss() {
	go func() {
		io.WriteString(cmd.stdin, "done\n") //nolint:errcheck // the session's end is all that matters
		cmd.finish()
	}()
}

// run moves the streams of a command that has begun and waits for its end.
// The command is killed when end is closed.
func (cmd *command) run(ctx context.Context, opts ExecOptions, end io.WriteCloser) (ExecResult, error) {
	stdout, stderr := newGate(opts.Stdout), newGate(opts.Stderr)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		var both sync.WaitGroup
		both.Go(func() { stdout.drain(cmd.stdout) })
		both.Go(func() { stderr.drain(cmd.stderr) })
		both.Wait()
		<-cmd.ended
	}()
	if opts.Stdin != nil {
		go cmd.feed(opts.Stdin)
	}
	select {
	case <-copied:
		result, err := cmd.result()
		return result, errors.Join(err, stdout.fault("stdout"), stderr.fault("stderr"))
	case <-ctx.Done():
	}
	// Whatever comes from now on is not the caller's any more.
	stdout.shut()
	stderr.shut()
	return ExecResult{}, cmd.kill(ctx, end)
}

// kill ends a command whose context ended, and tells when it is not known
// whether that worked.
func (cmd *command) kill(ctx context.Context, end io.Closer) error {
	defer func() { go cmd.finish() }()
	go end.Close()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace)
	defer cancel()
	name := cmd.conn.host.Name()
	select {
	case <-cmd.ended:
		return fmt.Errorf("SSH host %s: the command was killed: %w", name, context.Cause(ctx))
	case <-grace.Done():
	}
	return unreachable(name, context.Cause(ctx), "the host does not answer, so it is not known whether the command was killed")
}

// feed sends the caller's stdin. It ends with the reader, or with the
// connection when the reader never ends.
func (cmd *command) feed(stdin io.Reader) {
	if _, err := io.WriteString(cmd.stdin, "go\n"); err != nil {
		return
	}
	io.Copy(writer{cmd.stdin}, stdin) //nolint:errcheck // a command need not read all of its stdin
	cmd.stdin.Close()
}

// result turns the end of a session into how the command ended.
func (cmd *command) result() (ExecResult, error) {
	var exit *ssh.ExitError
	switch {
	case cmd.err == nil:
		return ExecResult{}, nil
	case errors.As(cmd.err, &exit):
		return ExecResult{ExitCode: exit.ExitStatus(), Signal: exit.Signal()}, nil
	case cmd.conn.raw.ended() != nil:
		return ExecResult{}, cmd.conn.lost()
	}
	return ExecResult{}, unreachable(cmd.conn.host.Name(), cmd.err, "the server did not say how the command ended")
}

// gate passes output on until it is shut, so that no writer of a caller is
// used after its call has returned.
type gate struct {
	mu  sync.Mutex
	to  io.Writer // nil discards
	err error     // of the writer
}

func newGate(to io.Writer) *gate { return &gate{to: to} }

// Write implements [io.Writer]. It never fails: a command must not block or
// die because of who reads its output.
func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.to != nil && g.err == nil {
		_, g.err = g.to.Write(p)
	}
	return len(p), nil
}

func (g *gate) drain(from io.Reader) {
	io.Copy(writer{g}, from) //nolint:errcheck // how the stream ended is the session's to tell
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = nil
}

// fault is the error of a writer that did not take everything.
func (g *gate) fault(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	return fmt.Errorf("the command's %s could not be written: %w", name, g.err)
}

// maxOutput bounds what [Host.Output] returns, in bytes.
const maxOutput = 1 << 20

// Output runs a command with empty stdin and returns its stdout, of at most
// 1 MiB. A command that fails is an error with its stderr.
func (h *Host) Output(ctx context.Context, command ...string) (string, error) {
	stdout, stderr := head{most: maxOutput}, head{most: 4 << 10}
	result, err := h.Exec(ctx, ExecOptions{Command: command, Stdout: &stdout, Stderr: &stderr})
	switch {
	case err != nil:
		return "", err
	case result.ExitCode != 0:
		return "", h.failed(command[0], result, stderr.String())
	case stdout.full:
		return "", unreachable(h.Name(), nil, "%s printed more than %d MiB", clip(command[0]), maxOutput>>20)
	}
	return stdout.String(), nil
}

// failed is the error for a command that was to succeed.
func (h *Host) failed(program string, result ExecResult, stderr string) error {
	return &sdk.Error{
		Kind: sdk.ErrUnreachable, Message: "SSH host " + h.Name(),
		Err: &CommandError{Program: program, ExecResult: result, Stderr: printable(stderr)},
	}
}
