// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The snapshot of the end. The time that it takes is reserved before the end,
// which it never delays. From its beginning the sandbox stands still, so that
// nothing that it does is lost; an extend that comes in time lets it go on and
// throws the snapshot away.
//
// It is written into the sandbox's own directory, which is all that this
// process can reach: first under the name of something unfinished, under its
// own when it is whole and on disk, and then the record says so. A client
// moves it to the other snapshots when the sandbox is over.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/snapshot"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// ExpiryName is the snapshot of the end in a sandbox's directory.
	ExpiryName    = "expiry"
	expiryPartial = ExpiryName + ".partial"

	// What is reserved for it: a fixed part, and the size of the writable
	// layer at a rate that a slow disk has.
	expiryFixed = 5 * time.Second
	expiryRate  = 48 << 20 // bytes per second

	maxExpiryError = 500
)

// lastSnapshot is the snapshot of the end while it is made and after.
type lastSnapshot struct {
	end      time.Time // that it was begun for
	why      sdk.EndReason
	paused   bool // the sandbox stood still before
	cancel   context.CancelFunc
	done     chan error
	stopped  bool // it was made to stand still; to be read once done has said how it went
	over     bool // done has said how it went
	unwanted bool // the sandbox goes on
	err      error
}

// reserve is how long before the end its snapshot begins: never in the first
// half of a life.
func (s *supervisor) reserve(r record.Record, end time.Time) time.Duration {
	half := end.Sub(r.CreatedAt) / 2
	if idle := s.config.End.Idle; idle > 0 {
		half = min(half, idle/2)
	}
	size := time.Duration(float64(writable()) / expiryRate * float64(time.Second))
	return max(0, min(expiryFixed+size, half))
}

// writable returns how much of the disk the sandbox's writable layer takes.
func writable() (bytes int64) {
	entries, err := os.ReadDir(rootfs.PrivateSandbox)
	if err != nil {
		return 0
	}
	for _, entry := range entries {
		var info unix.Stat_t
		if strings.HasPrefix(entry.Name(), ".gvisor.filestore") && unix.Lstat(filepath.Join(rootfs.PrivateSandbox, entry.Name()), &info) == nil {
			bytes += info.Blocks * 512
		}
	}
	return bytes
}

