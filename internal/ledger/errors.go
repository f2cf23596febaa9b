// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"errors"
	"fmt"
)

var (
	// ErrBusy is returned when another process held a log for longer than
	// an append can take; it was stopped or is stuck.
	ErrBusy = errors.New("another process holds the log")
	// ErrFull is returned for a log that has reached its size limit. It
	// still takes the events that end a life.
	ErrFull = errors.New("the log is full")
)

// BrokenError says that a log failed its check. It has been moved to
// quarantine, unless that failed too; then NotMoved says why. After the move
// the id has no log, and the next append begins a new one.
type BrokenError struct {
	ID       string
	Path     string // where the log is now
	Reason   string // what is wrong with it, and where
	NotMoved error
}

// Error names the log, the fault and the place.
func (e *BrokenError) Error() string {
	if e.NotMoved != nil {
		return fmt.Sprintf("the log %s is broken: %s; it could not be moved to quarantine: %s", e.Path, e.Reason, e.NotMoved)
	}
	return fmt.Sprintf("the log of %s was broken (%s) and has been moved to %s", e.ID, e.Reason, e.Path)
}

// Unwrap returns why the log could not be moved.
func (e *BrokenError) Unwrap() error { return e.NotMoved }

// NewerError says that a newer version of sandboxer wrote a log. The log is
// left alone.
type NewerError struct {
	ID      string
	Version int // format version of the first line that is not understood
}

// Error names the log and the two versions.
func (e *NewerError) Error() string {
	return fmt.Sprintf("the log of %s is in format %d, this version reads up to %d; use the newer sandboxer", e.ID, e.Version, formatVersion)
}
