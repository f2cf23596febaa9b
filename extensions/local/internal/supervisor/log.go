// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The main process's output: a bounded file in the sandbox's directory.

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

// The log keeps the newest output: when a file is full it becomes the older
// half and a new one is begun.
const (
	LogName    = "main.log"
	OldLogName = "main.log.1"
	LogLimit   = 8 << 20 // per file
)

// openLog returns the pipe end that the sandbox writes to. It is a pipe
// because a sandbox writes to a plain file at an offset of its own, over what
// others wrote.
func (s *supervisor) openLog() (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	log := &boundedLog{dir: rootfs.PrivateSandbox, limit: LogLimit}
	if err := log.open(); err != nil {
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
	dir   string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

func (l *boundedLog) open() error {
	f, err := os.OpenFile(l.dir+"/"+LogName, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
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
		if err := os.Rename(l.dir+"/"+LogName, l.dir+"/"+OldLogName); err != nil {
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
