// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package backend finds extensions, runs them and hands out configured
// backends. A backend is a named instance of an extension; it costs nothing
// until it is opened.
//
// An extension is either in process, from a table that the caller passes in,
// or a program named sandboxer-extension-NAME that runs as a process of its
// own, one for each open backend. See [Registry.Open] for the life of such a
// process and [SearchPath] for where the program is looked for.
package backend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Config is one configured backend.
type Config struct {
	Extension string // the extension's name
	// JSON is the extension's configuration, one JSON object; nil is empty.
	JSON []byte
	// Path, when set, is the program of the extension: absolute, and used
	// instead of a search. It has no meaning for an extension in process.
	Path string
	// SHA256, when set, is the digest in hexadecimal that the program must
	// have. It has no meaning for an extension in process.
	SHA256 string
	// Env names variables of the host's environment that the process gets
	// beyond the allow-list.
	Env []string
}

// Options are the options of [New]. Only Backends is needed.
type Options struct {
	Fleet    string            // handed to every extension
	Default  string            // the name of the default backend; may be empty
	Backends map[string]Config // by name
	// Builtins are the constructors of extensions in process, by extension
	// name. One of these is preferred to a program of the same name, unless
	// the backend's configuration names a path.
	Builtins map[string]func() sdk.Extension
	Logger   hclog.Logger // gets the extensions' log lines; nil drops them
	// StartTimeout bounds the time from the start of a process to a
	// configured extension. Zero is ten seconds.
	StartTimeout time.Duration
	// StopTimeout bounds the time that a process may take to end before it
	// is killed. Zero is twelve seconds: an extension may use five for its
	// save step and five to close.
	StopTimeout time.Duration
	// Environ is the environment of the host; nil is os.Environ.
	Environ func() []string
}

// ErrExtensionMissing is wrapped by the error for an extension that is not in
// process and whose program is in none of the places where it is looked for.
var ErrExtensionMissing = errors.New("extension not found")

// errClosed is given by a registry after Close.
var errClosed = errors.New("the backends are closed")

// Registry opens backends. It is safe for concurrent use.
type Registry struct {
	opts Options

	life context.Context // ends with Close
	end  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	open    map[string]*instance // by backend
	pending map[string]*opening  // by backend
	strays  sync.WaitGroup       // processes that are about to end by themselves
}

// opening is one start in flight, shared by all who wait for it.
type opening struct {
	done     chan struct{}
	instance *instance
	err      error
}

// New returns a registry. It looks at no file and starts no process.
func New(opts Options) *Registry {
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}
	if opts.StartTimeout <= 0 {
		opts.StartTimeout = 10 * time.Second
	}
	if opts.StopTimeout <= 0 {
		opts.StopTimeout = 12 * time.Second
	}
	if opts.Environ == nil {
		opts.Environ = os.Environ
	}
	r := &Registry{opts: opts, open: map[string]*instance{}, pending: map[string]*opening{}}
	r.life, r.end = context.WithCancel(context.Background())
	return r
}

// Names returns the names of the configured backends, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.opts.Backends)) }

// Default returns the name of the default backend, or "".
func (r *Registry) Default() string { return r.opts.Default }

// Extension returns the name of a backend's extension.
func (r *Registry) Extension(name string) (string, bool) {
	config, ok := r.opts.Backends[name]
	return config.Extension, ok
}

// Open returns a configured backend by name; the empty name is the default.
//
// The first call starts the extension's process and configures it; later
// calls, and calls at the same time, get the same one. When the process has
// ended since, a new one is started. What was handed out before stays as it
// is: every call on it answers [sdk.ErrCrashed].
//
// The process is not the caller's: it lives until [Registry.Close], whatever
// becomes of ctx. An optional ability of an extension is found by a type
// assertion on the result.
//
// Errors: [sdk.ErrInvalid] for a name or configuration that can't be, or a
// program that does not match its pin; [sdk.ErrCrashed] when the process
// ended during its start; [sdk.ErrUnreachable] when the extension is missing
// (also [ErrExtensionMissing]), can't be executed or speaks another protocol.
func (r *Registry) Open(ctx context.Context, name string) (sdk.Extension, error) {
	if name == "" {
		name = r.opts.Default
	}
	config, ok := r.opts.Backends[name]
	if !ok {
		return nil, sdk.Invalid("backend", "there is no backend %.80q (configured: %s)", name, listing(r.Names()))
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, errClosed
	}
	if present := r.open[name]; present != nil {
		if !present.ended() {
			r.mu.Unlock()
			return present.extension, nil
		}
		delete(r.open, name)
	}
	p := r.pending[name]
	if p == nil {
		p = &opening{done: make(chan struct{})}
		r.pending[name] = p
		// Not the caller's goroutine and context: others may wait for it.
		go r.start(name, config, p)
	}
	r.mu.Unlock()

	select {
	case <-p.done:
		if p.err != nil {
			return nil, p.err
		}
		return p.instance.extension, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("backend %s: waiting for its extension: %w", name, context.Cause(ctx))
	}
}

