// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Name is the extension's name.
const Name = "e2b"

// Extension speaks to one E2B account.
type Extension struct {
	opts     Options
	settings settings
	backend  string
	fleet    string
	client   *client
	records  records

	mu     sync.Mutex
	access map[string]access // by ref; how envd of a sandbox is reached
}

// Options are the options of [New]. None is needed.
type Options struct {
	Clock  clock.Clock         // nil is the machine's
	Getenv func(string) string // nil is os.Getenv
	// Transport makes the requests; nil is that of net/http.
	Transport http.RoundTripper
	// Settle is for how long after a create without an answer its sandbox is
	// searched for. Zero is what the service needs: its own deadline for a
	// request is 70 s.
	Settle time.Duration
}

// settle is the default of Options.Settle.
const settle = 75 * time.Second

// The compiler checks what the extension says it can do.
var (
	_ sdk.Extension   = (*Extension)(nil)
	_ sdk.Execer      = (*Extension)(nil)
	_ sdk.Copier      = (*Extension)(nil)
	_ sdk.Logger      = (*Extension)(nil)
	_ sdk.Pauser      = (*Extension)(nil)
	_ sdk.Preparer    = (*Extension)(nil)
	_ sdk.Snapshotter = (*Extension)(nil)
)

// New returns an extension. Nothing is connected until it is used.
func New(opts Options) *Extension {
	if opts.Clock == nil {
		opts.Clock = clock.System{}
	}
	if opts.Getenv == nil {
		opts.Getenv = os.Getenv
	}
	if opts.Transport == nil {
		opts.Transport = http.DefaultTransport
	}
	if opts.Settle == 0 {
		opts.Settle = settle
	}
	return &Extension{opts: opts, access: map[string]access{}}
}

// Describe implements [sdk.Extension].
func (e *Extension) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	return sdk.DescribeResult{
		Name: Name, Version: "0.1.0", Summary: "Sandboxes in E2B's cloud, with a key of your own",
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
	e.settings, e.backend, e.fleet = s, opts.Backend, opts.Fleet
	e.records = records{dir: dir, clock: e.opts.Clock}
	e.client = newClient(s, e.opts)
	return sdk.ConfigureResult{}, nil
}

// Probe asks the service for one sandbox.
func (e *Extension) Probe(ctx context.Context, _ sdk.ProbeOptions) (sdk.ProbeResult, error) {
	result := sdk.ProbeResult{Usable: true, Capabilities: capabilities(), Details: []sdk.Detail{{Name: "api", Value: e.settings.APIURL}}}
	if _, _, err := e.client.listSandboxes(ctx, listQuery{limit: 1}); err != nil {
		result.Usable, result.Reason, result.Advice = false, err.Error(), "see whether E2B reports an outage, and whether E2B_API_KEY is a key of the team"
	}
	return result, nil
}

// Prepare looks whether the template is there, and has it built where it is
// made from an image or a Dockerfile.
func (e *Extension) Prepare(ctx context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	source, err := sourceOf(opts.Profile)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	if source, err = e.ensure(ctx, source, opts.Progress); err != nil {
		return sdk.PrepareResult{}, err
	}
	id, err := e.client.templateID(ctx, source.ref)
	if err != nil {
		return sdk.PrepareResult{}, source.blame(err)
	}
	return sdk.PrepareResult{ImageDigest: id}, nil
}

// now is the service's time, as far as its answers tell.
func (e *Extension) now() time.Time { return e.client.now() }

// encode writes a value of ours as JSON. Their types always encode.
func encode(value any) []byte {
	encoded, _ := json.Marshal(value)
	return encoded
}
