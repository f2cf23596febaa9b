// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The deadline. It is whatever the record on disk says now, so an extend by
// anyone counts as soon as it is acknowledged. What was read last is kept for
// when the record can't be read any more: it then holds.

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// maxSleep is how long the supervisor trusts its timer. A clock that jumps
// or a machine that was suspended is noticed within this time.
const maxSleep = 5 * time.Second

// untilCheck returns how long to sleep before the deadline is looked at
// again.
func untilCheck(now, deadline time.Time) time.Duration {
	return max(0, min(deadline.Sub(now), maxSleep))
}

const (
	deadlineSeen     failpoint.Point = "supervisor.deadline.seen"
	deadlineRecorded failpoint.Point = "supervisor.deadline.recorded" // or found to be extended
)

// checkDeadline ends the life when it is over: the lease is claimed under
// the lock, so that an extend that was acknowledged before wins, and one
// that comes after is refused.
func (s *supervisor) checkDeadline(now time.Time) (wait time.Duration, done bool) {
	r, err := record.Read(rootfs.PrivateSandbox, s.config.ID)
	if errors.Is(err, record.ErrGone) {
		return 0, true // destroyed under us
	}
	if err != nil {
		// A record that can't be read grants nothing beyond what was granted
		// before, but may be readable again.
		fmt.Fprintln(os.Stderr, "read the record:", err)
		return untilCheck(now, s.deadline), !now.Before(s.deadline)
	}
	s.deadline = r.Lease.ExpiresAt
	if r.Lease.Claimed {
		return 0, true
	}
	if !r.Lease.Expired(now) {
		return untilCheck(now, r.Lease.ExpiresAt), false
	}
	_ = failpoint.Hit(deadlineSeen)
	_, err = record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		return expire(r, now)
	})
	_ = failpoint.Hit(deadlineRecorded)
	var conflict *notExpired
	if errors.As(err, &conflict) {
		s.deadline = conflict.until
		return untilCheck(now, conflict.until), false
	}
	if err != nil {
		// The deadline holds even when it can't be written down.
		fmt.Fprintln(os.Stderr, "record the expiry:", err)
	}
	return 0, true
}

// notExpired says that the lease was extended before the lock was ours.
type notExpired struct{ until time.Time }

func (e *notExpired) Error() string { return "extended until " + e.until.String() }

// expire claims an expired lease and leaves the record as a tombstone.
func expire(r *record.Record, now time.Time) error {
	if !r.Lease.Claimed && !r.Lease.Expired(now) {
		return &notExpired{r.Lease.ExpiresAt}
	}
	if r.Lease.Claimed {
		return nil
	}
	lease, err := sdk.ClaimLease(r.Lease, now, r.Lease.Generation, "supervisor", true, r.Lease.Event)
	if err != nil {
		return err
	}
	r.Lease = lease
	r.Status = sdk.StatusExpired
	r.Reason = r.Overdue()
	return nil
}
