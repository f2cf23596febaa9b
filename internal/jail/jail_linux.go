// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package jail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

const (
	stopSignal = syscall.SIGSTOP
	contSignal = syscall.SIGCONT
	killSignal = syscall.SIGKILL
)

// mounts makes a root usable. Its input is held open by this process: when that
// ends, however it does, so does the process that holds the namespace.
const mounts = `set -e
cd "$1"
for d in bin sbin lib lib32 lib64 libx32; do
  if [ -L "/$d" ]; then [ -L "$d" ] || ln -s "$(readlink "/$d")" "$d"
  elif [ -d "/$d" ]; then mkdir -p "$d"; mount --bind "/$d" "$d"; mount -o remount,bind,ro "$d"; fi
done
mount --bind /usr usr
mount -o remount,bind,ro usr
mount --rbind /proc proc
for n in null zero full random urandom tty; do : > "dev/$n"; mount --bind "/dev/$n" "dev/$n"; done
if [ -d /etc/alternatives ]; then mkdir -p etc/alternatives; mount --bind /etc/alternatives etc/alternatives; mount -o remount,bind,ro etc/alternatives; fi
shift
while [ $# -gt 1 ]; do mkdir -p "./$1"; mount --bind "$2" "./$1"; shift 2; done
echo ready
exec cat`

// holder is the process that keeps a jail's mount namespace.
type holder struct {
	mu    sync.Mutex
	pid   int
	input io.Closer
	done  chan struct{}
}

// start makes the namespace of a root, once.
func (h *holder) start(options Options) (pid int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pid != 0 {
		return h.pid, nil
	}
	args := []string{"--mount", "--propagation", "private"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	args = append(args, "sh", "-c", mounts, "sh", options.Dir)
	for at, dir := range options.Binds {
		args = append(args, at, dir)
	}
	// It outlives the request that starts it.
	cmd := exec.CommandContext(context.Background(), "unshare", args...)
	input, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ready := make([]byte, len("ready"))
	if _, err := io.ReadFull(output, ready); err != nil {
		_ = input.Close()
		return 0, errors.Join(fmt.Errorf("make the jail's root: %w: %s", err, said.String()), cmd.Wait())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, output) // until it ends
		_ = cmd.Wait()                     // it was told to
	}()
	h.pid, h.input, h.done = cmd.Process.Pid, input, done
	return h.pid, nil
}

func (h *holder) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pid == 0 {
		return
	}
	_ = h.input.Close() // that is what ends it
	<-h.done
	h.pid = 0
}

// Command returns a process of the jail that has not been started. It keeps
// the process id that it is started with, and goes on when whoever started it
// is gone. A program that is not there ends it with exit code 127.
func (j *Jail) Command(cwd string, argv, env []string) (*exec.Cmd, error) {
	if err := j.Open(); err != nil {
		return nil, err
	}
	pid, err := j.holder.start(j.options)
	if err != nil {
		return nil, err
	}
	enter := []string{"--target", strconv.Itoa(pid), "--mount"}
	if os.Geteuid() != 0 {
		enter = append(enter, "--user", "--preserve-credentials")
	}
	enter = append(enter, "--", "chroot", j.options.Dir, "/usr/bin/env", "-C", cwd, "--")
	cmd := exec.CommandContext(context.Background(), "nsenter", append(enter, argv...)...)
	cmd.Env = env
	// A group of its own, so that what the terminal of the server is told is
	// not told to it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, nil
}

// signal sends a signal to every process whose root is the jail's, until no
// new one is seen, for one may just be starting another.
func (j *Jail) signal(signal syscall.Signal) {
	j.mu.Lock()
	made := j.made
	j.mu.Unlock()
	root, err := os.Stat(j.options.Dir)
	if !made || err != nil {
		return
	}
	const rounds = 50
	seen := map[int]bool{}
	for range rounds {
		news := false
		for _, pid := range processesIn(root) {
			if !seen[pid] || signal == killSignal {
				news = true
				seen[pid] = true
				_ = syscall.Kill(pid, signal) // it may have ended
			}
		}
		if !news {
			return
		}
	}
}

// processesIn returns the processes whose root directory is the one given.
// Zombies have none.
func processesIn(root os.FileInfo) []int {
	names, err := filepath.Glob("/proc/[0-9]*/root")
	if err != nil {
		return nil
	}
	var found []int
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || !os.SameFile(info, root) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// Signal sends a signal to one process, which may have ended.
func Signal(pid int, signal syscall.Signal) { _ = syscall.Kill(pid, signal) } // see above

// SignalOf returns the signal that ended a process, or 0.
func SignalOf(state *os.ProcessState) syscall.Signal {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return status.Signal()
	}
	return 0
}
