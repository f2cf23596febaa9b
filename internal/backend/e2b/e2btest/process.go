// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// envd's processes: real ones, that go on when the client is gone.

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/jail"
)

type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type startRequest struct {
	Process processConfig `json:"process"`
	Tag     string        `json:"tag"`
	Stdin   *bool         `json:"stdin"` // absent is true
}

type selector struct {
	PID int    `json:"pid"`
	Tag string `json:"tag"`
}

// The events of a stream.
type (
	eventFrame struct {
		Event event `json:"event"`
	}
	event struct {
		Start     *startEvent `json:"start,omitempty"`
		Data      *dataEvent  `json:"data,omitempty"`
		End       *endEvent   `json:"end,omitempty"`
		Keepalive *struct{}   `json:"keepalive,omitempty"`
	}
	startEvent struct {
		PID int `json:"pid"`
	}
	dataEvent struct {
		Stdout []byte `json:"stdout,omitempty"`
		Stderr []byte `json:"stderr,omitempty"`
		PTY    []byte `json:"pty,omitempty"`
	}
	endEvent struct {
		ExitCode int    `json:"exitCode,omitempty"` // left out when 0
		Exited   bool   `json:"exited,omitempty"`
		Status   string `json:"status"`
		Error    string `json:"error,omitempty"`
	}
)

// process is one process that was started.
type process struct {
	pid    int
	config processConfig
	tag    string
	input  io.WriteCloser // nil when it has none
	write  sync.Mutex     // orders what goes into input
	read   atomic.Int64   // bytes of output

	mu      sync.Mutex
	ended   *endEvent
	endedAt time.Time
	streams map[*stream]bool
}

// stream is what one client has not been sent yet.
type stream struct {
	mu    sync.Mutex
	queue []event
	more  chan struct{}
}

func (s *stream) put(e event) {
	s.mu.Lock()
	s.queue = append(s.queue, e)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *stream) take() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.queue
	s.queue = nil
	return all
}

// attach gives a client what comes from now on, and the end when it has been.
func (p *process) attach() *stream {
	s := &stream{more: make(chan struct{}, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.put(event{Start: &startEvent{p.pid}})
	if p.ended != nil {
		s.put(event{End: p.ended})
		return s
	}
	p.streams[s] = true
	return s
}

func (p *process) detach(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
}

func (p *process) emit(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		s.put(e)
	}
}

// processTable is what a sandbox knows of its processes.
type processTable struct {
	clock clock.Clock
	life  context.Context
	mu    sync.Mutex
	all   []*process
}

// kept is how long the end of a process is remembered.
const kept = 30 * time.Second

// list returns the processes that run, or that are remembered.
func (t *processTable) list(ended bool) []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	t.all = slices.DeleteFunc(t.all, func(p *process) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.ended != nil && now.Sub(p.endedAt) > kept
	})
	var found []*process
	for _, p := range t.all {
		p.mu.Lock()
		if p.ended == nil || ended {
			found = append(found, p)
		}
		p.mu.Unlock()
	}
	return found
}

func (t *processTable) find(by selector, ended bool) (*process, *rpcError) {
	for _, p := range slices.Backward(t.list(ended)) {
		if (by.PID != 0 && p.pid == by.PID) || (by.PID == 0 && by.Tag != "" && p.tag == by.Tag) {
			return p, nil
		}
	}
	return nil, rpcFail("not_found", "no process with pid %d or tag %q", by.PID, by.Tag)
}

