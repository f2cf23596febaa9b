// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The supervisor's life: private root, sandbox, ready, serve, end.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/egress"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// supervisor is the state of this process.
type supervisor struct {
	config    Config
	runsc     runsc.Driver
	program   *os.File // this binary, to start helpers in the sandbox from
	snapshot  *os.File // directory of the snapshot to start from
	listeners []*net.TCPListener
	courier   *os.File // what carries commands to the init
	gate      *os.File // closing it lets the main process start
	reports   *os.File // what the init says about the main process
	pid       int      // of the sandbox process
	ended     chan struct{}
	poke      chan struct{} // the record may have changed
	over      chan string   // a limit was exceeded: the reason
	room      pidsRoom
	socket    *net.UnixListener
	gateway   *egress.Gateway // nil without an allow-list
	activity  activity
	ending    atomic.Bool // the snapshot of the end is made, or was

	// Only the loop of serve uses these.
	deadline time.Time // as read last
	last     *lastSnapshot

	// unsavable is held by what a memory snapshot has to wait for, and by one
	// as a whole.
	unsavable *semaphore.Weighted

	mu     sync.Mutex // serialises pause, resume and snapshot
	calls  int64      // names call files; under callMu
	callMu sync.Mutex
}

const (
	supervisorConfigured failpoint.Point = "supervisor.configured"
	supervisorKnown      failpoint.Point = "supervisor.known"    // its name is in the sandbox's directory
	supervisorEntered    failpoint.Point = "supervisor.entered"  // it is in its private root
	supervisorBooted     failpoint.Point = "supervisor.booted"   // the sandbox runs, its command waits
	supervisorPrepared   failpoint.Point = "supervisor.prepared" // the command runs, the record does not say so
	supervisorReported   failpoint.Point = "supervisor.reported" // whoever started it knows that it is ready
)

// Main is the supervisor process. It returns its exit code.
func Main() int {
	// Nobody is there to read from us, and a client that goes away is no
	// reason to die.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	report := os.NewFile(fdReady, "ready")
	s, err := start()
	if err != nil {
		message := ready{Error: err.Error()}
		var about *AttributeError
		if errors.As(err, &about) {
			message = ready{Error: about.Message, Path: about.Path}
		}
		_ = json.NewEncoder(report).Encode(message)
		return 1
	}
	if err := json.NewEncoder(report).Encode(ready{}); err != nil {
		// Whoever asked for the sandbox is gone. It has an id, a record and a
		// deadline, so it stays until someone adopts or destroys it.
		fmt.Fprintln(os.Stderr, "nobody waits for this sandbox:", err)
	}
	report.Close()
	_ = failpoint.Hit(supervisorReported)
	s.serve()
	// The end of this process ends everything in its pid namespace.
	return 0
}

