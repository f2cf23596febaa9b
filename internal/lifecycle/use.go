// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// using returns a sandbox's extension and target for a verb that uses it.
func (m *Manager) using(ctx context.Context, id, backend string) (sdk.Extension, place, error) {
	at, err := m.locate(ctx, id, backend, "", time.Time{})
	if err != nil {
		return nil, at, err
	}
	if at.record.Known() && !at.record.Open {
		return nil, at, sdk.Errorf(sdk.ErrNotFound, "sandbox %s has ended: its status is %s%s", id, viewRecord(at.record).Status, because(at.record.Reason))
	}
	ext, err := m.open(ctx, at.backend)
	return ext, at, err
}

func lacks(backend, verb string) error {
	return sdk.Unsupported("backend", "the extension of backend %q does not implement %s", backend, verb)
}

// Exec runs a command in a sandbox. A command that failed is a result with
// its exit code; the error is about the running.
func (m *Manager) Exec(ctx context.Context, id string, opts ExecOptions) (sdk.ExecResult, error) {
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		return sdk.ExecResult{}, sdk.Invalid("command", "is empty")
	}
	ext, at, err := m.using(ctx, id, opts.Backend)
	if err != nil {
		return sdk.ExecResult{}, err
	}
	execer, ok := sdk.As[sdk.Execer](ext)
	if !ok {
		return sdk.ExecResult{}, lacks(at.backend, "exec")
	}
	result, err := execer.Exec(ctx, sdk.ExecOptions{
		Target: at.target(m.settings.Fleet), Command: opts.Command, Env: opts.Env, User: opts.User, Workdir: opts.Workdir,
		Timeout: opts.Timeout, Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr,
	})
	if err != nil {
		return result, failure("exec in sandbox", id, at.backend, err)
	}
	return result, nil
}

// CopyOptions are the options of [Manager.CopyIn] and [Manager.CopyOut].
type CopyOptions struct {
	Backend string
	Path    string // absolute, in the sandbox
}

// CopyIn unpacks a tar stream into a directory of a sandbox and returns the
// bytes read.
func (m *Manager) CopyIn(ctx context.Context, id string, opts CopyOptions, archive io.Reader) (int64, error) {
	copier, at, err := m.copier(ctx, id, opts)
	if err != nil {
		return 0, err
	}
	result, err := copier.CopyIn(ctx, sdk.CopyInOptions{Target: at.target(m.settings.Fleet), Path: opts.Path, Archive: archive})
	if err != nil {
		return result.Bytes, failure(fmt.Sprintf("copy to %.200q in sandbox", opts.Path), id, at.backend, err)
	}
	return result.Bytes, nil
}

// CopyOut writes a file or directory of a sandbox as a tar stream and
// returns the bytes written.
func (m *Manager) CopyOut(ctx context.Context, id string, opts CopyOptions, archive io.Writer) (int64, error) {
	copier, at, err := m.copier(ctx, id, opts)
	if err != nil {
		return 0, err
	}
	result, err := copier.CopyOut(ctx, sdk.CopyOutOptions{Target: at.target(m.settings.Fleet), Path: opts.Path, Archive: archive})
	if err != nil {
		return result.Bytes, failure(fmt.Sprintf("copy %.200q out of sandbox", opts.Path), id, at.backend, err)
	}
	return result.Bytes, nil
}

func (m *Manager) copier(ctx context.Context, id string, opts CopyOptions) (sdk.Copier, place, error) {
	ext, at, err := m.using(ctx, id, opts.Backend)
	if err != nil {
		return nil, at, err
	}
	copier, ok := sdk.As[sdk.Copier](ext)
	if !ok {
		return nil, at, lacks(at.backend, "cp")
	}
	return copier, at, nil
}

// LogsOptions are the options of [Manager.Logs].
type LogsOptions struct {
	Backend string
	Source  sdk.LogSource
	Follow  bool
	Tail    int // last lines only; 0 is all that is kept
	Output  io.Writer
}

