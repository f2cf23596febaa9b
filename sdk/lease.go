// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import "time"

// The lease rules, as pure functions of a stored lease and the backend's
// clock. An extension calls them under whatever makes its own store atomic
// (a lock, a precondition, a generation log), and stores what they return
// before it answers.

// ExtendLease returns the lease after an extend to until.
//
// It never shortens, never passes the maximum (it grants what is left), and
// refuses past the deadline and after a claim.
func ExtendLease(present Lease, now time.Time, generation int64, until time.Time, event EventRef) (Lease, error) {
	if present.Claimed {
		return present, Expired(present, "the lease was claimed for destruction by %s", present.ClaimHolder)
	}
	if present.Expired(now) {
		return present, Expired(present, "the deadline passed at %s", present.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if present.Generation != generation {
		return present, Conflict(present, "the lease is at generation %d, not %d", present.Generation, generation)
	}
	if until.After(present.MaxExpiresAt) {
		until = present.MaxExpiresAt
	}
	if !until.After(present.ExpiresAt) {
		return present, nil
	}
	present.ExpiresAt = until
	present.Generation++
	present.Event = event
	return present, nil
}

// ExpireLease returns the lease after its deadline moved earlier to until,
// or to now where until has passed. It never lengthens.
func ExpireLease(present Lease, now time.Time, generation int64, until time.Time, event EventRef) (Lease, error) {
	if present.Claimed || present.Expired(now) {
		return present, nil
	}
	if present.Generation != generation {
		return present, Conflict(present, "the lease is at generation %d, not %d", present.Generation, generation)
	}
	if until.Before(now) {
		until = now
	}
	if !until.Before(present.ExpiresAt) {
		return present, nil
	}
	present.ExpiresAt = until
	present.Generation++
	present.Event = event
	return present, nil
}

// PauseLease returns the lease of a sandbox that is paused at its end instead
// of being destroyed. It gets a deadline of its own: paused from now, but
// never past the maximum, and never earlier than the one that it has. Where
// that leaves nothing of life it answers [ErrExpired], and the sandbox is
// destroyed.
func PauseLease(present Lease, now time.Time, paused time.Duration, event EventRef) (Lease, error) {
	if present.Claimed {
		return present, Expired(present, "the lease was claimed for destruction by %s", present.ClaimHolder)
	}
	until := now.Add(paused)
	if until.After(present.MaxExpiresAt) {
		until = present.MaxExpiresAt
	}
	if !until.After(present.ExpiresAt) {
		if present.Expired(now) {
			return present, Expired(present, "the deadline passed at %s and can't be later", present.ExpiresAt.UTC().Format(time.RFC3339))
		}
		return present, nil
	}
	present.ExpiresAt = until
	present.Generation++
	present.Event = event
	return present, nil
}

// ClaimLease returns the lease after a claim. With onlyExpired a lease whose
// deadline has not passed is refused.
func ClaimLease(present Lease, now time.Time, generation int64, holder string, onlyExpired bool, event EventRef) (Lease, error) {
	if present.Claimed {
		return present, nil
	}
	if onlyExpired && !present.Expired(now) {
		return present, Conflict(present, "the deadline is at %s and has not passed", present.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if present.Generation != generation {
		return present, Conflict(present, "the lease is at generation %d, not %d", present.Generation, generation)
	}
	present.Claimed = true
	present.ClaimHolder = holder
	present.Generation++
	present.Event = event
	return present, nil
}