// start starts a process of a sandbox and attaches the client that asked for
// it, who misses nothing of what it writes.
func (e *envd) start(req startRequest, user string) (*process, *stream, *rpcError) {
	home, ok := homeOf(user)
	if !ok {
		return nil, nil, rpcFail("unauthenticated", "no user %q", user)
	}
	cwd := req.Process.Cwd
	if cwd == "" {
		cwd = home
	}
	j := e.machine.root
	if err := j.Open(); err != nil {
		return nil, nil, rpcFail("internal", "%s", err)
	}
	resolved, err := j.inside(cwd, home)
	if err == nil && !filepath.IsAbs(cwd) {
		cwd = filepath.Join(home, cwd)
	}
	if info, statErr := os.Stat(resolved); err != nil || statErr != nil || !info.IsDir() {
		return nil, nil, rpcFail("invalid_argument", "cwd %q does not exist", cwd)
	}
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "USER": user, "LOGNAME": user,
		"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": e.machine.id,
	}
	maps.Copy(env, e.env)
	maps.Copy(env, req.Process.Envs)
	var environ []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		environ = append(environ, name+"="+env[name])
	}
	cmd, err := j.Command(cwd, append([]string{req.Process.Cmd}, req.Process.Args...), environ)
	if err != nil {
		return nil, nil, rpcFail("internal", "%s", err)
	}
	p := &process{config: req.Process, tag: req.Tag, streams: map[*stream]bool{}}
	if req.Stdin == nil || *req.Stdin {
		if p.input, err = cmd.StdinPipe(); err != nil {
			return nil, nil, rpcFail("internal", "%s", err)
		}
	}
	stdout, outErr := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	if err := errors.Join(outErr, errErr); err != nil {
		return nil, nil, rpcFail("internal", "%s", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, rpcFail("internal", "%s", err)
	}
	p.pid = cmd.Process.Pid
	j.table.mu.Lock()
	j.table.all = append(j.table.all, p)
	j.table.mu.Unlock()
	first := p.attach()
	var copies sync.WaitGroup
	copies.Go(func() { p.copy(stdout, func(b []byte) *dataEvent { return &dataEvent{Stdout: b} }) })
	copies.Go(func() { p.copy(stderr, func(b []byte) *dataEvent { return &dataEvent{Stderr: b} }) })
	go func() {
		// The end of the process counts, not that of its output, which a
		// child may hold open.
		state, err := cmd.Process.Wait()
		ctx, cancel := context.WithCancel(j.table.life)
		go func() { copies.Wait(); cancel() }()
		for before := int64(-1); before != p.read.Load(); {
			before = p.read.Load()
			// The processes are real, and so is the time that they take.
			if (clock.System{}).Sleep(ctx, drainFor) != nil {
				break
			}
		}
		cancel()
		_ = stdout.Close()
		_ = stderr.Close()
		if p.input != nil {
			_ = p.input.Close()
		}
		p.finish(endOf(state, err), j.table.clock.Now())
	}()
	return p, first, nil
}

// drainFor is how long output has to be silent after the end of a process, when
// somebody still holds it open.
const drainFor = time.Second

func (p *process) copy(from io.Reader, wrap func([]byte) *dataEvent) {
	for {
		chunk := make([]byte, 32<<10)
		n, err := from.Read(chunk)
		if n > 0 {
			p.read.Add(int64(n))
			p.emit(event{Data: wrap(chunk[:n])})
		}
		if err != nil {
			return
		}
	}
}

func (p *process) finish(end *endEvent, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended, p.endedAt = end, at
	for s := range p.streams {
		s.put(event{End: end})
	}
	p.streams = map[*stream]bool{}
}

func endOf(state *os.ProcessState, err error) *endEvent {
	if err != nil {
		return &endEvent{ExitCode: -1, Status: err.Error(), Error: err.Error()}
	}
	if signal := jail.SignalOf(state); signal != 0 {
		text := "signal: " + signal.String()
		return &endEvent{ExitCode: -1, Status: text, Error: text}
	}
	end := &endEvent{ExitCode: state.ExitCode(), Exited: true, Status: "exit status " + strconv.Itoa(state.ExitCode())}
	if end.ExitCode != 0 {
		end.Error = end.Status
	}
	return end
}

// The flags of an envelope.
const (
	frameMessage = 0x00
	frameEnd     = 0x02
)

func writeFrame(w http.ResponseWriter, flags byte, message any) error {
	payload, err := json.Marshal(message)
	if err != nil {
		return err
	}
	frame := make([]byte, 5, 5+len(payload))
	frame[0] = flags
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload))) //nolint:gosec // events are far smaller
	if _, err := w.Write(append(frame, payload...)); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// readFrame reads the one message of a server stream's request.
func readFrame(r io.Reader, into any) error {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if head[0] != frameMessage || size > maxBody {
		return fmt.Errorf("an envelope with flags %d of %d bytes", head[0], size)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return err
	}
	return json.Unmarshal(payload, into)
}

