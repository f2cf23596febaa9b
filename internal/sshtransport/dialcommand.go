// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// CommandError is wrapped by the error for a command that was to succeed.
type CommandError struct {
	Program string
	ExecResult
	Stderr string // the first 4 KiB
}

// Error says how the command ended, and what it said last.
func (e *CommandError) Error() string {
	how := fmt.Sprintf("exit code %d", e.ExitCode)
	switch {
	case e.Signal != "":
		how = "signal " + e.Signal
	case e.ExitCode == 127:
		how = "there is no such program on the host"
	}
	text := clip(e.Program) + ": " + how
	if said := strings.TrimSpace(e.Stderr); said != "" {
		text += ": " + said
	}
	return text
}

// DialCommand starts a command on the host and returns its stdin and stdout
// as a stream: what `docker system dial-stdio` is for. The command must end
// when its stdin does. When it fails, so do reads, with its stderr. The context
// bounds the start only. A stream of this kind counts as a session as long as
// it is open.
func (h *Host) DialCommand(ctx context.Context, argv ...string) (Conn, error) {
	line, err := quoteAll(argv)
	if err != nil {
		return nil, err
	}
	s, err := newScript("exec " + line)
	if err != nil {
		return nil, err
	}
	c, err := h.connection(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.acquire(ctx, 1); err != nil {
		return nil, err
	}
	cmd, err := c.start(ctx, s)
	if err != nil {
		return nil, err
	}
	stderr := head{most: 4 << 10}
	said := make(chan struct{})
	go func() {
		defer close(said)
		io.Copy(&stderr, reader{cmd.stderr}) //nolint:errcheck // how the stream ended is the session's to tell
	}()
	end := func() error {
		// Stdout has ended; a command that closes it and runs on is not
		// waited for longer than its stream is open.
		<-said
		<-cmd.ended
		result, err := cmd.result()
		if err == nil && result.ExitCode != 0 {
			err = h.failed(argv[0], result, stderr.String())
		}
		return err
	}
	return newStream(c, stdio{cmd}, addr{"command", strings.Join(argv, " ")}, end), nil
}

// stdio is a command's stdin and stdout as a channel.
type stdio struct{ *command }

// Read implements [io.Reader].
func (s stdio) Read(p []byte) (int, error) { return s.stdout.Read(p) }

// Write implements [io.Writer].
func (s stdio) Write(p []byte) (int, error) { return s.stdin.Write(p) }

// CloseWrite tells the command that nothing more will be written.
func (s stdio) CloseWrite() error { return s.stdin.Close() }

// Close ends the command.
func (s stdio) Close() error {
	s.finish()
	return nil
}