// checkLast begins the snapshot of the end when its time has come, and
// gives it up when the end has moved. It returns how long nothing is due.
func (s *supervisor) checkLast(r record.Record, now, end time.Time, why sdk.EndReason) time.Duration {
	if s.config.End.OnExpiry != sdk.OnExpirySnapshot {
		return maxSleep
	}
	if s.last != nil {
		if end.After(s.last.end) && !s.last.unwanted {
			s.last.unwanted = true
			s.last.cancel()
			if s.last.over {
				s.goOn()
			}
		}
		return maxSleep
	}
	if begin := end.Add(-s.reserve(r, end)); now.Before(begin) {
		return untilCheck(now, begin)
	}
	if why == sdk.EndIdle {
		// Not quite idle for long enough: the rest is what is reserved.
		if !s.activity.stop(s.config.End.Idle - end.Sub(now)) {
			return 0
		}
	} else {
		s.activity.stop(0)
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	s.last = &lastSnapshot{end: end, why: why, paused: r.Status == sdk.StatusPaused, cancel: cancel, done: make(chan error, 1)}
	s.ending.Store(true)
	s.note(func(r *record.Record) {
		r.Status, r.EndReason = sdk.StatusPaused, why
		r.Reason = "its last snapshot is being made; it ends at " + end.UTC().Format(time.RFC3339)
	})
	x := s.last
	go func() { x.done <- s.makeLast(ctx, x) }()
	return maxSleep
}

// makeLast stops the sandbox and writes the snapshot.
func (s *supervisor) makeLast(ctx context.Context, x *lastSnapshot) error {
	if !s.lock(ctx) {
		return errors.New("another snapshot was being made")
	}
	defer s.mu.Unlock()
	if !x.paused {
		// Its context is not this one's: whether it stands still must be known.
		if err := s.runsc.Run(context.Background(), shortCall, "pause", s.config.ID); err != nil {
			return err
		}
		x.stopped = true
	}
	partial := filepath.Join(rootfs.PrivateSandbox, expiryPartial)
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.Mkdir(partial, 0o700); err != nil {
		return err
	}
	dir, err := os.Open(partial)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.writeContent(ctx, sdk.SnapshotFilesystem, dir); err != nil {
		return err
	}
	m := s.config.End.Snapshot
	if m.Files, err = snapshot.Seal(partial); err != nil {
		return err
	}
	m.CreatedAt = wallClock().UTC()
	m.ExpiresAt = m.CreatedAt.Add(s.config.End.Keep)
	m.Identity.CreatedAt = m.CreatedAt
	m.Network, m.Gateway, m.Process = s.config.Network, s.gateway != nil, s.config.Process
	return errors.Join(snapshot.Write(partial, m), ctx.Err())
}

// lastDone takes over how the snapshot went.
func (s *supervisor) lastDone(err error) {
	x := s.last
	x.over = true
	x.cancel()
	if x.unwanted {
		s.goOn()
		return
	}
	if err == nil {
		err = os.Rename(filepath.Join(rootfs.PrivateSandbox, expiryPartial), filepath.Join(rootfs.PrivateSandbox, ExpiryName))
	}
	if err == nil {
		err = record.SyncDir(rootfs.PrivateSandbox)
	}
	x.err = err
	s.note(func(r *record.Record) {
		if err != nil {
			r.ExpirySnapshotError = clipError(err)
			return
		}
		r.ExpirySnapshotID = s.config.End.Snapshot.ID
		r.Reason = "its last snapshot is made; it ends at " + x.end.UTC().Format(time.RFC3339)
	})
}

// goOn lets a sandbox run again whose end has moved.
func (s *supervisor) goOn() {
	x := s.last
	for _, name := range []string{expiryPartial, ExpiryName} {
		if err := os.RemoveAll(filepath.Join(rootfs.PrivateSandbox, name)); err != nil {
			fmt.Fprintln(os.Stderr, "remove a snapshot that is not wanted:", err)
		}
	}
	status, reason := sdk.StatusReady, ""
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.paused {
		status = sdk.StatusPaused
	}
	if x.stopped {
		if err := s.runsc.Run(context.Background(), shortCall, "resume", s.config.ID); err != nil {
			status, reason = sdk.StatusPaused, "it was extended, and could not be resumed"
			fmt.Fprintln(os.Stderr, "resume:", err)
		}
	}
	s.last = nil
	s.ending.Store(false)
	s.activity.resume()
	s.note(func(r *record.Record) {
		r.Status, r.Reason, r.EndReason, r.ExpirySnapshotID, r.ExpirySnapshotError = status, reason, "", "", ""
	})
}

// giveUp notes at the end why there is no snapshot, where one was due.
func (s *supervisor) giveUp(r *record.Record) error {
	if s.config.End.OnExpiry != sdk.OnExpirySnapshot || r.ExpirySnapshotID != "" {
		return nil
	}
	switch x := s.last; {
	case r.ExpirySnapshotError != "":
	case x == nil:
		r.ExpirySnapshotError = "the end came without the time that it takes"
	case x.over && x.err != nil:
		r.ExpirySnapshotError = clipError(x.err)
	default:
		r.ExpirySnapshotError = "it was not done in time"
	}
	r.Reason += "; its last snapshot could not be made: " + r.ExpirySnapshotError
	return nil
}

// note changes the record of a sandbox that nobody has claimed. A failure
// changes nothing about the end.
func (s *supervisor) note(change func(*record.Record)) {
	_, err := record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if r.Lease.Claimed {
			return errClaimed
		}
		change(r)
		return nil
	})
	if err != nil && !errors.Is(err, errClaimed) && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "record the last snapshot:", err)
	}
}

func clipError(err error) string {
	text := strings.ToValidUTF8(strings.Join(strings.Fields(err.Error()), " "), "")
	if len(text) > maxExpiryError {
		text = strings.ToValidUTF8(text[:maxExpiryError], "") + "…"
	}
	return text
}