func (e *envd) serveProcess(w http.ResponseWriter, r *http.Request, method string) {
	fault, lies := e.server.faults.next(CallProcess)
	if lies && e.server.faults.before(fault, w) {
		return
	}
	table := &e.machine.root.table
	switch method {
	case "Start":
		e.stream(w, r, func() (*process, *stream, *rpcError) {
			var req startRequest
			if err := readFrame(r.Body, &req); err != nil {
				return nil, nil, rpcFail("invalid_argument", "unmarshal message: %s", err)
			}
			return e.start(req, user(r))
		})
	case "Connect":
		e.stream(w, r, func() (*process, *stream, *rpcError) {
			var req struct{ Process selector }
			if err := readFrame(r.Body, &req); err != nil {
				return nil, nil, rpcFail("invalid_argument", "unmarshal message: %s", err)
			}
			p, failed := table.find(req.Process, true)
			if failed != nil {
				return nil, nil, failed
			}
			return p, p.attach(), nil
		})
	case "List":
		unary(w, r, &struct{}{}, func() (any, *rpcError) {
			var all []map[string]any
			for _, p := range table.list(false) {
				entry := map[string]any{"config": p.config, "pid": p.pid}
				if p.tag != "" {
					entry["tag"] = p.tag
				}
				all = append(all, entry)
			}
			if all == nil {
				return map[string]any{}, nil
			}
			return map[string]any{"processes": all}, nil
		})
	case "SendSignal":
		var req struct {
			Process selector
			Signal  string
		}
		unary(w, r, &req, func() (any, *rpcError) {
			p, failed := table.find(req.Process, false)
			if failed != nil {
				return nil, failed
			}
			switch req.Signal {
			case "SIGNAL_SIGTERM":
				jail.Signal(p.pid, syscall.SIGTERM)
			case "SIGNAL_SIGKILL":
				jail.Signal(p.pid, syscall.SIGKILL)
			default:
				return nil, rpcFail("invalid_argument", "invalid signal %q", req.Signal)
			}
			return struct{}{}, nil
		})
	case "SendInput":
		var req struct {
			Process selector
			Input   struct{ Stdin, PTY []byte }
		}
		unary(w, r, &req, func() (any, *rpcError) {
			p, failed := table.find(req.Process, false)
			if failed != nil {
				return nil, failed
			}
			if p.input == nil {
				return nil, rpcFail("failed_precondition", "the process has no stdin")
			}
			p.write.Lock()
			defer p.write.Unlock()
			if _, err := p.input.Write(append(req.Input.Stdin, req.Input.PTY...)); err != nil {
				return nil, rpcFail("internal", "write to stdin: %s", err)
			}
			return struct{}{}, nil
		})
	case "CloseStdin":
		var req struct{ Process selector }
		unary(w, r, &req, func() (any, *rpcError) {
			p, failed := table.find(req.Process, false)
			if failed != nil {
				return nil, failed
			}
			if p.input != nil {
				_ = p.input.Close() // a second time is no harm
			}
			return struct{}{}, nil
		})
	case "Update":
		var req struct{ Process selector }
		unary(w, r, &req, func() (any, *rpcError) {
			_, failed := table.find(req.Process, false)
			return struct{}{}, failed
		})
	default:
		http.NotFound(w, r)
	}
}

// stream sends the events of a process until its end, the timeout, or the
// client's going, after which the process goes on.
func (e *envd) stream(w http.ResponseWriter, r *http.Request, open func() (*process, *stream, *rpcError)) {
	if !post(w, r, "application/connect+json") {
		return
	}
	fault, lies := e.server.faults.next(CallStart)
	if lies && e.server.faults.before(fault, w) {
		return
	}
	w.Header().Set("Content-Type", "application/connect+json")
	w.Header().Set("Connect-Accept-Encoding", "gzip")
	finish := func(err *rpcError) {
		last := map[string]any{}
		if err != nil {
			last["error"] = err
		}
		_ = writeFrame(w, frameEnd, last) // the client may have gone
	}
	p, s, failed := open()
	if failed != nil {
		finish(failed)
		return
	}
	defer p.detach(s)
	clock := e.server.options.Clock
	var timedOut, ping <-chan struct{}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	after := func(d time.Duration) <-chan struct{} {
		done := make(chan struct{})
		go func() {
			if clock.Sleep(ctx, d) == nil {
				close(done)
			}
		}()
		return done
	}
	if ms, err := strconv.ParseInt(r.Header.Get("Connect-Timeout-Ms"), 10, 64); err == nil && ms > 0 {
		timedOut = after(time.Duration(ms) * time.Millisecond)
	}
	every, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || every <= 0 {
		every = 90
	}
	ping = after(time.Duration(every) * time.Second)
	for {
		for _, event := range s.take() {
			if event.End != nil && lies && fault.Lie == CutStream {
				_ = http.NewResponseController(w).Flush() // what came before the cut arrives
				cut()
			}
			if writeFrame(w, frameMessage, eventFrame{event}) != nil {
				return
			}
			switch {
			case event.End == nil:
				continue
			case lies && fault.Lie == NoEndFrame:
				return
			case lies && fault.Lie == ErrorFrame:
				finish(rpcFail("internal", "a fault that was asked for"))
				return
			}
			finish(nil)
			return
		}
		select {
		case <-s.more:
		case <-timedOut:
			jail.Signal(p.pid, syscall.SIGKILL) // the direct process and no child of it
			finish(rpcFail("deadline_exceeded", "context deadline exceeded"))
			return
		case <-ping:
			if writeFrame(w, frameMessage, eventFrame{event{Keepalive: &struct{}{}}}) != nil {
				return
			}
			ping = after(time.Duration(every) * time.Second)
		case <-r.Context().Done():
			return
		case <-e.server.life.Done():
			finish(rpcFail("internal", "%s", errClosedServer))
			return
		}
	}
}
