// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && (amd64 || arm64)

package initproc

// A request to the init. All that there is to know about starting a command
// is decided here: a request is a list of system calls, with the memory that
// they point to, for a shepherd that can do no more than go through them.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Request is a command to start.
type Request struct {
	Args    []string
	Env     []string
	Workdir string
	// MakeWorkdir makes the working directory when it is missing.
	MakeWorkdir bool
	UID, GID    uint32
	Groups      []uint32
	// Null are the standard streams that are the null device. The rest are the
	// courier's, or for the main process the init's.
	Null [3]bool
	// Main is the main process: it has the init's own streams, both kinds of
	// output in one.
	Main bool
}

// What a request looks like in memory; the programs know it too.
const (
	base       = 0x200000000
	maxRequest = 8 << 20
	header     = 16
	stepSize   = 64
)

// What is done with a step that fails.
const (
	ignored = iota // the next one is done
	fatal          // it is reported, and that is all
	lookup         // the next one is done, and the error remembered
)

// Steps that are no system calls.
const (
	opFork   = -1 // what follows is done by the command's own process
	opFailed = -2 // reports what was remembered
)

// Descriptors in the shepherd.
const (
	fdReport  = 100
	fdStreams = 102
)

// ErrTooLarge is returned for a request that does not fit.
var ErrTooLarge = errors.New("arguments and environment are too large")

// builder lays a request out.
type builder struct {
	steps []step
	data  []byte // what the steps point to, behind them
	parts []part
}

type step struct {
	call int
	args [6]uint64
	mode int
	name string // what fails when it fails
}

// part says that an argument is an address in data.
type part struct{ step, arg int }

func (b *builder) add(name string, mode, call int, args ...uint64) {
	s := step{call: call, mode: mode, name: name}
	copy(s.args[:], args)
	b.steps = append(b.steps, s)
}

// point makes an argument of the last step the address of an offset in data.
func (b *builder) point(arg int, offset uint64) {
	b.steps[len(b.steps)-1].args[arg] = offset
	b.parts = append(b.parts, part{len(b.steps) - 1, arg})
}

func (b *builder) text(s string) uint64 {
	at := uint64(len(b.data))
	b.data = append(append(b.data, s...), 0)
	return at
}

func (b *builder) align() uint64 {
	for len(b.data)%8 != 0 {
		b.data = append(b.data, 0)
	}
	return uint64(len(b.data))
}

// Encode returns the request in the form that the init takes, and what a
// failed step was about.
func (r Request) Encode() (encoded []byte, steps Steps, err error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return nil, nil, errors.New("there is no command")
	}
	var b builder
	for _, s := range append(append([]string{r.Workdir}, r.Args...), r.Env...) {
		if strings.ContainsRune(s, 0) {
			return nil, nil, errors.New("a zero byte can't be handed to a process")
		}
	}
	noAction := b.align()
	b.data = append(b.data, make([]byte, 32)...)

	// The shepherd: it is given what its command leaves behind, so that all of
	// that is below it for as long as the command runs.
	b.add("", ignored, unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1)
	b.add("", ignored, unix.SYS_RT_SIGACTION, uint64(unix.SIGCHLD), 0, 0, 8)
	b.point(1, noAction)
	b.add("fork", fatal, opFork)

	// The command.
	b.add("", ignored, unix.SYS_SETSID)
	b.add("", ignored, unix.SYS_RT_SIGACTION, uint64(unix.SIGPIPE), 0, 0, 8)
	b.point(1, noAction)
	b.streams(r)
	b.add("", ignored, unix.SYS_CLOSE_RANGE, 3, fdReport-1, 0)
	b.add("", ignored, unix.SYS_CLOSE_RANGE, fdReport, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	b.add("", ignored, unix.SYS_UMASK, 0o022)
	if r.MakeWorkdir {
		b.makeDirectories(r.Workdir)
	}
	b.user(r)
	b.add("workdir", fatal, unix.SYS_CHDIR, 0)
	b.point(0, b.text(r.Workdir))
	b.execute(r)
	return b.encode(r)
}

func (b *builder) streams(r Request) {
	if r.Main {
		// The third is the report's.
		b.add("streams", fatal, unix.SYS_DUP3, 1, 2, 0)
		return
	}
	for i := range uint64(3) {
		b.add("streams", fatal, unix.SYS_DUP3, fdStreams+i, i, 0)
	}
}

func (b *builder) makeDirectories(dir string) {
	parent := ""
	for name := range strings.SplitSeq(strings.Trim(path.Clean(dir), "/"), "/") {
		parent += "/" + name
		b.add("", ignored, unix.SYS_MKDIRAT, 0, 0, 0o755)
		b.point(1, b.text(parent))
	}
}

func (b *builder) user(r Request) {
	if len(r.Groups) > 0 { // the init has none
		groups := b.align()
		for _, group := range r.Groups {
			b.data = binary.LittleEndian.AppendUint32(b.data, group)
		}
		b.add("groups", fatal, unix.SYS_SETGROUPS, uint64(len(r.Groups)))
		b.point(1, groups)
	}
	gid, uid := uint64(r.GID), uint64(r.UID)
	b.add("group", fatal, unix.SYS_SETRESGID, gid, gid, gid)
	b.add("user", fatal, unix.SYS_SETRESUID, uid, uid, uid)
}

