// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Talking to a supervisor, from the side of the client.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
)

// ErrNotRunning is returned when no supervisor answers.
var ErrNotRunning = errors.New("the sandbox is not running")

// ErrNoCommand is returned when a command does not exist in the sandbox.
var ErrNoCommand = errors.New("no such command")

// ErrNotExecutable is returned when a command is there and is no program, or
// none that the user may execute.
var ErrNotExecutable = errors.New("not executable")

// ErrEnding is returned by a sandbox whose end has begun.
var ErrEnding = errors.New("its end has begun")

// maxAnswer bounds what a supervisor may say.
const maxAnswer = 16 << 20

// ask sends one request and waits for the last answer. When the context ends
// the request is cancelled and its end still awaited: the supervisor kills
// what it runs and then answers.
func ask(ctx context.Context, dir string, r request, files []*os.File) (answer, error) {
	conn, err := dial(dir)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := sendRequest(conn, r, files); err != nil {
		return answer{}, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	closeAll(files)
	stop := context.AfterFunc(ctx, func() {
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(execStart + 3*killTime))
	})
	defer stop()
	var a answer
	if err := json.NewDecoder(io.LimitReader(conn, maxAnswer)).Decode(&a); err != nil {
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		return answer{}, fmt.Errorf("the sandbox ended meanwhile: %w", ErrNotRunning)
	}
	switch {
	case ctx.Err() != nil:
		return a, ctx.Err()
	case a.NotFound:
		return a, fmt.Errorf("%w: %s", ErrNoCommand, a.Error)
	case a.Ending:
		return a, fmt.Errorf("%w: %s", ErrEnding, a.Error)
	case a.NotExecutable:
		return a, fmt.Errorf("%w: %s", ErrNotExecutable, a.Error)
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

// dial connects to the socket through a descriptor of its directory, because
// a socket's path is limited to 108 bytes and a state directory's is not.
func dial(dir string) (*net.UnixConn, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	defer d.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), SocketName), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return conn, nil
}

// Command is a command to run in a sandbox. Streams is consumed: its files are
// closed on our side once they are handed over. Those that Null names are the
// null device.
type Command struct {
	Args    []string
	Env     []string
	Workdir string
	User    string
	Timeout time.Duration
	Null    [3]bool
	Streams [3]*os.File
}

// Exec runs a command.
func Exec(ctx context.Context, dir string, c Command) (exitCode int, timedOut bool, err error) {
	a, err := ask(ctx, dir, request{Op: "exec", Exec: &execRequest{
		Command: c.Args, Env: c.Env, Workdir: c.Workdir, User: c.User, Timeout: c.Timeout,
		Null: c.Null,
	}}, c.Streams[:])
	return a.ExitCode, a.TimedOut, err
}

// Helper runs one of our own helpers inside the sandbox; see package guest.
func Helper(ctx context.Context, dir string, args []string, streams [3]*os.File) (exitCode int, err error) {
	a, err := ask(ctx, dir, request{Op: "helper", Args: args}, streams[:])
	return a.ExitCode, err
}

// Poke tells a supervisor that the record changed. One that can't be reached
// looks by itself soon.
func Poke(dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = ask(ctx, dir, request{Op: "poke"}, nil)
}

// Suspend pauses or resumes a sandbox.
func Suspend(ctx context.Context, dir string, resume bool) error {
	op := "pause"
	if resume {
		op = "resume"
	}
	_, err := ask(ctx, dir, request{Op: op}, nil)
	return err
}

// Made is what a restore has to know about a snapshot's source.
type Made struct {
	Spec    []byte
	Init    string // version of the sandbox's init
	Network string
	Gateway bool     // there is one
	Names   []string // that it has given addresses to
	Process Process
}

// Checkpoint writes a snapshot of a kind into a directory.
func Checkpoint(ctx context.Context, dir, kind string, deadline time.Duration, to *os.File) (Made, error) {
	a, err := ask(ctx, dir, request{Op: "snapshot", Kind: kind, Deadline: deadline}, []*os.File{to})
	if err == nil && a.Made == nil {
		err = errors.New("the supervisor said nothing about the snapshot")
	}
	if err != nil {
		return Made{}, err
	}
	return *a.Made, nil
}

// Name returns the process that said it is the supervisor of a sandbox.
func Name(dir string) (p record.Process, err error) {
	f, err := os.OpenFile(filepath.Join(dir, selfName), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return p, err
	}
	defer f.Close()
	return p, json.NewDecoder(io.LimitReader(f, 4096)).Decode(&p)
}
