// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// Processes of a sandbox: real ones, that go on when the client is gone. What
// they write is kept and can be read again from anywhere.

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/jail"
)

// stream is what a process has written.
type stream struct {
	mu      sync.Mutex
	data    []byte
	ended   bool
	changed chan struct{} // closed with the next change; nil while nobody waits
}

func (s *stream) notify() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Write adds to a stream.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, io.ErrClosedPipe
	}
	s.data = append(s.data, p...)
	s.notify()
	return len(p), nil
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.notify()
}

// follow hands on what a stream has from an offset, up to its end.
func (s *stream) follow(ctx context.Context, offset uint64, send func([]byte) error) error {
	const chunk = 256 << 10
	for {
		s.mu.Lock()
		var data []byte
		if offset < uint64(len(s.data)) {
			data = s.data[offset:min(uint64(len(s.data)), offset+chunk)]
		}
		ended := s.ended
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		switch {
		case len(data) > 0:
			if err := send(data); err != nil {
				return err
			}
			offset += uint64(len(data))
		case ended:
			return nil
		default:
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// process is something that was started in a sandbox.
type process struct {
	stdout, stderr stream
	input          io.WriteCloser
	pid            int
	done           chan struct{} // closed at its end

	mu      sync.Mutex
	written uint64 // bytes of input that were taken
	writes  uint32 // of the first generation's entrypoint
	closed  bool
	code    *int32
	signal  *int32
}

func newProcess() *process { return &process{done: make(chan struct{})} }

// finish notes how a process ended.
func (p *process) finish(code, signal int32) {
	p.mu.Lock()
	if signal != 0 {
		p.signal = &signal
	} else {
		p.code = &code
	}
	p.closed = true
	p.mu.Unlock()
	p.stdout.end()
	p.stderr.end()
	close(p.done)
}

func (p *process) outcome() (code, signal *int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, p.signal
}

// write gives a process input. What was taken already is left out, a gap is
// refused.
func (p *process) write(offset uint64, data []byte, eof bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case offset > p.written:
		return status.Errorf(codes.InvalidArgument, "offset %d, and %d bytes were written", offset, p.written)
	case offset+uint64(len(data)) <= p.written:
		data = nil
	default:
		data = data[p.written-offset:]
	}
	if p.closed {
		if len(data) == 0 {
			return nil
		}
		return status.Error(codes.FailedPrecondition, "stdin is closed")
	}
	if len(data) > 0 {
		p.mu.Unlock()
		n, err := p.input.Write(data)
		p.mu.Lock()
		p.written += uint64(n)
		if err != nil {
			p.closed = true
			return status.Errorf(codes.FailedPrecondition, "write to stdin: %s", err)
		}
	}
	if eof {
		p.closed = true
		_ = p.input.Close() // a second time is no harm
	}
	return nil
}

// drainFor is how long output has to be silent after the end of a process when
// a child still holds it open.
const drainFor = 200 * time.Millisecond

// run starts a process and sees to its end, when ended is called. limit bounds
// it; zero is none.
func (s *Server) run(p *process, cmd *exec.Cmd, limit time.Duration, ended func()) error {
	var err error
	if p.input, err = cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, outErr := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	if err := errors.Join(outErr, errErr); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.pid = cmd.Process.Pid
	var read atomic.Int64
	var copies sync.WaitGroup
	copies.Go(func() { copyCounted(&p.stdout, stdout, &read) })
	copies.Go(func() { copyCounted(&p.stderr, stderr, &read) })
	s.running.Go(func() {
		defer ended()
		over, cancel := context.WithCancel(s.life)
		if limit > 0 {
			go func() {
				if s.options.Clock.Sleep(over, limit) == nil {
					jail.Signal(p.pid, syscall.SIGKILL)
				}
			}()
		}
		// The end of the process counts, not that of its output, which a child
		// may hold open.
		state, err := cmd.Process.Wait()
		cancel()
		drained := make(chan struct{})
		go func() { copies.Wait(); close(drained) }()
		for before := int64(-1); before != read.Load(); {
			before = read.Load()
			select {
			case <-drained:
			case <-time.After(drainFor):
				continue
			}
			break
		}
		_ = stdout.Close()
		_ = stderr.Close()
		_ = p.input.Close()
		if err != nil {
			p.finish(1, 0)
			return
		}
		p.finish(int32(state.ExitCode()), int32(jail.SignalOf(state))) //nolint:gosec // both are a byte
	})
	return nil
}

func copyCounted(to io.Writer, from io.Reader, count *atomic.Int64) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		count.Add(int64(n))
		if n > 0 {
			_, _ = to.Write(buffer[:n]) // it has ended when this fails
		}
		if err != nil {
			return
		}
	}
}

// runMain runs the entrypoint of a sandbox, whose end it is.
func (s *Server) runMain(sb *sandbox, args []string) {
	s.mu.Lock()
	wait := sb.scheduled.Sub(s.now())
	s.mu.Unlock()
	s.pause(s.life, wait)
	p := newProcess()
	cwd := "/"
	if sb.definition.GetWorkdir() != "" {
		cwd = sb.definition.GetWorkdir()
	}
	cmd, err := sb.jail.Command(cwd, args, sb.environ())
	if err == nil {
		err = s.run(p, cmd, 0, func() {}) // its work is no activity
	}
	s.mu.Lock()
	sb.main = p
	s.mu.Unlock()
	if err != nil {
		p.finish(128, 0)
	}
	<-p.done
	code, signal := p.outcome()
	result, exit := pb.GenericResult_GENERIC_STATUS_SUCCESS, int32(0)
	switch {
	case signal != nil:
		result, exit = pb.GenericResult_GENERIC_STATUS_FAILURE, 128+*signal
	case code != nil && *code != 0:
		result, exit = pb.GenericResult_GENERIC_STATUS_FAILURE, *code
	}
	s.mu.Lock()
	if sb.result != nil {
		s.mu.Unlock()
		return
	}
	finish := s.finish(sb, result, exit, "")
	s.mu.Unlock()
	finish()
}

// mainOf waits for the entrypoint of a sandbox; nil where there is none.
func (s *Server) mainOf(ctx context.Context, sb *sandbox) *process {
	args := sb.definition.GetEntrypointArgs()
	if len(args) == 0 || idles(args) {
		return nil
	}
	for {
		s.mu.Lock()
		main := sb.main
		s.mu.Unlock()
		if main != nil {
			return main
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil
		case <-s.life.Done():
			return nil
		}
	}
}

// An entry of a log is named by where it ends.
func entryID(offset uint64) string { return strconv.FormatUint(offset, 10) + "-0" }

func entryOffset(id string) uint64 {
	number, _, _ := strings.Cut(id, "-")
	offset, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0 // from the beginning
	}
	return offset
}

// isDir reports whether there is a directory in a sandbox.
func (sb *sandbox) isDir(name string) bool {
	inside, err := sb.jail.Inside(name)
	if err != nil {
		return false
	}
	info, err := os.Stat(inside)
	return err == nil && info.IsDir()
}
