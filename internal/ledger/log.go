// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

// One log: locked, read, appended to, quarantined.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Append adds one event to a log. It calls decide with what the log says now,
// and nothing else is appended to that log, by any process, until Append
// returns: a compare-and-swap. An event without a type appends nothing; an
// error of decide is returned as it is. decide must not wait for anything.
//
// When Append returns without an error the event is durable; the event is as
// written, and the record is the log with it. The record is also returned
// when decide declined.
//
// Errors: [sdk.ErrInvalid] for an id or an event that can't be recorded,
// [*BrokenError] (a second call then begins a new log), [*NewerError],
// [ErrFull], [ErrBusy], or what the file system says; the log is as before.
func (l *Ledger) Append(ctx context.Context, id string, decide func(present Record) (Event, error)) (Event, Record, error) {
	if err := checkID(id); err != nil {
		return Event{}, Record{}, err
	}
	ledgerID, err := l.ID()
	if err != nil {
		return Event{}, Record{}, fmt.Errorf("ledger: %w", err)
	}
	var appended Event
	var record Record
	err = l.withLog(ctx, id, true, func(log *os.File) error {
		events, good, err := l.check(id, log)
		if err != nil {
			return err
		}
		record = l.fold(id, events)
		defer func() {
			if !record.Known() {
				// Made by this call or by one that was killed. Left behind it
				// would be an empty log, which does no harm.
				_ = l.remove(log)
			}
		}()
		e, err := decide(record)
		if err != nil || e.Type == "" {
			return err
		}
		e.LedgerID, e.ID, e.Sequence, e.PrevHash = ledgerID, id, record.Sequence+1, record.Hash
		e.Time = l.clock.Now().UTC().Round(0)
		if appended, err = l.write(log, int64(good), e); err != nil {
			return err
		}
		record = record.fold(appended)
		return nil
	})
	return appended, record, err
}

const (
	appendBegun   failpoint.Point = "ledger.append.begun" // locked, checked, decided
	appendWritten failpoint.Point = "ledger.append.written"
	appendSynced  failpoint.Point = "ledger.append.synced"
)

// write puts an event at the end of a log, durably, or leaves the log as it
// was.
func (l *Ledger) write(log *os.File, end int64, e Event) (Event, error) {
	switch {
	case !e.Type.valid():
		return Event{}, sdk.Invalid("type", "%.40q is not a type of event", string(e.Type))
	case e.Type == Intended && e.Sequence > 1:
		return Event{}, sdk.Errorf(sdk.ErrConflict, "%s already has a log", e.ID)
	}
	line, err := encodeLine(e)
	if err != nil {
		return Event{}, err
	}
	// What is returned is what a reader will get.
	if e, err = parseLine(line[:len(line)-1]); err != nil {
		return Event{}, sdk.Invalid("event", "it can't be read back: %s", err)
	}
	limit := int64(maxLog)
	if e.Type.closing() {
		limit = maxLogClosing
	}
	if end+int64(len(line)) > limit {
		return Event{}, fmt.Errorf("%s: %w (%d bytes)", log.Name(), ErrFull, end)
	}
	err = failpoint.Hit(appendBegun)
	if err == nil {
		err = log.Truncate(end) // a torn line of someone who was killed
	}
	if err == nil {
		_, err = log.WriteAt(line, end)
	}
	if err == nil {
		err = failpoint.Hit(appendWritten)
	}
	if err == nil {
		err = log.Sync()
	}
	if err == nil && e.Sequence == 1 {
		err = l.syncParents(log.Name())
	}
	if err == nil {
		err = failpoint.Hit(appendSynced)
	}
	if err != nil {
		// A full disk must not leave half a line. Should this fail as well,
		// the next append cuts the half off.
		return Event{}, errors.Join(err, log.Truncate(end))
	}
	return e, nil
}

// Get returns what the log of an id says; a record that is not [Record.Known]
// when there is none. An event whose append has not returned may be in it.
//
// Errors: [sdk.ErrInvalid], [*BrokenError], [*NewerError], [ErrBusy], or what
// the file system says.
func (l *Ledger) Get(ctx context.Context, id string) (Record, error) {
	if err := checkID(id); err != nil {
		return Record{}, err
	}
	events, err := l.read(ctx, id)
	return l.fold(id, events), err
}

// Events returns the events of an id in their order, none when there is no
// log. All of them are durable. Errors are those of [Ledger.Get].
func (l *Ledger) Events(ctx context.Context, id string) ([]Event, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	return l.readLocked(ctx, id)
}

func (l *Ledger) fold(id string, events []Event) Record {
	if len(events) == 0 {
		return Record{ID: id, Kind: kindOf(id)}
	}
	return Fold(events)
}

