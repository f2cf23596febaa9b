// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Commands in the sandbox. The runtime starts a courier with the command's
// streams, and the courier takes the command to the init, whose child it
// becomes: so a memory snapshot keeps it. See package initproc.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
)

// openCourier puts the courier into the private root.
func openCourier() (*os.File, error) {
	path := rootfs.PrivateCalls + "/" + guest.CourierName
	if err := os.WriteFile(path, initproc.Courier(), 0o700); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// exec runs a command. The files are its standard streams.
func (s *supervisor) exec(ctx context.Context, r execRequest, files [3]*os.File) (answer, error) {
	user, err := s.user(ctx, r.User)
	if err != nil {
		return answer{}, err
	}
	if err := s.unsavable.Acquire(ctx, 1); err != nil {
		return answer{}, err
	}
	release := sync.OnceFunc(func() { s.unsavable.Release(1) })
	defer release()
	tasks := int64(commandPids)
	if !r.Null[0] {
		tasks++
	}
	defer s.makeRoom(ctx, tasks)()
	call := s.newCall()
	defer call.remove()
	request := initproc.Request{
		Args: r.Command, Env: append(r.Env, guest.MarkVariable+"="+s.mark(call)), Workdir: r.Workdir,
		UID: user.UID, GID: user.GID, Groups: user.Groups, Null: r.Null,
	}
	if request.Workdir == "" {
		request.Workdir = s.config.Process.Workdir
	}
	c, err := s.deliver(call, request, files)
	if err != nil {
		return answer{}, err
	}
	// The reader of a stream waits for the last copy of its other end.
	closeAll(files[:])
	var expired <-chan time.Time
	if r.Timeout > 0 {
		timer := time.NewTimer(r.Timeout)
		defer timer.Stop()
		expired = timer.C
	}
	pid := ""
	for {
		select {
		case report, ok := <-c.reports:
			switch {
			case !ok:
				return c.unreported()
			case report.Kind == initproc.Started:
				pid = strconv.Itoa(report.PID)
				release()
			default:
				return commandEnd(report)
			}
		case <-expired:
			release() // ending it takes a helper, which a waiting snapshot would hold up
			return answer{TimedOut: true}, s.killCommand(c, pid, s.mark(call))
		case <-ctx.Done():
			release()
			return answer{}, s.killCommand(c, pid, s.mark(call))
		}
	}
}

// delivery is a courier under way.
type delivery struct {
	cmd     *exec.Cmd
	driver  runsc.Driver
	reports chan initproc.Report // closed when there are no more
	ended   chan struct{}        // closed when the runtime's own process has ended
}

// deliver starts a courier.
func (s *supervisor) deliver(call call, request initproc.Request, files [3]*os.File) (*delivery, error) {
	encoded, steps, err := request.Encode()
	if err != nil {
		return nil, err
	}
	// A file, so that nothing of it is on a command line, of the host or in the
	// sandbox.
	if err := os.WriteFile(call.request(), encoded, 0o600); err != nil {
		return nil, err
	}
	content, err := os.Open(call.request())
	if err != nil {
		return nil, err
	}
	defer content.Close()
	if err := call.write(ociProcess{Args: []string{guest.CourierName}, Cwd: "/", Env: []string{}, Capabilities: &ociCapabilities{}}); err != nil {
		return nil, err
	}
	reports, report, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer report.Close()
	c := &delivery{driver: s.runsc, reports: make(chan initproc.Report, 2), ended: make(chan struct{})}
	c.driver.Log, c.driver.DebugLog = call.log(), ""
	// The command's stderr is handed on beside runsc's own: what runsc has to
	// say is in its log, and the command's output is the command's alone. Its
	// context is not the client's: killing this process would leave the
	// command running.
	c.cmd = c.driver.Command(context.Background(), "exec", "-process="+call.process(), "-exec-fd=3", "-pass-fd=4:2", "-pass-fd=5:3", "-pass-fd=6:4", s.config.ID)
	c.cmd.Stdin, c.cmd.Stdout = files[0], files[1]
	c.cmd.ExtraFiles = []*os.File{s.courier, files[2], content, report} // from descriptor 3
	if err := c.cmd.Start(); err != nil {
		reports.Close()
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.ended)
	}()
	go func() {
		defer reports.Close()
		defer close(c.reports)
		readReports(reports, steps, c.reports)
	}()
	return c, nil
}

// readReports reads at most two reports, which is all that there are about a
// command: that it started, and how it ended.
func readReports(from io.Reader, steps initproc.Steps, to chan<- initproc.Report) {
	for range 2 {
		report, err := readReport(from, steps)
		if err != nil {
			return
		}
		to <- report
	}
}

// commandEnd turns the last report about a command into an answer.
func commandEnd(report initproc.Report) (answer, error) {
	switch report.Kind {
	case initproc.Ended:
		return answer{ExitCode: report.ExitCode()}, nil
	case initproc.Unaccounted:
		return answer{ExitCode: killedCode}, nil
	case initproc.Undelivered:
		return answer{}, fmt.Errorf("the sandbox's init takes no commands: %w", report.Errno)
	}
	a := answer{}
	if report.Step == stepCommand {
		a.NotFound = report.Errno == unix.ENOENT || report.Errno == unix.ENOTDIR
		a.NotExecutable = !a.NotFound && report.Errno != unix.E2BIG && report.Errno != unix.ENOMEM
	}
	return a, fmt.Errorf("%s: %w", report.Step, report.Errno)
}

const (
	// killedCode is the exit code of what was killed.
	killedCode = 128 + 9
	// stepCommand is the step of a request that executes the command.
	stepCommand = "command"
)

// unreported tells why nothing was reported: the courier was killed, by what
// kills everything in the sandbox, or could not be started.
func (c *delivery) unreported() (answer, error) {
	<-c.ended
	if code := c.cmd.ProcessState.ExitCode(); code == killedCode {
		return answer{ExitCode: code}, nil
	}
	why := c.driver.LastErrors()
	if why == "" {
		why = c.cmd.ProcessState.String()
	}
	return answer{}, errors.New("the command could not be handed to the sandbox: " + why)
}

// killCommand ends a command with everything that it started and waits for
// its end.
func (s *supervisor) killCommand(c *delivery, pid, mark string) error {
	start := time.After(execStart)
	for pid == "" {
		select {
		case report, ok := <-c.reports:
			if !ok || report.Kind != initproc.Started {
				return nil // ended by itself
			}
			pid = strconv.Itoa(report.PID)
		case <-start:
			_ = c.cmd.Process.Kill()
			<-c.ended
			return errors.New("the command did not start, so it can't be ended")
		}
	}
	if err := s.killTree(pid, mark); err != nil {
		return err
	}
	select {
	case <-c.reports:
		return nil
	case <-time.After(killTime):
		_ = c.cmd.Process.Kill()
		<-c.ended
		return fmt.Errorf("process %s in the sandbox did not end", pid)
	}
}
