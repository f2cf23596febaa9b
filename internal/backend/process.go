// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

// crashWait is how long a broken call waits to learn whether the process has
// ended: the connection breaks a moment before the exit is seen.
const crashWait = 2 * time.Second

// process is the process of one extension.
type process struct {
	extension string
	path      string
	child     *child
	client    *goplugin.Client
	cleaned   chan struct{} // closed when nothing of the process is left

	mu       sync.Mutex
	stopping bool
}

// startProcess starts the program of an extension and connects to it. The
// result is not configured.
func startProcess(ctx context.Context, opts Options, backend string, config Config) (*instance, error) {
	path, err := find(config)
	if err != nil {
		return nil, err
	}
	environ, listedValues, err := environment(opts.Environ(), config.Env)
	if err != nil {
		return nil, err
	}
	program, err := openProgram(path, config.SHA256)
	if err != nil {
		return nil, err
	}
	defer program.close()

	log := newLog(opts.Logger.Named("extension").With("extension", config.Extension, "backend", backend))
	for _, value := range listedValues {
		log.mask(value)
	}
	c := &child{path: path, exec: program.exec, environ: environ, log: log, exited: make(chan struct{})}
	tlsConfig, certificate, err := plugin.HostTLS()
	if err != nil {
		return nil, err
	}
	c.environ = append(c.environ, certificate)
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  plugin.Handshake(),
		VersionedPlugins: plugin.HostPlugins(),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		TLSConfig:        tlsConfig,
		SkipHostEnv:      true,
		StartTimeout:     opts.StartTimeout,
		GRPCDialOptions:  withFailpoints(plugin.DialOptions()),
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: socketParent()},
		SyncStdout:       log.writer("stdout"),
		SyncStderr:       log.writer("stderr"),
		// It says things at error level that are ordinary here, such as that
		// a process has ended. What matters is in the errors of this package.
		Logger: hclog.NewNullLogger(),
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			c.environ = append(c.environ, cmd.Env...) // what go-plugin says to its server
			return c, nil
		},
	})
	p := &process{extension: config.Extension, path: path, child: c, client: client, cleaned: make(chan struct{})}
	// go-plugin's start knows no context: it ends when the process does.
	unwatch := context.AfterFunc(ctx, c.kill)
	extension, err := p.connect(ctx, log)
	if err != nil || !unwatch() {
		c.kill()
		client.Kill()
		return nil, p.startError(ctx, err)
	}
	go func() {
		defer close(p.cleaned)
		<-c.exited
		client.Kill() // the connection, the socket's folder, go-plugin's goroutines
	}()
	return &instance{extension: extension, process: p, stopTimeout: opts.StopTimeout}, nil
}

// connect starts the process and returns what it serves.
func (p *process) connect(ctx context.Context, log *processLog) (sdk.Extension, error) {
	protocol, err := p.client.Client()
	if err != nil {
		return nil, err
	}
	conn, err := plugin.Dispense(protocol)
	if err != nil {
		return nil, err
	}
	extension, err := plugin.Connect(ctx, conn, plugin.ConnectOptions{Name: p.extension, Broken: p.broken, Secret: log.mask})
	if err != nil {
		return nil, err
	}
	description, err := extension.Describe(ctx, sdk.DescribeOptions{})
	if err != nil {
		return nil, err
	}
	if description.Name != p.extension {
		return nil, fmt.Errorf("the program calls itself %.80q", description.Name)
	}
	return extension, nil
}

// maskConfig hides the values of sensitive configuration keys in the log.
func (p *process) maskConfig(description sdk.DescribeResult, config []byte) {
	var values map[string]any
	if json.Unmarshal(config, &values) != nil {
		return // the extension will say what is wrong with it
	}
	for _, key := range description.ConfigSchema {
		if text, ok := values[key.Name].(string); ok && key.Sensitive {
			p.child.log.mask(text)
		}
	}
}

// startError says why a start failed, from what the process did rather than
// from the words of the library that waited for it.
func (p *process) startError(ctx context.Context, err error) error {
	c := p.child
	failed := func(kind error, message, advice string) error {
		return &sdk.Error{Kind: kind, Message: fmt.Sprintf("extension %s (%s) %s", p.extension, p.path, message), Advice: advice, Err: err}
	}
	switch {
	case c.startErr != nil:
		advice := ""
		if format := wrongFormat(p.path); format != "" {
			advice = fmt.Sprintf("it is %s, this machine runs %s/%s", format, runtime.GOOS, runtime.GOARCH)
		}
		err = c.startErr
		return failed(sdk.ErrUnreachable, "can't be executed", advice)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
		return failed(sdk.ErrUnreachable, "did not get ready in time"+c.log.lastWords(), "")
	case c.handshake() != "":
		line := c.handshake()
		parts := strings.Split(line, "|")
		if len(parts) < 5 || parts[0] != fmt.Sprint(goplugin.CoreProtocolVersion) {
			err = nil
			return failed(sdk.ErrUnreachable, fmt.Sprintf("is no extension: it began with %.200q", line), "")
		}
		if parts[1] != fmt.Sprint(plugin.ProtocolVersion) {
			err = nil
			return failed(sdk.ErrUnreachable, fmt.Sprintf("speaks protocol version %.20q and this program version %d", parts[1], plugin.ProtocolVersion),
				"use an extension and a sandboxer of about the same age")
		}
	}
	if c.diedByItself() {
		err = nil
		return failed(sdk.ErrCrashed, "ended during its start: "+c.exitText()+c.log.lastWords(), "")
	}
	return failed(sdk.ErrUnreachable, "did not start"+c.log.lastWords(), "")
}

// ended reports whether the process has.
func (p *process) ended() bool {
	select {
	case <-p.child.exited:
		return true
	default:
		return false
	}
}

// broken tells a call whose connection broke what became of the process.
func (p *process) broken(ctx context.Context, call string) error {
	timer := time.NewTimer(crashWait)
	defer timer.Stop()
	select {
	case <-p.child.exited:
	case <-ctx.Done():
		return nil
	case <-timer.C:
		return nil
	}
	p.mu.Lock()
	stopping := p.stopping
	p.mu.Unlock()
	if stopping {
		return sdk.Errorf(sdk.ErrUnreachable, "extension %s was closed during %s", p.extension, call)
	}
	return &sdk.Error{
		Kind:    sdk.ErrCrashed,
		Message: fmt.Sprintf("extension %s (%s) crashed, seen by %s: %s%s", p.extension, p.path, call, p.child.exitText(), p.child.log.lastWords()),
		Advice:  "the call may have acted; the next use starts the extension anew",
	}
}

// stop ends the process: it is told to, has limit to do so, and is killed.
func (p *process) stop(limit time.Duration) error {
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	p.child.hangUp()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var late error
	select {
	case <-p.child.exited:
	case <-timer.C:
		late = fmt.Errorf("extension %s did not end within %s and was killed", p.extension, limit)
		p.child.kill()
	}
	<-p.cleaned
	return late
}

// socketParent returns the folder for the folder of a process's socket. The
// path of a socket holds about a hundred bytes, and the temporary folder of a
// build system may have used them up.
func socketParent() string {
	if dir := os.TempDir(); runtime.GOOS == "windows" || len(dir) < 50 {
		return dir
	}
	return "/tmp"
}

// errNotStarted is how the wait for a process ends that never was.
var errNotStarted = errors.New("the process was not started")
