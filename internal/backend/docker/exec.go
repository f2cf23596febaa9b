// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// running returns a sandbox that can be asked to do something.
func (e *Extension) running(ctx context.Context, target sdk.Target) (engine, facts, *object, sdk.Sandbox, error) {
	eng, f, o, s, err := e.find(ctx, target)
	if err != nil {
		return eng, f, o, s, err
	}
	switch s.Status {
	case sdk.StatusReady, sdk.StatusPaused:
		return eng, f, o, s, nil
	case sdk.StatusExpired, sdk.StatusDestroying:
		return eng, f, o, s, sdk.Expired(s.Lease, "sandbox %s is %s: %s", s.ID, s.Status, s.Reason)
	case sdk.StatusLost:
		return eng, f, o, s, &sdk.Error{Kind: sdk.ErrConflict, Lease: &s.Lease, Message: fmt.Sprintf("sandbox %s is lost: %s", s.ID, s.Reason), Advice: "destroy it and create another"}
	}
	return eng, f, o, s, sdk.Conflict(s.Lease, "sandbox %s is %s", s.ID, s.Status)
}

// awake is running, for what a paused sandbox would keep waiting for ever.
func (e *Extension) awake(ctx context.Context, target sdk.Target) (engine, facts, *object, sdk.Sandbox, error) {
	eng, f, o, s, err := e.running(ctx, target)
	if err == nil && s.Status == sdk.StatusPaused {
		err = &sdk.Error{Kind: sdk.ErrConflict, Lease: &s.Lease, Message: "sandbox " + s.ID + " is paused", Advice: "resume it first"}
	}
	return eng, f, o, s, err
}

// Exec implements [sdk.Execer].
func (e *Extension) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	if err := validateExec(opts); err != nil {
		return sdk.ExecResult{}, err
	}
	eng, f, o, s, err := e.awake(ctx, opts.Target)
	if err != nil {
		return sdk.ExecResult{}, err
	}
	mark := rand.Text()
	call := call{
		id: s.ID, container: o.main.ID, user: opts.User, mark: mark,
		command: append([]string{guestwire.Program, guestwire.VerbExec, opts.Workdir}, opts.Command...),
		env:     append(envList(opts.Env), guestwire.MarkVariable+"="+mark),
		stdin:   opts.Stdin, stdout: opts.Stdout, stderr: opts.Stderr, framed: true,
	}
	limited, cancel := e.bounded(ctx, f, s, opts)
	defer cancel()
	code, err := e.call(limited, eng, call)
	if err == nil {
		return sdk.ExecResult{ExitCode: code}, nil
	}
	if cause := context.Cause(limited); cause != nil && ctx.Err() == nil {
		e.kill(ctx, eng, call)
		if errors.Is(cause, errTimeout) {
			return sdk.ExecResult{ExitCode: code, TimedOut: true}, nil
		}
		return sdk.ExecResult{}, cause
	}
	if ctx.Err() != nil {
		e.kill(context.WithoutCancel(ctx), eng, call)
		return sdk.ExecResult{}, ctx.Err()
	}
	return sdk.ExecResult{}, e.gone(ctx, opts.Target, err)
}

func validateExec(opts sdk.ExecOptions) error {
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		return sdk.Invalid("command", "there is no command")
	}
	for i, arg := range opts.Command {
		if strings.ContainsRune(arg, 0) {
			return sdk.Invalid(fmt.Sprintf("command[%d]", i), "holds a zero byte")
		}
	}
	if opts.Workdir != "" && !path.IsAbs(opts.Workdir) {
		return sdk.Invalid("workdir", "%q is not an absolute path", clip(opts.Workdir))
	}
	for name, value := range opts.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return sdk.Invalid("env", "%q is not a variable that a process can have", clip(name))
		}
	}
	return nil
}

// errTimeout is the cause of a context that the command's own limit ended.
var errTimeout = errors.New("the command's time is over")

