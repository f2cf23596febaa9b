// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Helpers in the sandbox: this binary, started there by the runtime.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
)

// Deadlines of what surrounds a command; a command itself may take as long
// as its timeout says.
const (
	execStart = 15 * time.Second
	killTime  = 10 * time.Second
	shortCall = 20 * time.Second
)

// call is the set of files of one call to runsc.
type call string

func (s *supervisor) newCall() call {
	s.callMu.Lock()
	defer s.callMu.Unlock()
	s.calls++
	return call(rootfs.PrivateCalls + "/" + strconv.FormatInt(s.calls, 10))
}

func (c call) process() string { return string(c) + ".json" }
func (c call) pid() string     { return string(c) + ".pid" }
func (c call) log() string     { return string(c) + ".log" }
func (c call) request() string { return string(c) + ".request" }

// mark is not that of another call, nor of one that the source of a snapshot
// has served.
func (s *supervisor) mark(c call) string { return s.config.ID + "." + filepath.Base(string(c)) }

func (c call) write(p ociProcess) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	// A file, so that neither environment nor arguments are on a command line
	// that the host's users can read.
	return os.WriteFile(c.process(), data, 0o600)
}

func (c call) remove() {
	for _, path := range []string{c.process(), c.pid(), c.log(), c.request()} {
		_ = os.Remove(path)
	}
}

// execHelper runs one of our own helpers with a client's streams.
func (s *supervisor) execHelper(ctx context.Context, args []string, files [3]*os.File) (answer, error) {
	leave := s.makeRoom(ctx, helperPids)
	defer leave()
	process := s.helperProcess(args)
	if err := s.unsavable.Acquire(ctx, 1); err != nil {
		return answer{}, err
	}
	release := sync.OnceFunc(func() { s.unsavable.Release(1) })
	defer release()
	call := s.newCall()
	defer call.remove()
	process.Env = append(process.Env, guest.MarkVariable+"="+s.mark(call))
	if err := call.write(process); err != nil {
		return answer{}, err
	}
	driver := s.runsc
	driver.Log, driver.DebugLog = call.log(), ""
	// The command's stderr is handed on beside runsc's own: what runsc has to
	// say is in its log, and the command's output is the command's alone.
	// Its context is not the client's: killing this process would leave the
	// one in the sandbox running.
	cmd := driver.Command(context.Background(), "exec", "-process="+call.process(), "-internal-pid-file="+call.pid(),
		"-exec-fd=3", "-pass-fd=4:2", s.config.ID)
	cmd.Stdin, cmd.Stdout = files[0], files[1]
	cmd.ExtraFiles = []*os.File{s.program, files[2]} // descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		return answer{}, err
	}
	// The reader of a stream waits for the last copy of its other end.
	closeAll(files[:])
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	select {
	case err := <-ended:
		return s.outcome(call, driver, cmd, err)
	case <-ctx.Done():
	}
	release() // ending it takes a helper, which a waiting snapshot would hold up
	return answer{}, s.killHelper(call, cmd, ended)
}

// helperProcess describes a helper: the sandbox's root with rights beyond a
// command's, except for the one that looks, which is no more than a command.
func (s *supervisor) helperProcess(args []string) ociProcess {
	process := ociProcess{
		Args: append([]string{guest.Argv0}, args...), Cwd: "/", Env: []string{"PATH=" + defaultPath}, Capabilities: allCapabilities(),
	}
	if len(args) == 0 || args[0] != guest.Look {
		return process
	}
	main := s.config.Process
	process.User, process.Env = ociUser{UID: main.UID, GID: main.GID, Groups: main.Groups}, slices.Clone(main.Env)
	process.Capabilities = rootCapabilities()
	if main.UID != 0 {
		process.Capabilities = &ociCapabilities{Bounding: containerCapabilities}
	}
	return process
}

// outcome tells a helper that failed from one that could not be started.
func (s *supervisor) outcome(call call, driver runsc.Driver, cmd *exec.Cmd, err error) (answer, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return answer{}, err
	}
	code := cmd.ProcessState.ExitCode()
	if code == -1 {
		return answer{}, fmt.Errorf("runsc exec ended by a signal: %w", err)
	}
	if code != runsc.FailureCode {
		return answer{ExitCode: code}, nil
	}
	if _, err := os.Stat(call.pid()); err == nil {
		return answer{ExitCode: code}, nil // the helper's own 128
	}
	return answer{}, errors.New(driver.LastErrors())
}

// killHelper ends a helper and waits for its end.
func (s *supervisor) killHelper(call call, cmd *exec.Cmd, ended <-chan error) error {
	deadline := time.After(execStart)
	var pid string
	// The pid file appears when the helper has started. There is no event for
	// it that could not be missed, so look until it is there.
	for pid == "" {
		if data, err := os.ReadFile(call.pid()); err == nil {
			pid = strings.TrimSpace(string(data))
		}
		if pid != "" {
			break
		}
		select {
		case <-ended:
			return nil
		case <-deadline:
			_ = cmd.Process.Kill()
			<-ended
			return errors.New("the helper did not start, so it can't be ended")
		case <-time.After(2 * time.Millisecond):
		}
	}
	if err := s.killTree(pid, s.mark(call)); err != nil {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-time.After(killTime):
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("process %s in the sandbox did not end", pid)
	}
}

// killTree ends a process in the sandbox and everything that it started.
func (s *supervisor) killTree(pid, mark string) error {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	_, err := s.helper(ctx, killTime, nil, "kill", pid, mark)
	if err == nil {
		return nil
	}
	// No memory for a helper, for one: the process itself at least.
	if err2 := s.runsc.Run(ctx, killTime, "kill", "-pid="+pid, s.config.ID, "KILL"); err2 != nil {
		return errors.Join(err, err2)
	}
	return nil
}

// user resolves a user in the sandbox's own database.
func (s *supervisor) user(ctx context.Context, name string) (ociUser, error) {
	p := s.config.Process
	if name == "" {
		return ociUser{UID: p.UID, GID: p.GID, Groups: p.Groups}, nil
	}
	if user, ok := numericUser(name); ok {
		return user, nil
	}
	if name == "root" {
		return ociUser{}, nil
	}
	out, err := s.helper(ctx, shortCall, nil, "user", name)
	if err != nil {
		return ociUser{}, fmt.Errorf("user %q: %w", name, err)
	}
	var user guest.User
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&user); err != nil {
		return ociUser{}, fmt.Errorf("user %q: %w", name, err)
	}
	return ociUser{UID: user.UID, GID: user.GID, Groups: user.Groups}, nil
}

// numericUser reads uid or uid:gid. A uid alone has itself as its group.
func numericUser(name string) (ociUser, bool) {
	uidText, gidText, both := strings.Cut(name, ":")
	uid, err := strconv.ParseUint(uidText, 10, 32)
	if err != nil {
		return ociUser{}, false
	}
	gid := uid
	if both {
		if gid, err = strconv.ParseUint(gidText, 10, 32); err != nil {
			return ociUser{}, false
		}
	}
	return ociUser{UID: uint32(uid), GID: uint32(gid)}, true
}
