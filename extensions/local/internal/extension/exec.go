// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The exit codes that a shell gives to a command that can't be started.
const (
	exitNotFound      = 127
	exitNotExecutable = 126
)

// Exec implements [sdk.Execer].
func (e *Extension) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	r, dir, err := e.awake(opts.Target)
	if err != nil {
		return sdk.ExecResult{}, err
	}
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		return sdk.ExecResult{}, sdk.Invalid("command", "there is no command")
	}
	for i, arg := range opts.Command {
		if strings.ContainsRune(arg, 0) {
			return sdk.ExecResult{}, sdk.Invalid(fmt.Sprintf("command[%d]", i), "holds a zero byte")
		}
	}
	if opts.Workdir != "" && !path.IsAbs(opts.Workdir) {
		return sdk.ExecResult{}, sdk.Invalid("workdir", "%q is not an absolute path", clip(opts.Workdir))
	}
	env, err := execEnv(r, opts)
	if err != nil {
		return sdk.ExecResult{}, err
	}
	var result sdk.ExecResult
	err = streamed(opts.Stdin, opts.Stdout, opts.Stderr, func(streams [3]*os.File) error {
		code, timedOut, err := supervisor.Exec(ctx, dir, supervisor.Command{
			Args: opts.Command, Env: env, Workdir: opts.Workdir, User: opts.User, Timeout: opts.Timeout, Streams: streams,
			Null: [3]bool{opts.Stdin == nil, opts.Stdout == nil, opts.Stderr == nil},
		})
		result = sdk.ExecResult{ExitCode: code, TimedOut: timedOut}
		return err
	})
	if noCommand := errors.Is(err, supervisor.ErrNoCommand); noCommand || errors.Is(err, supervisor.ErrNotExecutable) {
		// What a shell would say, so that scripts can tell.
		if opts.Stderr != nil {
			_, _ = fmt.Fprintf(opts.Stderr, "sandboxer: %s: command not found or not executable\n", clip(opts.Command[0]))
		}
		if noCommand {
			return sdk.ExecResult{ExitCode: exitNotFound}, nil
		}
		return sdk.ExecResult{ExitCode: exitNotExecutable}, nil
	}
	if err == nil && result.ExitCode == runsc.FailureCode {
		if again, readErr := record.Read(dir, r.ID); readErr == nil && exceeded(again) != "" {
			// What the runtime says when the sandbox was killed under the command.
			err = supervisor.ErrNotRunning
		}
	}
	return result, e.callError(r.ID, dir, "exec", err)
}

// running returns the record of a sandbox that can be asked to do something.
func (e *Extension) running(target sdk.Target) (record.Record, string, error) {
	r, dir, err := e.read(target)
	if err != nil {
		return r, dir, err
	}
	switch status, reason := e.status(r, dir); status {
	case sdk.StatusExpired, sdk.StatusDestroying:
		return r, dir, sdk.Expired(r.Lease, "%s is %s: %s", named(r.ID), status, reason)
	case sdk.StatusLost, sdk.StatusFailed:
		return r, dir, &sdk.Error{Kind: sdk.ErrConflict, Lease: &r.Lease, Message: fmt.Sprintf("%s is %s: %s", named(r.ID), status, reason), Advice: "destroy it and create another"}
	}
	return r, dir, nil
}

// awake is running, for what a paused sandbox would keep waiting for ever.
func (e *Extension) awake(target sdk.Target) (record.Record, string, error) {
	r, dir, err := e.running(target)
	if err == nil && ending(r) {
		err = errEnding(r)
	}
	if err == nil && r.Status == sdk.StatusPaused {
		err = &sdk.Error{Kind: sdk.ErrConflict, Lease: &r.Lease, Message: named(r.ID) + " is paused", Advice: "resume it first"}
	}
	return r, dir, err
}

// errEnding refuses the use of a sandbox whose end has begun.
func errEnding(r record.Record) error {
	return &sdk.Error{Kind: sdk.ErrConflict, Lease: &r.Lease, Message: named(r.ID) + " is about to end: " + r.Reason, Advice: "extend it, which lets it go on"}
}

// callError says what became of a sandbox whose supervisor did not answer.
func (e *Extension) callError(id, dir, what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if r, readErr := record.Read(dir, id); readErr == nil {
		if limit := exceeded(r); limit != "" {
			return &sdk.Error{Kind: sdk.ErrConflict, Lease: &r.Lease, Message: fmt.Sprintf("%s: %s: %s", named(id), what, limit),
				Advice: "destroy it and create another with more"}
		}
	}
	if errors.Is(err, supervisor.ErrNotRunning) || errors.Is(err, supervisor.ErrEnding) {
		r, readErr := record.Read(dir, id)
		if errors.Is(readErr, record.ErrGone) {
			return sdk.Errorf(sdk.ErrNotFound, "%s was destroyed during %s", named(id), what)
		}
		if status, reason := e.status(r, dir); readErr == nil && (status == sdk.StatusExpired || status == sdk.StatusDestroying) {
			return sdk.Expired(r.Lease, "%s is %s: %s", named(id), status, reason)
		}
		if readErr == nil && errors.Is(err, supervisor.ErrEnding) {
			return errEnding(r)
		}
	}
	return fmt.Errorf("%s: %s: %w", named(id), what, err)
}

func execEnv(r record.Record, opts sdk.ExecOptions) ([]string, error) {
	for name := range opts.Env {
		if !validEnv(name) {
			return nil, sdk.Invalid("env", "%q is not a variable's name", clip(name))
		}
	}
	env := baseEnv(r)
	if opts.User == "root" || opts.User == "0" || strings.HasPrefix(opts.User, "0:") {
		env["HOME"] = "/root"
	}
	maps.Copy(env, opts.Env)
	return envList(env), nil
}

func envList(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}
