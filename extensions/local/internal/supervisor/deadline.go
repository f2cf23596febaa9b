// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The end of a sandbox, by its deadline or by its idle clock. The deadline is
// whatever the record on disk says now, so an extend by anyone counts as soon
// as it is acknowledged. What was read last is kept for when the record can't
// be read any more: it then holds.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// maxSleep is how long the supervisor trusts its timer. A clock that jumps
	// or a machine that was suspended is noticed within this time.
	maxSleep = 5 * time.Second
	// pauseTime bounds the pause at the end: what can't be paused by then is
	// destroyed.
	pauseTime = 5 * time.Second
)

// untilCheck returns how long to sleep before the end is looked at again.
func untilCheck(now, end time.Time) time.Duration {
	return max(0, min(end.Sub(now), maxSleep))
}

const (
	deadlineSeen     failpoint.Point = "supervisor.deadline.seen"
	deadlineRecorded failpoint.Point = "supervisor.deadline.recorded" // or found to be extended
)

// checkEnd does what is due: the snapshot of the end a while before it, and
// the end itself. It returns how long nothing is due.
func (s *supervisor) checkEnd(now time.Time) (wait time.Duration, done bool) {
	r, err := record.Read(rootfs.PrivateSandbox, s.config.ID)
	if errors.Is(err, record.ErrGone) {
		return 0, true // destroyed under us
	}
	if err != nil {
		// A record that can't be read grants nothing beyond what was granted
		// before, but may be readable again.
		fmt.Fprintln(os.Stderr, "read the record:", err)
		r = record.Record{Lease: sdk.Lease{ExpiresAt: s.deadline}}
		end, _ := s.endsAt(r)
		return untilCheck(now, end), !now.Before(end)
	}
	s.deadline = r.Lease.ExpiresAt
	if r.Lease.Claimed {
		return 0, true
	}
	end, why := s.endsAt(r)
	if now.Before(end) {
		return min(untilCheck(now, end), s.checkLast(r, now, end, why)), false
	}
	if s.config.End.OnExpiry == sdk.OnExpiryPause && r.Status == sdk.StatusReady {
		return s.pauseAtEnd(now, why)
	}
	return s.expire(now, why)
}

// endsAt returns when the sandbox ends as things stand, and by which clock.
// The idle clock stands still while it is paused.
func (s *supervisor) endsAt(r record.Record) (time.Time, sdk.EndReason) {
	if x := s.last; x != nil && x.why == sdk.EndIdle && x.end.Before(r.Lease.ExpiresAt) {
		return x.end, sdk.EndIdle // its use was stopped for the snapshot
	}
	idle := s.config.End.Idle
	if r.Status == sdk.StatusPaused {
		idle = 0
	}
	return sdk.IdleDeadline(r.Lease, s.activity.since(), idle)
}

// expire ends the life: the lease is claimed under the lock, so that an
// extend that was acknowledged before wins, and one that comes after is
// refused.
func (s *supervisor) expire(now time.Time, why sdk.EndReason) (wait time.Duration, done bool) {
	if why == sdk.EndIdle && s.last == nil && !s.activity.stop(s.config.End.Idle) {
		return 0, false // used at the last moment
	}
	_ = failpoint.Hit(deadlineSeen)
	_, err := record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if err := end(r, now, why); err != nil {
			return err
		}
		r.Reason = s.why(*r, why)
		return s.giveUp(r)
	})
	_ = failpoint.Hit(deadlineRecorded)
	var conflict *notExpired
	if errors.As(err, &conflict) {
		s.deadline = conflict.until
		return untilCheck(now, conflict.until), false
	}
	if err != nil {
		// The end holds even when it can't be written down.
		fmt.Fprintln(os.Stderr, "record the end:", err)
	}
	return 0, true
}

// notExpired says that the lease was extended before the lock was ours.
type notExpired struct{ until time.Time }

func (e *notExpired) Error() string { return "extended until " + e.until.String() }

// errClaimed says that somebody else is destroying the sandbox.
var errClaimed = errors.New("claimed for destruction")

// end claims a lease that is over and leaves the record as a tombstone. One
// that was claimed already stays as it is.
func end(r *record.Record, now time.Time, why sdk.EndReason) error {
	if r.Lease.Claimed {
		return errClaimed
	}
	if why == sdk.EndDeadline && !r.Lease.Expired(now) {
		return &notExpired{r.Lease.ExpiresAt}
	}
	lease, err := sdk.ClaimLease(r.Lease, now, r.Lease.Generation, "supervisor", false, r.Lease.Event)
	if err != nil {
		return err
	}
	r.Lease, r.Status, r.EndReason = lease, sdk.StatusExpired, why
	return nil
}

// why says for people what ends the sandbox.
func (s *supervisor) why(r record.Record, reason sdk.EndReason) string {
	if reason == sdk.EndIdle {
		return fmt.Sprintf("it was not used for %s", s.config.End.Idle)
	}
	return r.Overdue()
}

// pauseAtEnd pauses the sandbox, which then has a deadline of its own. Where
// that leaves it no life, or it can't be paused, it is destroyed.
func (s *supervisor) pauseAtEnd(now time.Time, why sdk.EndReason) (wait time.Duration, done bool) {
	if why == sdk.EndIdle && !s.activity.stop(s.config.End.Idle) {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), pauseTime)
	defer cancel()
	if !s.lock(ctx) {
		return s.expire(now, why) // a snapshot is being made
	}
	defer s.mu.Unlock()
	r, err := record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if why == sdk.EndDeadline && !r.Lease.Expired(now) {
			return &notExpired{r.Lease.ExpiresAt}
		}
		lease, err := sdk.PauseLease(r.Lease, now, s.config.End.Paused, r.Lease.Event)
		if err != nil {
			return err
		}
		r.Reason = "paused: " + s.why(*r, why)
		r.Lease, r.Status, r.EndReason = lease, sdk.StatusPaused, why
		return nil
	})
	var conflict *notExpired
	if errors.As(err, &conflict) {
		return 0, false
	}
	if err == nil {
		err = s.runsc.Run(ctx, pauseTime, "pause", s.config.ID)
	}
	if err == nil {
		s.deadline = r.Lease.ExpiresAt
		return untilCheck(now, r.Lease.ExpiresAt), false
	}
	whyNot := "it could not be paused"
	if errors.Is(err, sdk.ErrExpired) {
		whyNot = "its maximum leaves it no life to be paused in"
	} else {
		fmt.Fprintln(os.Stderr, "pause at the end:", err)
	}
	// Whatever was written, its time is over.
	_, err = record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if err := end(r, r.Lease.ExpiresAt, why); err != nil {
			return err
		}
		r.Reason = s.why(*r, why) + ", and " + whyNot
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "record the end:", err)
	}
	return 0, true
}

// lock takes the lock of pause, resume and snapshot, unless the context ends
// first.
func (s *supervisor) lock(ctx context.Context) bool {
	for !s.mu.TryLock() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}
