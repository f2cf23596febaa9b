// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package saasstub

// The store in a file, for tests in which several processes see one cloud.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// withFile runs act on the store as it is in the file, under the file's
// lock, and writes the store back.
func (s *Server) withFile(ctx context.Context, act func() error) error {
	lock, err := os.OpenFile(s.options.File+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // ends the lock
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	s.state = newState()
	content, err := os.ReadFile(s.options.File)
	if err == nil {
		err = json.Unmarshal(content, s.state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &sdk.Error{Kind: sdk.ErrUnreachable, Message: fmt.Sprintf("the store %s can't be read", s.options.File), Err: err}
	}
	if err := act(); err != nil {
		return err
	}
	if content, err = json.Marshal(s.state); err != nil {
		return err
	}
	if err := os.WriteFile(s.options.File+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(s.options.File+".new", s.options.File)
}