// Logs writes one of a sandbox's logs.
func (m *Manager) Logs(ctx context.Context, id string, opts LogsOptions) error {
	ext, at, err := m.using(ctx, id, opts.Backend)
	if err != nil {
		return err
	}
	logger, ok := sdk.As[sdk.Logger](ext)
	if !ok {
		return lacks(at.backend, "logs")
	}
	if opts.Source == sdk.LogNetwork {
		// An extension that has never heard of it would give the other log.
		described, err := ext.Describe(ctx, sdk.DescribeOptions{})
		if err != nil {
			return failure("logs of sandbox", id, at.backend, err)
		}
		if described.Capabilities.Of(sdk.FeatureNetworkLog).Class == sdk.ClassUnsupported {
			return sdk.Unsupported("network", "the extension of backend %q keeps no network log", at.backend)
		}
	}
	if _, err := logger.Logs(ctx, sdk.LogsOptions{Target: at.target(m.settings.Fleet), Source: opts.Source, Follow: opts.Follow, Tail: opts.Tail, Output: opts.Output}); err != nil {
		return failure("logs of sandbox", id, at.backend, err)
	}
	return nil
}

// ForwardOptions are the options of [Manager.Forward].
type ForwardOptions struct {
	Backend string
	Port    string // name of a port, as in the sandbox's endpoints
}

// Forward returns the way to one port of a sandbox. A backend that forwards
// nothing publishes ports that its clients reach.
func (m *Manager) Forward(ctx context.Context, id string, opts ForwardOptions) (sdk.ForwardResult, error) {
	ext, at, err := m.using(ctx, id, opts.Backend)
	if err != nil {
		return sdk.ForwardResult{}, err
	}
	if forwarder, ok := sdk.As[sdk.Forwarder](ext); ok {
		result, err := forwarder.Forward(ctx, sdk.ForwardOptions{Target: at.target(m.settings.Fleet), Port: opts.Port})
		if err != nil {
			return result, failure("forward a port of sandbox", id, at.backend, err)
		}
		return result, nil
	}
	got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
	if err != nil {
		return sdk.ForwardResult{}, failure("forward a port of sandbox", id, at.backend, err)
	}
	endpoint, found := got.Sandbox.Endpoints[opts.Port]
	if !found {
		return sdk.ForwardResult{}, sdk.Errorf(sdk.ErrNotFound, "sandbox %s publishes no port %.80q", id, opts.Port)
	}
	return sdk.ForwardResult{Address: endpoint}, nil
}

// PauseOptions are the options of [Manager.Pause] and [Manager.Resume].
type PauseOptions struct {
	Backend string
}

// Pause suspends a sandbox. Its deadline stays.
func (m *Manager) Pause(ctx context.Context, id string, opts PauseOptions) (Sandbox, error) {
	pauser, at, err := m.pauser(ctx, id, opts)
	if err != nil {
		return Sandbox{}, err
	}
	result, err := pauser.Pause(ctx, sdk.PauseOptions{Target: at.target(m.settings.Fleet)})
	return m.settle(ctx, at, "pause sandbox", ledger.Paused, result.Sandbox, err)
}

// Resume continues a paused sandbox and returns when it is ready again.
func (m *Manager) Resume(ctx context.Context, id string, opts PauseOptions) (Sandbox, error) {
	pauser, at, err := m.pauser(ctx, id, opts)
	if err != nil {
		return Sandbox{}, err
	}
	result, err := pauser.Resume(ctx, sdk.ResumeOptions{Target: at.target(m.settings.Fleet)})
	if err == nil && result.Sandbox.Profile.Ready != nil {
		ext, openErr := m.open(ctx, at.backend)
		if openErr != nil {
			return Sandbox{}, openErr
		}
		err = m.awaitReadiness(ctx, ext, at, result.Sandbox)
	}
	return m.settle(ctx, at, "resume sandbox", ledger.Resumed, result.Sandbox, err)
}

func (m *Manager) pauser(ctx context.Context, id string, opts PauseOptions) (sdk.Pauser, place, error) {
	ext, at, err := m.using(ctx, id, opts.Backend)
	if err != nil {
		return nil, at, err
	}
	pauser, ok := sdk.As[sdk.Pauser](ext)
	if !ok {
		return nil, at, lacks(at.backend, "pause and resume")
	}
	return pauser, at, nil
}

// settle writes the outcome of pause or resume down and shows the sandbox.
func (m *Manager) settle(ctx context.Context, at place, step string, event ledger.Type, found sdk.Sandbox, err error) (Sandbox, error) {
	m.lister(at.backend).invalidate()
	if err != nil {
		return Sandbox{}, failure(step, at.id, at.backend, err)
	}
	settled, err := m.append(ctx, at.id, ledger.Event{Type: event, Backend: at.backend, Ref: found.Ref, Incarnation: found.Incarnation, Intent: intentOf(at, found)})
	if err != nil {
		return Sandbox{}, err
	}
	at.record = settled.record
	return m.view(at, found)
}