// bounded ends a command at its timeout, and at the sandbox's deadline as it
// is by then.
func (e *Extension) bounded(ctx context.Context, f facts, s sdk.Sandbox, opts sdk.ExecOptions) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	if opts.Timeout > 0 {
		go func() {
			if e.opts.Clock.Sleep(ctx, opts.Timeout) == nil {
				end(errTimeout)
			}
		}()
	}
	go func() {
		lease := s.Lease
		for {
			if e.opts.Clock.Sleep(ctx, lease.ExpiresAt.Sub(e.now(f))) != nil {
				return
			}
			_, _, _, now, err := e.find(ctx, opts.Target)
			switch {
			case err == nil && now.Status == sdk.StatusExpired:
				end(sdk.Expired(now.Lease, "sandbox %s has expired", s.ID))
				return
			case err == nil:
				lease = now.Lease
			case errors.Is(err, sdk.ErrNotFound):
				return // the command ends with it
			}
			if e.opts.Clock.Sleep(ctx, time.Second) != nil {
				return
			}
		}
	}()
	return ctx, func() { end(context.Canceled) }
}

// call is one process to run in a container.
type call struct {
	id, container  string
	user, mark     string
	command        []string
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer
	framed         bool // the input goes in frames, and its end is kept open
}

// call runs a process to its end and returns its exit code.
func (e *Extension) call(ctx context.Context, eng engine, c call) (int, error) {
	made, err := eng.ExecCreate(ctx, c.container, client.ExecCreateOptions{
		Cmd: c.command, Env: c.env, User: c.user, AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return 0, e.execError(err, c)
	}
	stream, err := eng.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return 0, e.execError(err, c)
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, stream.Close)()
	var feeding sync.WaitGroup
	feeding.Go(func() { feed(stream.HijackedResponse, c) })
	_, err = stdcopy.StdCopy(orDiscard(c.stdout), orDiscard(c.stderr), stream.Reader)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, e.translate(err, "read the output of a command in "+c.id)
	}
	return e.exitCode(ctx, eng, made.ID, c)
}

// exitTries bounds the wait for an exit code after the end of the output.
const (
	exitTries = 50
	exitPause = 10 * time.Millisecond
)

func (e *Extension) exitCode(ctx context.Context, eng engine, execID string, c call) (int, error) {
	for attempt := range exitTries {
		ended, err := eng.ExecInspect(ctx, execID, client.ExecInspectOptions{})
		if err != nil {
			return 0, e.execError(err, c)
		}
		if !ended.Running {
			return ended.ExitCode, nil
		}
		if err := e.opts.Clock.Sleep(ctx, exitPause<<min(attempt, 5)); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("a command in %s ended its output and still runs", c.id)
}

// feed sends the input. The stream stays open for writing when it is framed:
// its end would end the command.
func feed(stream client.HijackedResponse, c call) {
	if c.stdin != nil && !c.framed {
		_, _ = io.Copy(stream.Conn, c.stdin)
	}
	if !c.framed {
		_ = stream.CloseWrite()
		return
	}
	buffer := make([]byte, 32<<10)
	for c.stdin != nil {
		n, err := c.stdin.Read(buffer)
		if n > 0 && guestwire.WriteFrame(stream.Conn, guestwire.FrameData, buffer[:n]) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	_ = guestwire.WriteFrame(stream.Conn, guestwire.FrameEnd, nil)
}

// execError finds the attribute that is to blame.
func (e *Extension) execError(err error, c call) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); strings.Contains(text, "unable to find user") || strings.Contains(text, "no matching entries in passwd") {
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: "user", Message: fmt.Sprintf("sandbox %s has no user %q", c.id, clip(c.user)), Err: err}
	}
	return e.translate(err, "run a command in "+c.id)
}

// killDeadline bounds the end of a command that is to end.
const killDeadline = 20 * time.Second

// kill ends everything that a command has started, by its mark. Closing the
// stream has told it already; this is for one that does not listen.
func (e *Extension) kill(ctx context.Context, eng engine, c call) {
	ctx, cancel := context.WithTimeout(ctx, killDeadline)
	defer cancel()
	killer := call{id: c.id, container: c.container, user: c.user, command: []string{guestwire.Program, guestwire.VerbKill, c.mark}}
	// When it can't be run the sandbox is gone or frozen, and the command with
	// it; the deadline of the sandbox ends the rest.
	_, _ = e.call(ctx, eng, killer)
}

// gone says what became of a sandbox under a call that failed.
func (e *Extension) gone(ctx context.Context, target sdk.Target, err error) error {
	if !errdefs.IsNotFound(err) && !errors.Is(err, sdk.ErrNotFound) && !errors.Is(err, sdk.ErrConflict) && !lost(err) {
		return err
	}
	if _, _, _, _, now := e.running(ctx, target); now != nil {
		return now
	}
	return err
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
