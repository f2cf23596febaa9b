// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

// pipeGrace is how long the output of an ended process is still read: what it
// started may hold the other end open for ever.
const pipeGrace = 200 * time.Millisecond

// child is an extension's process as go-plugin runs it. It differs from the
// library's own: standard input is the lifeline and not the host's, the
// process has a group of its own, its end is seen even while something that
// it started holds its output open, and its log lines are read by code that
// a hostile line can't bring down.
type child struct {
	path    string // for people
	exec    string // what is executed
	environ []string
	log     *processLog

	cmd      *exec.Cmd
	startErr error
	lifeline *os.File // the host's end; closing it tells the process to end
	stdout   *os.File
	exited   chan struct{} // closed when the process has ended

	mu     sync.Mutex
	killed bool
	reaped bool // its number may be another's
	exit   error
	first  bytes.Buffer // the beginning of standard output
}

// Start starts the process. An error is also kept, for [process.startError].
func (c *child) Start(context.Context) error {
	c.startErr = c.start()
	if c.startErr != nil {
		c.exit = errNotStarted
		close(c.exited)
	}
	return c.startErr
}

func (c *child) start() error {
	var theirs, ours []*os.File
	defer func() { closeAll(theirs) }()
	fail := func(err error) error { closeAll(ours); return err }
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		if i == 0 {
			theirs, ours = append(theirs, r), append(ours, w)
		} else {
			theirs, ours = append(theirs, w), append(ours, r)
		}
	}
	c.cmd = &exec.Cmd{
		Path: c.exec, Args: []string{c.path},
		Env:   append(append(c.environ, plugin.LifelineKey+"="+plugin.LifelineStdin), failpoint.Environ()...),
		Stdin: theirs[0], Stdout: theirs[1], Stderr: theirs[2],
		SysProcAttr: ownGroup(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		return fail(errNotStarted)
	}
	if err := c.cmd.Start(); err != nil {
		return fail(err)
	}
	c.lifeline, c.stdout = ours[0], ours[1]
	go c.tend(ours[2])
	return nil
}

// tend reads the log lines and waits for the end of the process.
func (c *child) tend(stderr *os.File) {
	read := make(chan struct{})
	go func() { defer close(read); c.log.read("", stderr) }()
	err := c.cmd.Wait()
	c.mu.Lock()
	c.reaped = true
	c.mu.Unlock()
	_ = c.stdout.SetReadDeadline(time.Now().Add(pipeGrace))
	_ = stderr.SetReadDeadline(time.Now().Add(pipeGrace))
	<-read // the last words belong to the error
	_ = stderr.Close()
	c.hangUp()
	c.mu.Lock()
	c.exit = err
	c.mu.Unlock()
	close(c.exited)
}

// hangUp closes the lifeline: the process ends after its save step.
func (c *child) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lifeline != nil {
		_ = c.lifeline.Close()
		c.lifeline = nil
	}
}

// kill ends the process and its group at once. It may be called at any time.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		return
	}
	c.killed = true
	if c.cmd != nil && c.cmd.Process != nil && !c.reaped {
		killGroup(c.cmd.Process)
	}
}

// diedByItself reports whether the process ended without being killed by us.
// It waits a moment for an end that is on its way.
func (c *child) diedByItself() bool {
	select {
	case <-c.exited:
	case <-time.After(crashWait):
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.killed || c.cmd.ProcessState.Exited()
}

// exitText says how the process ended: "exit status 7", "signal: killed".
func (c *child) exitText() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exit == nil {
		return "exit status 0"
	}
	return c.exit.Error()
}

// handshake returns the first line of standard output, as far as it was seen.
func (c *child) handshake() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	line, _, _ := strings.Cut(c.first.String(), "\n")
	return strings.TrimSpace(line)
}

// Stdout returns standard output, where the handshake is.
func (c *child) Stdout() io.ReadCloser {
	if c.stdout == nil {
		return io.NopCloser(strings.NewReader(""))
	}
	return stdoutReader{c}
}

// stdoutReader reads standard output, remembers its beginning, and ends
// without an error when it is no longer waited for.
type stdoutReader struct{ c *child }

func (r stdoutReader) Read(p []byte) (int, error) {
	n, err := r.c.stdout.Read(p)
	r.c.mu.Lock()
	if room := 1024 - r.c.first.Len(); room > 0 {
		r.c.first.Write(p[:min(n, room)])
	}
	r.c.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
		_ = r.c.stdout.Close()
		err = io.EOF
	}
	return n, err
}

func (r stdoutReader) Close() error { return r.c.stdout.Close() }

// Stderr returns nothing: the child reads it itself.
func (c *child) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Wait returns when the process has ended.
func (c *child) Wait(ctx context.Context) error {
	select {
	case <-c.exited:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.exit
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Kill ends the process.
func (c *child) Kill(context.Context) error { c.kill(); return nil }

// Name returns the path.
func (c *child) Name() string { return c.path }

// ID returns the process's number. It is never empty: go-plugin would then
// leave the socket's folder behind.
func (c *child) ID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil || c.cmd.Process == nil {
		return "none"
	}
	return strconv.Itoa(c.cmd.Process.Pid)
}

// Diagnose adds nothing: see [process.startError].
func (c *child) Diagnose(context.Context) string { return "" }

// PluginToHost and HostToPlugin leave addresses as they are.
func (c *child) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin is the inverse of PluginToHost.
func (c *child) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// eachLine hands on the lines of a reader. A line that is longer than limit
// comes in pieces.
func eachLine(r io.Reader, limit int, line func(string)) {
	reader := bufio.NewReaderSize(r, limit)
	for {
		text, err := reader.ReadSlice('\n')
		if trimmed := strings.TrimRight(string(text), "\r\n"); trimmed != "" {
			line(trimmed)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
