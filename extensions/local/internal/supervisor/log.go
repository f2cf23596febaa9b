// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Bounded files in the sandbox's directory: the main process's output, and
// what the network policy refused.

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

// A log keeps what is newest: when a file is full it becomes the older half
// and a new one is begun.
const (
	LogName         = "main.log"
	LogLimit        = 8 << 20 // per file
	NetworkLogName  = "network.log"
	NetworkLogLimit = 1 << 20
)

// OldLog names the older half of a log.
func OldLog(name string) string { return name + ".1" }

// openLog returns the pipe end that the sandbox writes to. It is a pipe
// because a sandbox writes to a plain file at an offset of its own, over what
// others wrote.
func (s *supervisor) openLog() (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	log, err := newLog(LogName, LogLimit)
	if err != nil {
		return nil, errors.Join(err, read.Close(), write.Close())
	}
	go func() {
		defer read.Close()
		if _, err := io.Copy(log, read); err != nil {
			// A full disk must not stop the command: its output is thrown away
			// from here on.
			drain(read)
		}
	}()
	return write, nil
}

type boundedLog struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

func newLog(name string, limit int64) (*boundedLog, error) {
	l := &boundedLog{path: rootfs.PrivateSandbox + "/" + name, limit: limit}
	return l, l.open()
}

func (l *boundedLog) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	l.file, l.size = f, info.Size()
	return nil
}

func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > l.limit && l.size > 0 {
		_ = l.file.Close()
		if err := os.Rename(l.path, OldLog(l.path)); err != nil {
			return 0, err
		}
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}
