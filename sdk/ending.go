// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"strings"
	"time"
)

const (
	// DefaultExpirySnapshotTTL is how long a snapshot that was made at the
	// end of its sandbox is kept when nobody says: a week, as any snapshot.
	DefaultExpirySnapshotTTL = 7 * 24 * time.Hour
	// DefaultPausedTTL is how long a sandbox that was paused at its end is
	// kept when nobody says.
	DefaultPausedTTL = 24 * time.Hour
)

// EndReason is what ended a sandbox, as a code.
type EndReason string

// The reasons for an end.
const (
	EndDeadline       EndReason = "deadline"
	EndIdle           EndReason = "idle"            // not used for as long as its idle timeout
	EndLimit          EndReason = "limit"           // it went over one of its limits
	EndSupervisorDied EndReason = "supervisor_died" // what guarded it died, or its machine
	EndGone           EndReason = "gone"            // by itself, or by someone else
)

// Valid reports whether r is one of the reasons.
func (r EndReason) Valid() bool {
	switch r {
	case EndDeadline, EndIdle, EndLimit, EndSupervisorDied, EndGone:
		return true
	}
	return false
}

// IdleDeadline returns when a sandbox that was last used at active ends, by
// whichever of its two clocks comes first. Without an idle timeout that is
// its deadline; the idle clock never makes it later.
func IdleDeadline(lease Lease, active time.Time, idle time.Duration) (time.Time, EndReason) {
	if until := active.Add(idle); idle > 0 && until.Before(lease.ExpiresAt) {
		return until, EndIdle
	}
	return lease.ExpiresAt, EndDeadline
}

// EndsAt returns when a sandbox ends as things stand, and by which of its
// clocks.
func (s Sandbox) EndsAt() (time.Time, EndReason) {
	if !s.IdleExpiresAt.IsZero() && s.IdleExpiresAt.Before(s.Lease.ExpiresAt) {
		return s.IdleExpiresAt, EndIdle
	}
	return s.Lease.ExpiresAt, EndDeadline
}

// ExpirySnapshotID returns the id of the snapshot that is made at the end of
// a sandbox. It follows from the sandbox's, so that whoever makes it, with no
// client there, makes it once, and every client finds it.
func ExpirySnapshotID(sandboxID string) string {
	return "snp-" + strings.TrimPrefix(sandboxID, "sbx-")
}
