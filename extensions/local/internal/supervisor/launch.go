// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Starting a supervisor, from the side of the client.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
)

// Launch is what a supervisor is started with besides its configuration.
type Launch struct {
	Lock      *os.File // the supervisor's lock, held
	Snapshot  *os.File // directory of the snapshot to start from, or nil
	Listeners []*os.File
	UID       int // what the sandbox runs as on the host
	Join      func(pid int) error
}

// LogFile is the supervisor's own log.
const LogFile = "supervisor.log"

const (
	launchSpawned    failpoint.Point = "local.launch.spawned"    // the process is there and waits for its configuration
	launchConfigured failpoint.Point = "local.launch.configured" // it has it, and is in its control group
	launchAnswered   failpoint.Point = "local.launch.answered"
)

// Start starts a supervisor and returns when its sandbox runs. When it fails,
// nothing of it runs any more.
func Start(ctx context.Context, config Config, l Launch) error {
	logFile, err := os.OpenFile(filepath.Join(config.Sandbox, LogFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	configRead, configWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer configRead.Close()
	defer configWrite.Close()
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer readyRead.Close()
	defer readyWrite.Close()

	files := []*os.File{configRead, readyWrite, l.Lock}
	if l.Snapshot != nil {
		files = append(files, l.Snapshot)
	}
	files = append(files, l.Listeners...)
	dir := config.Sandbox
	cmd, err := spawn(&config, l.UID, logFile, files)
	if err != nil {
		return fmt.Errorf("start the supervisor: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		// While this process lives it is the parent and has to reap.
		_ = cmd.Wait()
		close(ended)
	}()
	configRead.Close()
	readyWrite.Close()

	_ = failpoint.Hit(launchSpawned)
	err = handshake(ctx, config, l, cmd.Process.Pid, configWrite, readyRead)
	if err == nil {
		return nil
	}
	_ = cmd.Process.Kill()
	<-ended
	if errors.Is(err, errSilent) {
		if end := tailOf(filepath.Join(dir, LogFile)); end != "" {
			err = fmt.Errorf("%w: %s", err, end)
		}
	}
	return err
}

// AttributeError is a start that failed because of one attribute of the
// profile.
type AttributeError struct {
	Path    string
	Message string
}

func (e *AttributeError) Error() string { return e.Path + ": " + e.Message }

// errSilent is a supervisor that died before it could say why.
var errSilent = errors.New("the supervisor ended while it started")

func handshake(ctx context.Context, config Config, l Launch, pid int, to io.WriteCloser, from *os.File) error {
	if l.Join != nil {
		// It reads its configuration first, so limits are in force before it
		// does anything.
		if err := l.Join(pid); err != nil {
			return fmt.Errorf("put the supervisor in its control group: %w", err)
		}
	}
	if err := json.NewEncoder(to).Encode(config); err != nil {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	to.Close()
	_ = failpoint.Hit(launchConfigured)
	stop := context.AfterFunc(ctx, func() { _ = from.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var message ready
	err := json.NewDecoder(io.LimitReader(from, 1<<20)).Decode(&message)
	_ = failpoint.Hit(launchAnswered)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return errSilent
	case message.Path != "":
		return &AttributeError{Path: message.Path, Message: message.Error}
	case message.Error != "":
		return errors.New(message.Error)
	}
	return nil
}

// spawn starts the process in namespaces of its own.
//
// As root the sandbox runs as an unprivileged user, who can't walk to the
// state directory. So the directories are first mounted on a short path that
// anyone may enter, in a mount namespace of this thread alone.
func spawn(config *Config, uid int, logFile *os.File, files []*os.File) (*exec.Cmd, error) {
	type result struct {
		cmd *exec.Cmd
		err error
	}
	done := make(chan result)
	go func() {
		if os.Geteuid() == 0 {
			// Never unlocked: the thread ends with the goroutine, and with it
			// the last reference to the namespace on our side.
			runtime.LockOSThread()
			if err := expose(config); err != nil {
				done <- result{err: err}
				return
			}
		}
		cmd := command(*config, uid, logFile, files)
		err := cmd.Start()
		done <- result{cmd, err}
	}()
	r := <-done
	return r.cmd, r.err
}

func command(config Config, uid int, logFile *os.File, files []*os.File) *exec.Cmd {
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if config.OwnNet {
		flags |= unix.CLONE_NEWNET
	}
	root := os.Geteuid() == 0
	cmd := exec.Command(filepath.Join(config.Program, ProgramName)) //nolint:noctx // the supervisor outlives whoever starts it
	cmd.Args = []string{Argv0, config.ID}
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, failpoint.Environ()...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:                     true,
		Cloneflags:                 flags,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: gidFor(uid), Size: 1}},
		GidMappingsEnableSetgroups: root,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !root},
	}
	return cmd
}

// gidFor returns the group to map: our own, or as root the user's number.
func gidFor(uid int) int {
	if os.Geteuid() == 0 {
		return uid
	}
	return os.Getegid()
}

// exposed is where the directories are mounted for an unprivileged user. It
// has to exist on every host.
const exposed = "/tmp"

// expose mounts what the supervisor needs below a short path, in a mount
// namespace of the calling thread, and points the configuration there.
func expose(config *Config) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare the mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", config.Scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", config.Scratch, err)
	}
	base := config.Scratch
	move := func(path *string, name string, file bool) error {
		if *path == "" {
			return nil
		}
		target := filepath.Join(base, name)
		var err error
		if file {
			err = os.WriteFile(target, nil, 0o644)
		} else {
			err = os.Mkdir(target, 0o755)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(*path, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", *path, err)
		}
		*path = filepath.Join(exposed, name)
		return nil
	}
	if err := move(&config.Sandbox, "s", false); err != nil {
		return err
	}
	if err := move(&config.Program, "p", false); err != nil {
		return err
	}
	if err := move(&config.Image, "i", true); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(base, "m"), 0o755); err != nil {
		return err
	}
	config.Scratch = filepath.Join(exposed, "m")
	if err := unix.Mount(base, exposed, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the mount to %s: %w", exposed, err)
	}
	return nil
}

func tailOf(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, 1<<20))
	if len(data) > 1024 {
		data = data[len(data)-1024:]
	}
	return strings.TrimSpace(string(bytes.ToValidUTF8(data, nil)))
}