// execute tries the places where the command may be.
func (b *builder) execute(r Request) {
	args, env := b.vector(r.Args), b.vector(r.Env)
	for _, candidate := range candidates(r.Args[0], r.Workdir, r.Env) {
		b.add("command", lookup, unix.SYS_EXECVE)
		b.point(0, b.text(candidate))
		b.point(1, args)
		b.point(2, env)
	}
	b.add("command", fatal, opFailed)
}

// vector lays out a list of strings and returns where the list of their
// addresses begins. Until encode knows where data lies they are offsets.
func (b *builder) vector(list []string) uint64 {
	offsets := make([]uint64, len(list))
	for i, s := range list {
		offsets[i] = b.text(s)
	}
	at := b.align()
	for _, offset := range offsets {
		b.parts = append(b.parts, part{-1, len(b.data)})
		b.data = binary.LittleEndian.AppendUint64(b.data, offset)
	}
	b.data = append(b.data, make([]byte, 8)...)
	return at
}

func (b *builder) encode(r Request) ([]byte, Steps, error) {
	start := header + len(b.steps)*stepSize
	if start+len(b.data) > maxRequest {
		return nil, nil, ErrTooLarge
	}
	le := binary.LittleEndian
	address := uint64(base + start)
	for _, p := range b.parts {
		if p.step >= 0 {
			b.steps[p.step].args[p.arg] += address
		} else {
			le.PutUint64(b.data[p.arg:], le.Uint64(b.data[p.arg:])+address)
		}
	}
	out := le.AppendUint64(make([]byte, 0, start+len(b.data)), r.flags())
	out = le.AppendUint64(out, 0)
	var names Steps
	for _, s := range b.steps {
		out = le.AppendUint64(out, uint64(s.call)) //nolint:gosec // the programs compare it as signed
		for _, arg := range s.args {
			out = le.AppendUint64(out, arg)
		}
		out = le.AppendUint64(out, uint64(s.mode)) //nolint:gosec // three small numbers
		names = append(names, s.name)
	}
	return append(out, b.data...), names, nil
}

func (r Request) flags() (flags uint64) {
	for i, null := range r.Null {
		if null {
			flags |= 1 << i
		}
	}
	return flags
}

// candidates returns the paths that a command's name may mean.
func candidates(name, workdir string, env []string) []string {
	if path.IsAbs(name) {
		return []string{name}
	}
	if strings.Contains(name, "/") {
		return []string{path.Join(workdir, name)}
	}
	search := ""
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			search = value
		}
	}
	var paths []string
	for dir := range strings.SplitSeq(search, ":") {
		if path.IsAbs(dir) {
			paths = append(paths, path.Join(dir, name))
		}
	}
	return paths
}

// Steps says what the steps of a request are about.
type Steps []string

// name returns what the step at an offset of the request is about.
func (s Steps) name(offset uint64) string {
	if offset < header {
		return ""
	}
	i := (offset - header) / stepSize
	if i >= uint64(len(s)) {
		return ""
	}
	return s[i]
}

// ReportSize is the size of a report.
const ReportSize = 16

// Kind says what a report is about.
type Kind uint32

// The kinds of reports.
const (
	Started Kind = 1 + iota
	Ended
	Failed      // a step failed
	Undelivered // there is no init that takes requests
	Unaccounted // the shepherd was killed
	Listening   // the init takes requests; it says so once, before all else
)

// Report is what the init says about a request. It comes from inside the
// sandbox, where anything may pretend to be the init.
type Report struct {
	Kind   Kind
	PID    int             // of Started
	Status unix.WaitStatus // of Ended
	Errno  unix.Errno      // of Failed and Undelivered
	Step   string          // of Failed: command, workdir, user …
}

// DecodeReport reads a report about a request with these steps.
func DecodeReport(data []byte, steps Steps) (Report, error) {
	if len(data) != ReportSize {
		return Report{}, fmt.Errorf("a report of %d bytes", len(data))
	}
	le := binary.LittleEndian
	r := Report{Kind: Kind(le.Uint32(data))}
	value := le.Uint32(data[4:])
	switch r.Kind {
	case Started:
		if value <= 1 || value > math.MaxInt32 {
			return Report{}, fmt.Errorf("a report about process %d", value)
		}
		r.PID = int(value)
	case Ended:
		r.Status = unix.WaitStatus(value)
		if !r.Status.Exited() && !r.Status.Signaled() {
			return Report{}, fmt.Errorf("a report of status %#x", value)
		}
	case Failed, Undelivered:
		if value == 0 || value > 4095 {
			return Report{}, fmt.Errorf("a report of error %d", value)
		}
		r.Errno = unix.Errno(value)
		r.Step = steps.name(le.Uint64(data[8:]))
	case Unaccounted, Listening:
	default:
		return Report{}, fmt.Errorf("a report of kind %d", r.Kind)
	}
	return r, nil
}

// ExitCode returns what a shell would: a program that a signal ended has 128
// and the signal's number.
func (r Report) ExitCode() int {
	if r.Status.Signaled() {
		return 128 + int(r.Status.Signal())
	}
	return r.Status.ExitStatus()
}
