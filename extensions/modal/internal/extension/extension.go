// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

import (
	"context"
	"os"
	"sync"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Name is the extension's name.
const Name = "modal"

// Extension speaks to one Modal workspace.
type Extension struct {
	opts     Options
	settings settings
	backend  string
	client   *client
	records  records

	mu      sync.Mutex
	handles map[string]*modal.Sandbox // by ref; each may hold a connection
	images  map[string]*modal.Image   // by the name that a profile has for it
	ports   map[string]tunnels        // by ref; they never change
}

// Clock tells the time and waits.
type Clock interface {
	Now() time.Time
	// Sleep waits for d or until the context ends, whose error it returns.
	Sleep(ctx context.Context, d time.Duration) error
}

type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

func (machineClock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Options are the options of [New]. None is needed.
type Options struct {
	Version string
	Clock   Clock               // nil is the machine's
	Getenv  func(string) string // nil is os.Getenv
	// Settle is for how long after a create without an answer its sandbox is
	// searched for. Zero is a minute: a create waits for a place to run.
	Settle time.Duration
}

// settle is the default of Options.Settle.
const settle = time.Minute

// The compiler checks what the extension says it can do.
var (
	_ sdk.Extension   = (*Extension)(nil)
	_ sdk.Execer      = (*Extension)(nil)
	_ sdk.Copier      = (*Extension)(nil)
	_ sdk.Logger      = (*Extension)(nil)
	_ sdk.Preparer    = (*Extension)(nil)
	_ sdk.Snapshotter = (*Extension)(nil)
)

// New returns an extension. Nothing is connected until it is used.
func New(opts Options) *Extension {
	if opts.Version == "" {
		opts.Version = "0.1.0"
	}
	if opts.Clock == nil {
		opts.Clock = machineClock{}
	}
	if opts.Getenv == nil {
		opts.Getenv = os.Getenv
	}
	if opts.Settle == 0 {
		opts.Settle = settle
	}
	return &Extension{opts: opts, handles: map[string]*modal.Sandbox{}, images: map[string]*modal.Image{}, ports: map[string]tunnels{}}
}

// Describe implements [sdk.Extension].
func (e *Extension) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	return sdk.DescribeResult{
		Name: Name, Version: e.opts.Version, Summary: "Sandboxes in Modal's cloud, with a token of your own",
		ConfigSchema: configKeys(), Capabilities: capabilities(),
	}, nil
}

// Configure implements [sdk.Extension].
func (e *Extension) Configure(_ context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	s, err := readSettings(opts.Config, e.opts.Getenv)
	if err != nil {
		return sdk.ConfigureResult{}, err
	}
	dir, err := s.recordDir(opts.Backend, e.opts.Getenv)
	if err != nil {
		return sdk.ConfigureResult{}, err
	}
	e.settings, e.backend = s, opts.Backend
	e.records = records{dir: dir}
	e.client = newClient(s, opts.Backend, e.opts.Getenv)
	return sdk.ConfigureResult{}, nil
}

// Close ends the connections.
func (e *Extension) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ref, handle := range e.handles {
		_ = handle.Detach() // it ends with the process in any case
		delete(e.handles, ref)
	}
	if e.client != nil {
		e.client.close()
	}
	return nil
}

// Probe asks the vendor whose token it is.
func (e *Extension) Probe(ctx context.Context, _ sdk.ProbeOptions) (sdk.ProbeResult, error) {
	result := sdk.ProbeResult{Usable: true, Capabilities: capabilities()}
	if workspace, err := e.client.workspace(ctx); err != nil {
		result.Usable, result.Reason, result.Advice = false, err.Error(), "see whether Modal reports an outage, and whether the token is one of the workspace"
	} else {
		result.Details = []sdk.Detail{{Name: "workspace", Value: workspace}}
	}
	return result, nil
}

// Prepare has the vendor build the image of a profile.
func (e *Extension) Prepare(ctx context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	from, err := e.sourceOf(opts.Profile)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	app, err := e.client.app(ctx, e.client.preparing, true)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "pull", Message: "Modal builds " + from.name})
	}
	image, err := e.image(ctx, app, from)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	return sdk.PrepareResult{ImageDigest: image.ImageID}, nil
}

// handle returns the client's handle of a sandbox, which keeps its connection.
func (e *Extension) handle(ctx context.Context, ref string) (*modal.Sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if kept := e.handles[ref]; kept != nil {
		return kept, nil
	}
	vendor, err := e.client.vendor()
	if err != nil {
		return nil, err
	}
	made, err := vendor.Sandboxes.FromID(ctx, ref, nil) // it asks nothing
	if err != nil {
		return nil, e.client.translate(ctx, err)
	}
	e.handles[ref] = made
	return made, nil
}

// forget ends the connection of a sandbox that is over.
func (e *Extension) forget(ref string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if kept := e.handles[ref]; kept != nil {
		_ = kept.Detach() // a connection that is over
	}
	delete(e.handles, ref)
	delete(e.ports, ref)
}

func (e *Extension) now() time.Time { return e.opts.Clock.Now() }
