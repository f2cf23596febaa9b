// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Standard streams of a command in a sandbox: pipes only, because what a
// sandbox writes to a plain file lands at an offset of its own.

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// After a command ended, what it left in the background may hold its streams
// open for ever. What the command itself wrote is in the pipe by then, so the
// pipe is read until it is empty for a moment, and not beyond what a pipe can
// hold.
const (
	idleAfterExit = 50 * time.Millisecond
	mostAfterExit = 1 << 20
)

// streamed runs call with pipes for the standard streams.
func streamed(stdin io.Reader, stdout, stderr io.Writer, call func([3]*os.File) error) error {
	var streams [3]*os.File
	var ours []*os.File
	defer func() {
		for _, f := range ours {
			f.Close()
		}
	}()
	if err := openStreams(&streams, &ours, stdin, stdout, stderr); err != nil {
		closeFiles(streams)
		return err
	}
	if stdin != nil {
		write := ours[0]
		// Not waited for: the source may never end. Writing to a pipe whose
		// reader is gone fails.
		go func() {
			_, _ = io.Copy(write, stdin)
			write.Close()
		}()
	}
	reads := ours
	if stdin != nil {
		reads = ours[1:]
	}
	var outputs []*output
	for _, w := range []io.Writer{stdout, stderr} {
		if w != nil {
			outputs = append(outputs, &output{to: w, from: reads[len(outputs)]})
		}
	}
	var copies sync.WaitGroup
	for _, o := range outputs {
		copies.Go(o.copy)
	}
	err := call(streams)
	closeFiles(streams) // for a call that never got to hand them over
	for _, o := range outputs {
		_ = o.from.SetReadDeadline(time.Unix(1, 0)) // wakes the copy: see output
	}
	copies.Wait()
	for _, o := range outputs {
		err = errors.Join(err, o.err)
	}
	return err
}

func openStreams(streams *[3]*os.File, ours *[]*os.File, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	if stdin == nil {
		streams[0], err = os.Open(os.DevNull)
	} else {
		var write *os.File
		if streams[0], write, err = os.Pipe(); err == nil {
			*ours = append(*ours, write)
		}
	}
	for i, w := range []io.Writer{stdout, stderr} {
		if err != nil {
			return err
		}
		if w == nil {
			streams[i+1], err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			continue
		}
		var read *os.File
		if read, streams[i+1], err = os.Pipe(); err == nil {
			*ours = append(*ours, read)
		}
	}
	return err
}

func closeFiles(files [3]*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// output copies one stream.
type output struct {
	to   io.Writer
	from *os.File
	err  error
}

func (o *output) copy() {
	buf := make([]byte, 64<<10)
	exited, after := false, 0
	for after < mostAfterExit {
		n, err := o.from.Read(buf)
		if n > 0 && o.err == nil {
			// A reader that failed must not block the command: the rest is read
			// and thrown away.
			_, o.err = o.to.Write(buf[:n])
		}
		if exited {
			after += n
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !exited:
			exited = true
		case err != nil:
			return
		}
		if exited {
			_ = o.from.SetReadDeadline(time.Now().Add(idleAfterExit))
		}
	}
}