// read reads a log without its lock: a line in flight is seen as torn and
// left out. What looks broken may be a race with an append that cuts a torn
// line off, so that verdict is left to readLocked.
func (l *Ledger) read(ctx context.Context, id string) ([]Event, error) {
	log, err := os.Open(l.logPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer log.Close()
	content, err := readBounded(log)
	if err == nil {
		var events []Event
		if events, _, err = scan(id, content); err == nil {
			return events, nil
		}
	}
	return l.readLocked(ctx, id)
}

func (l *Ledger) readLocked(ctx context.Context, id string) ([]Event, error) {
	var events []Event
	err := l.withLog(ctx, id, false, func(log *os.File) error {
		var err error
		events, _, err = l.check(id, log)
		if err == nil && len(events) > 0 {
			// The writer of the last line may have been killed before its fsync.
			err = log.Sync()
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return events, err
}

// check reads a log under its lock and quarantines it when it is broken.
func (l *Ledger) check(id string, log *os.File) ([]Event, int, error) {
	content, err := readBounded(log)
	var events []Event
	good := 0
	if err == nil {
		events, good, err = scan(id, content)
	}
	var newer newerVersion
	var failed *fs.PathError
	switch {
	case err == nil:
		return events, good, nil
	case errors.As(err, &newer):
		return nil, 0, &NewerError{ID: id, Version: int(newer)}
	case errors.As(err, &failed):
		return nil, 0, err // the disk, not the log
	}
	return nil, 0, l.quarantine(id, log, err.Error())
}

// readBounded reads a log of at most the size that this package writes.
func readBounded(log *os.File) ([]byte, error) {
	info, err := log.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxLogClosing+maxLine {
		return nil, fmt.Errorf("%d bytes are more than a log has", info.Size())
	}
	// One byte more than expected: the end is seen without growing.
	content := make([]byte, info.Size()+1)
	n, err := log.ReadAt(content, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return content[:min(int64(n), info.Size())], nil
}

// withLog runs act with the log of an id open and locked. The lock is on the
// file itself, so after taking it the file must still be the one that has
// the name: prune and quarantine take names away.
func (l *Ledger) withLog(ctx context.Context, id string, create bool, act func(log *os.File) error) error {
	leave, err := l.gate.enter(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, lockPatience, ErrBusy)
	defer cancel()
	name := l.logPath(id)
	for {
		flags := os.O_RDWR
		if create {
			if err := makeDirs(filepath.Dir(name)); err != nil {
				return err
			}
			flags |= os.O_CREATE
		}
		log, err := os.OpenFile(name, flags, 0o600)
		if err != nil {
			return err
		}
		if err := lockFile(ctx, log); err != nil {
			_ = log.Close()
			return fmt.Errorf("lock %s: %w", name, err)
		}
		if same(log, name) {
			// What was written has been synced: closing can lose nothing.
			defer log.Close()
			return act(log)
		}
		_ = log.Close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// same reports whether an open file still has its name.
func same(f *os.File, name string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(name)
	return err == nil && os.SameFile(opened, named)
}

// quarantine takes a broken log, whose lock is held, out of the way. The
// reason's file is made first and reserves the number.
func (l *Ledger) quarantine(id string, log *os.File, reason string) *BrokenError {
	broken := &BrokenError{ID: id, Path: log.Name(), Reason: reason}
	dir := filepath.Join(l.dir, "quarantine")
	if broken.NotMoved = makeDirs(dir); broken.NotMoved != nil {
		return broken
	}
	for number := 1; ; number++ {
		base := filepath.Join(dir, fmt.Sprintf("%s.%d", id, number))
		note, err := os.OpenFile(base+reasonSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			_, err = note.WriteString(l.clock.Now().UTC().Format(time.RFC3339) + " " + reason + "\n")
			err = errors.Join(err, note.Close())
		}
		if runtime.GOOS == "windows" {
			_ = log.Close() // an open file has no other name there
		}
		if err == nil {
			err = os.Rename(broken.Path, base+logSuffix)
		}
		if err != nil {
			broken.NotMoved = err
			return broken
		}
		// Should the move not survive a power failure, it is made again.
		_ = errors.Join(syncDir(dir), syncDir(filepath.Dir(broken.Path)))
		broken.Path = base + logSuffix
		return broken
	}
}

// remove takes away a log whose lock is held.
func (l *Ledger) remove(log *os.File) error {
	if runtime.GOOS == "windows" {
		_ = log.Close()
	}
	if err := os.Remove(log.Name()); err != nil {
		return err
	}
	return syncDir(filepath.Dir(log.Name()))
}

// syncParents makes the name of a new log durable, and those of its folders.
func (l *Ledger) syncParents(name string) error {
	shard := filepath.Dir(name)
	return errors.Join(syncDir(shard), syncDir(filepath.Dir(shard)), syncDir(l.dir))
}
