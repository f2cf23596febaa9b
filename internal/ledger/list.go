// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

// All logs: listed, and pruned after their end.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const reasonSuffix = ".reason"

// Unreadable is a log that [Ledger.List] could not tell about.
type Unreadable struct {
	ID          string
	Path        string // where it is
	Reason      string
	Quarantined bool  // it is broken and has been moved away, now or earlier
	Err         error // what was met now; nil for one that was quarantined earlier
}

// List returns the records that a filter selects, by id and so by creation
// time, and the logs that could not be read, whatever the filter. A single
// log is never the reason for an error.
func (l *Ledger) List(ctx context.Context, filter Filter) ([]Record, []Unreadable, error) {
	ids, err := l.ids()
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var records []Record
	var unreadable []Unreadable
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0))
	for part := range slices.Chunk(ids, 64) {
		group.Go(func() error {
			var found []Record
			var failed []Unreadable
			for _, id := range part {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				events, err := l.read(ctx, id)
				var broken *BrokenError
				switch {
				case err == nil:
					if r := l.fold(id, events); r.Known() && filter.match(r) {
						found = append(found, r)
					}
				case errors.As(err, &broken) && broken.NotMoved == nil:
					// The listing of the quarantine has it.
				default:
					failed = append(failed, Unreadable{ID: id, Path: l.logPath(id), Reason: err.Error(), Err: err})
				}
			}
			mu.Lock()
			defer mu.Unlock()
			records, unreadable = append(records, found...), append(unreadable, failed...)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	quarantined, err := l.quarantined()
	if err != nil {
		return nil, nil, err
	}
	unreadable = append(unreadable, quarantined...)
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(unreadable, func(a, b Unreadable) int { return strings.Compare(a.Path, b.Path) })
	return records, unreadable, nil
}

// ids returns the ids that have a log.
func (l *Ledger) ids() ([]string, error) {
	shards, err := readDir(filepath.Join(l.dir, "logs"))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, shard := range shards {
		if !shard.IsDir() {
			continue
		}
		entries, err := readDir(filepath.Join(l.dir, "logs", shard.Name()))
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			// Only the file that an append would use: nothing is listed twice.
			id, ok := strings.CutSuffix(entry.Name(), logSuffix)
			if ok && entry.Type().IsRegular() && checkID(id) == nil && strings.HasSuffix(id, shard.Name()) {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// quarantined returns what is in quarantine, until someone takes it away.
func (l *Ledger) quarantined() ([]Unreadable, error) {
	dir := filepath.Join(l.dir, "quarantine")
	entries, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	var found []Unreadable
	for _, entry := range entries {
		base, ok := strings.CutSuffix(entry.Name(), logSuffix)
		if !ok {
			continue
		}
		id, _, _ := strings.Cut(base, ".")
		reason := "it was quarantined earlier; no reason is on record"
		if note, err := os.ReadFile(filepath.Join(dir, base+reasonSuffix)); err == nil && len(note) > 0 {
			reason = strings.TrimSpace(string(note[:min(len(note), maxMessage)]))
		}
		found = append(found, Unreadable{ID: id, Path: filepath.Join(dir, entry.Name()), Reason: reason, Quarantined: true})
	}
	return found, nil
}

// readDir is [os.ReadDir] where a missing directory is an empty one.
func readDir(name string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// Prune removes the logs that were closed longer ago than olderThan, and
// returns how many. A log that can't be removed does not stop it; the errors
// come joined.
func (l *Ledger) Prune(ctx context.Context, olderThan time.Duration) (int, error) {
	records, _, err := l.List(ctx, Filter{})
	if err != nil {
		return 0, err
	}
	before := l.clock.Now().Add(-olderThan)
	due := func(r Record) bool { return r.Known() && !r.Open && r.ClosedAt.Before(before) }
	pruned := 0
	var failures []error
	for _, r := range records {
		if !due(r) {
			continue
		}
		if ctx.Err() != nil {
			return pruned, errors.Join(append(failures, context.Cause(ctx))...)
		}
		err := l.withLog(ctx, r.ID, false, func(log *os.File) error {
			// It may have been reopened since it was listed.
			events, _, err := l.check(r.ID, log)
			if err != nil || !due(l.fold(r.ID, events)) {
				return err
			}
			pruned++
			return l.remove(log)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, fmt.Errorf("prune %s: %w", r.ID, err))
		}
	}
	return pruned, errors.Join(failures...)
}