// closeInherited closes what leaked in from the program that started us, at
// or above a descriptor (a plugin's pipes keep its host waiting), and keeps
// the rest out of children.
func closeInherited(from int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd < fdConfig {
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil || strings.HasPrefix(target, "anon_inode:") {
			continue // gone with the listing, or the Go runtime's own poller
		}
		if fd >= from {
			_ = unix.Close(fd)
		} else {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

func start() (*supervisor, error) {
	self, err := self()
	if err != nil {
		return nil, err
	}
	var config Config
	pipe := os.NewFile(fdConfig, "config")
	if err := json.NewDecoder(pipe).Decode(&config); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	pipe.Close()
	inherited := fdExtra + len(config.Ports)
	if config.Start.Snapshot() {
		inherited++
	}
	if err := closeInherited(inherited); err != nil {
		return nil, fmt.Errorf("close inherited descriptors: %w", err)
	}
	// The first point connects to the crash suite, from where its socket can
	// still be reached.
	if err := failpoint.Hit(supervisorConfigured); err != nil {
		return nil, err
	}
	s := &supervisor{
		config:    config,
		ended:     make(chan struct{}),
		poke:      make(chan struct{}, 1),
		over:      make(chan string),
		unsavable: semaphore.NewWeighted(everything),
	}
	next := uintptr(fdExtra)
	if config.Start.Snapshot() {
		s.snapshot = os.NewFile(next, "snapshot")
		next++
	}
	for range config.Ports {
		file := os.NewFile(next, "port")
		listener, err := net.FileListener(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("port: %w", err)
		}
		s.listeners = append(s.listeners, listener.(*net.TCPListener))
		next++
	}
	if err := writeSelf(config.Sandbox, self); err != nil {
		return nil, err
	}
	if err := failpoint.Hit(supervisorKnown); err != nil {
		return nil, err
	}
	private := rootfs.Private{Scratch: config.Scratch, Sandbox: config.Sandbox, Program: config.Program, Image: config.Image, Resolver: config.Egress != nil}
	if err := private.Enter(); err != nil {
		return nil, err
	}
	if err := failpoint.Hit(supervisorEntered); err != nil {
		return nil, err
	}
	if s.program, err = os.Open(rootfs.PrivateProgram + "/" + ProgramName); err != nil {
		return nil, err
	}
	if err := writeGeneration(); err != nil {
		return nil, err
	}
	if s.courier, err = openCourier(); err != nil {
		return nil, err
	}
	if config.OwnNet {
		if err := loopbackUp(); err != nil {
			return nil, fmt.Errorf("bring up the loopback interface: %w", err)
		}
	}
	if config.Egress != nil {
		if err := s.openGateway(); err != nil {
			return nil, err
		}
	}
	if s.socket, err = listen(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), config.Deadline)
	defer cancel()
	if err := s.boot(ctx); err != nil {
		return nil, err
	}
	if err := failpoint.Hit(supervisorBooted); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	if err := failpoint.Hit(supervisorPrepared); err != nil {
		return nil, err
	}
	r, err := record.Update(rootfs.PrivateSandbox, config.ID, func(r *record.Record) error {
		if r.Lease.Claimed {
			return errors.New("it was claimed for destruction while it was created")
		}
		r.Status = sdk.StatusReady
		return nil
	})
	s.deadline = r.Lease.ExpiresAt
	s.activity.now = wallClock
	if config.End.Idle > 0 {
		s.activity.dir = rootfs.PrivateSandbox
		if err := os.WriteFile(record.UsedPath(rootfs.PrivateSandbox), nil, 0o600); err != nil {
			return nil, err
		}
	}
	s.activity.touch()
	return s, err
}

// self names this process as the host sees it: /proc is still the host's.
func self() (record.Process, error) {
	pid, err := os.Readlink("/proc/self")
	if err != nil {
		return record.Process{}, err
	}
	n, err := strconv.Atoi(pid)
	if err != nil {
		return record.Process{}, err
	}
	start, err := record.StartTime(pid)
	return record.Process{Pid: n, Start: start, Boot: record.BootID()}, err
}

// selfName is the file in which a supervisor leaves its name, before it does
// anything else, so that it can be killed however far it came.
const selfName = "supervisor.json"

func writeSelf(dir string, p record.Process) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	// Not synced: after a crash of the machine the process is gone as well.
	return os.WriteFile(dir+"/"+selfName, data, 0o600)
}

// loopbackUp brings lo up in our own network namespace, without a netlink
// library: the sandbox's network stack copies the interfaces that are up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// watch closes ended when the sandbox process is gone. The process was left
// to us by the runsc that started it, because we are the namespace's init.
func (s *supervisor) watch() {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(s.pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			// Not our child: it can't happen in a pid namespace of our own. The
			// safe answer is the end.
			fmt.Fprintln(os.Stderr, "wait for the sandbox:", err)
		}
		close(s.ended)
		return
	}
}

// serve runs until the deadline, the end of the sandbox, or a kill.
func (s *supervisor) serve() {
	go s.watchMain()
	go s.accept()
	go s.measure()
	for i, listener := range s.listeners {
		go s.forward(listener, s.config.Ports[i])
	}
	for {
		wait, done := s.checkEnd(wallClock())
		if done {
			return
		}
		timer := time.NewTimer(wait)
		var last chan error
		if s.last != nil {
			last = s.last.done
		}
		select {
		case <-s.ended:
			timer.Stop()
			s.recordEnd()
			return
		case reason := <-s.over:
			timer.Stop()
			s.recordExceeded(reason)
			return
		case err := <-last:
			s.lastDone(err)
		case <-s.poke:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// recordEnd notes that the sandbox ended without us.
func (s *supervisor) recordEnd() {
	_, err := record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if r.Status == sdk.StatusReady || r.Status == sdk.StatusPaused || r.Status == sdk.StatusCreating {
			r.Status, r.EndReason = sdk.StatusLost, sdk.EndGone
			r.Reason = "the sandbox process ended by itself"
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "record the end:", err)
	}
}

func drain(r io.Reader) { _, _ = io.Copy(io.Discard, r) }
