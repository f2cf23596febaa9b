// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// A sandbox's logs, read from the files that its supervisor writes.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Logs implements [sdk.Logger].
func (e *Extension) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	r, dir, err := e.read(opts.Target)
	if err != nil {
		return sdk.LogsResult{}, err
	}
	name := supervisor.LogName
	switch opts.Source {
	case sdk.LogMain:
	case sdk.LogNetwork:
		if name = supervisor.NetworkLogName; r.Profile.Network == nil || len(r.Profile.Network.Allow) == 0 {
			return sdk.LogsResult{}, sdk.Unsupported("network", "%s has no network.allow, so there is nobody who could note what is refused", named(r.ID))
		}
	default:
		return sdk.LogsResult{}, sdk.Unsupported("source", "there is no log %q", clip(string(opts.Source)))
	}
	if opts.Output == nil {
		return sdk.LogsResult{}, sdk.Invalid("output", "there is none")
	}
	f, kept, err := readLog(filepath.Join(dir, name))
	if err != nil {
		return sdk.LogsResult{}, err
	}
	defer func() { f.Close() }()
	n, err := opts.Output.Write(lastLines(kept, opts.Tail))
	total := int64(n)
	if err != nil || !opts.Follow {
		return sdk.LogsResult{Bytes: total}, err
	}
	for {
		// Looked at before the read: what was written by then is read.
		alive := record.SupervisorAlive(dir)
		n, err := io.Copy(opts.Output, f)
		total += n
		if err != nil {
			return sdk.LogsResult{Bytes: total}, err
		}
		if now, err := openLog(filepath.Join(dir, name)); err == nil {
			if sameFile(f, now) {
				now.Close()
			} else {
				f.Close()
				f = now
				continue
			}
		}
		if !alive {
			return sdk.LogsResult{Bytes: total}, nil
		}
		select {
		case <-ctx.Done():
			return sdk.LogsResult{Bytes: total}, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readLog returns what is kept, and the current file at its end.
func readLog(path string) (*os.File, []byte, error) {
	var kept bytes.Buffer
	if old, err := openLog(supervisor.OldLog(path)); err == nil {
		_, _ = io.Copy(&kept, io.LimitReader(old, supervisor.LogLimit))
		old.Close()
	}
	f, err := openLog(path)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.Open(os.DevNull) // it never got to start
	}
	if err != nil {
		return nil, nil, err
	}
	if _, err := io.Copy(&kept, io.LimitReader(f, 2*supervisor.LogLimit)); err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, kept.Bytes(), nil
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

func lastLines(text []byte, lines int) []byte {
	if lines <= 0 {
		return text
	}
	end := len(text)
	if end > 0 && text[end-1] == '\n' {
		end--
	}
	for range lines {
		i := bytes.LastIndexByte(text[:end], '\n')
		if i < 0 {
			return text
		}
		end = i
	}
	return text[end+1:]
}