// start makes one instance and settles its opening.
func (r *Registry) start(name string, config Config, p *opening) {
	ctx, cancel := context.WithTimeout(r.life, r.opts.StartTimeout)
	defer cancel()
	p.instance, p.err = r.launch(ctx, name, config)
	if p.err == nil {
		if p.err = p.instance.configure(ctx, sdk.ConfigureOptions{Backend: name, Fleet: r.opts.Fleet, Config: configJSON(config)}); p.err != nil {
			_ = p.instance.stop() // the first error is the one to show
		}
	}
	if p.err != nil && ctx.Err() != nil && !errors.Is(p.err, sdk.ErrCrashed) {
		switch {
		case r.life.Err() != nil:
			p.err = errClosed
		default:
			p.err = &sdk.Error{
				Kind: sdk.ErrUnreachable, Err: p.err,
				Message: fmt.Sprintf("extension %s was not ready within %s", config.Extension, r.opts.StartTimeout),
			}
		}
	}
	r.mu.Lock()
	delete(r.pending, name)
	if p.err == nil {
		r.open[name] = p.instance
	}
	r.mu.Unlock()
	close(p.done)
}

// configJSON returns a backend's configuration as one JSON object.
func configJSON(config Config) []byte {
	if len(config.JSON) == 0 {
		return []byte("{}")
	}
	return config.JSON
}

// launch makes an instance that is not configured yet.
func (r *Registry) launch(ctx context.Context, backend string, config Config) (*instance, error) {
	if err := validName(config.Extension); err != nil {
		return nil, err
	}
	if construct, ok := r.opts.Builtins[config.Extension]; ok && config.Path == "" {
		return &instance{extension: construct(), stopTimeout: r.opts.StopTimeout}, nil
	}
	return startProcess(ctx, r.opts, backend, config)
}

// Describe returns what an extension says about itself. It starts the
// extension's process for as long as that takes, unless a backend of the
// extension is open. The configuration of the first backend (by name) that
// uses the extension says which program it is.
func (r *Registry) Describe(ctx context.Context, extension string) (sdk.DescribeResult, error) {
	config := Config{Extension: extension}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return sdk.DescribeResult{}, errClosed
	}
	for _, name := range r.Names() {
		if r.opts.Backends[name].Extension != extension {
			continue
		}
		if present := r.open[name]; present != nil && !present.ended() {
			r.mu.Unlock()
			return present.extension.Describe(ctx, sdk.DescribeOptions{})
		}
		if config.Path == "" && config.SHA256 == "" {
			config.Path, config.SHA256 = r.opts.Backends[name].Path, r.opts.Backends[name].SHA256
		}
	}
	r.strays.Add(1)
	r.mu.Unlock()
	defer r.strays.Done()

	ctx, cancel := context.WithTimeout(ctx, r.opts.StartTimeout)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	present, err := r.launch(ctx, "", config)
	if err != nil {
		return sdk.DescribeResult{}, err
	}
	described, err := present.extension.Describe(ctx, sdk.DescribeOptions{})
	return described, errors.Join(err, present.stop())
}

// Close ends every process that the registry started: each is told to end,
// given the time for its save step, then killed. It closes extensions in
// process that have a Close method. The registry opens nothing after it.
func (r *Registry) Close() error {
	r.mu.Lock()
	r.closed = true
	r.end()
	waiting := slices.Collect(maps.Values(r.pending))
	r.mu.Unlock()
	for _, p := range waiting {
		<-p.done // ends at once: its context has
	}
	r.strays.Wait()

	r.mu.Lock()
	instances := r.open
	r.open = map[string]*instance{}
	r.mu.Unlock()
	failures := make(chan error, len(instances))
	for name, present := range instances {
		go func() {
			err := present.stop()
			if err != nil {
				err = fmt.Errorf("backend %s: %w", name, err)
			}
			failures <- err
		}()
	}
	var all []error
	for range instances {
		all = append(all, <-failures)
	}
	return errors.Join(all...)
}

// instance is one running extension.
type instance struct {
	extension   sdk.Extension
	process     *process // nil in process
	stopTimeout time.Duration
}

// configure hands over the configuration of its backend.
func (i *instance) configure(ctx context.Context, opts sdk.ConfigureOptions) error {
	if i.process != nil {
		description, err := i.extension.Describe(ctx, sdk.DescribeOptions{})
		if err != nil {
			return err
		}
		i.process.maskConfig(description, opts.Config)
	}
	_, err := i.extension.Configure(ctx, opts)
	return err
}

// ended reports whether the extension's process has.
func (i *instance) ended() bool { return i.process != nil && i.process.ended() }

// stop ends the extension.
func (i *instance) stop() error {
	if i.process != nil {
		return i.process.stop(i.stopTimeout)
	}
	closer, ok := i.extension.(interface{ Close() error })
	if !ok {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- closer.Close() }()
	timer := time.NewTimer(i.stopTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("closing took longer than %s", i.stopTimeout)
	}
}
