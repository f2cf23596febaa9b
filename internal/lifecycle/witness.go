// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Witness writes into the ledger what happened to a sandbox without us: that
// its guard paused it, that it has expired, that it is lost. Whoever sees it
// first writes it, once, before its remains are destroyed, so that the log
// tells why it died. The snapshot that its end has left gets a log of its own.
//
// A sandbox without a log here, and one that has not ended, leave nothing to
// write.
func (m *Manager) Witness(ctx context.Context, seen Sandbox) error {
	event, ok := endOf(seen)
	if !ok {
		return nil
	}
	record, err := m.record(ctx, seen.ID)
	if err != nil || !record.Known() || !record.Open {
		return err
	}
	err = m.adoptExpirySnapshot(ctx, seen, record)
	if record.Status == event.Type.Status() || record.Status == sdk.StatusDestroying {
		return err
	}
	if seen.Status == sdk.StatusLost && !m.confirmedGone(ctx, seen) {
		return err
	}
	_, writing := m.appendIf(ctx, record.ID, event, func(present ledger.Record) bool {
		return present.Sequence == record.Sequence // else somebody else is at it
	})
	return errors.Join(err, writing)
}

// witnessed is Witness for verbs that are about something else: what can't be
// written now is written by the next who looks.
func (m *Manager) witnessed(ctx context.Context, seen Sandbox, err error) {
	if err == nil {
		_ = m.Witness(ctx, seen)
	}
}

// endOf returns the event that tells of an end; ok is false where there is
// none.
func endOf(seen Sandbox) (e ledger.Event, ok bool) {
	lease := sdk.Lease{ExpiresAt: seen.ExpiresAt, MaxExpiresAt: seen.MaxExpiresAt, Generation: seen.Generation}
	e = ledger.Event{Backend: seen.Backend, Reason: string(seen.EndReason), Message: seen.Reason, Lease: &lease}
	switch {
	case seen.Unreachable != "":
		return e, false // nobody has seen anything
	case seen.Status == sdk.StatusExpired:
		e.Type, e.Reason = ledger.Expired, cmp.Or(e.Reason, string(sdk.EndDeadline))
	case seen.Status == sdk.StatusLost:
		e.Type, e.Reason = ledger.Lost, cmp.Or(e.Reason, string(sdk.EndGone))
	case seen.Status == sdk.StatusPaused && seen.EndReason != "" && seen.OnExpiry == sdk.OnExpiryPause:
		e.Type = ledger.Paused
	default:
		return e, false
	}
	return e, true
}

// confirmedGone looks once more for what is lost: one "not found" alone proves
// nothing. What the backend itself reports as lost is there to be seen.
func (m *Manager) confirmedGone(ctx context.Context, seen Sandbox) bool {
	if seen.EndReason != sdk.EndGone {
		return true
	}
	list, err := m.lister(seen.Backend).fresh(ctx)
	if err != nil || list.incomplete != "" || list.unreadable[seen.ID] {
		return false
	}
	found, listed := list.byID[seen.ID]
	return !listed || found.Status == sdk.StatusLost
}

// adoptExpirySnapshot takes the snapshot that the end of a sandbox has left
// into the ledger, in its own log and in the sandbox's, or writes why there is
// none.
func (m *Manager) adoptExpirySnapshot(ctx context.Context, seen Sandbox, record ledger.Record) error {
	switch {
	case seen.ExpirySnapshotError != "" && record.ExpirySnapshotError == "":
		_, err := m.append(ctx, seen.ID, ledger.Event{
			Type: ledger.SnapshotFailed, Reason: ledger.ReasonExpiry, Message: seen.ExpirySnapshotError, SnapshotID: sdk.ExpirySnapshotID(seen.ID),
		})
		return err
	case seen.ExpirySnapshotID == "" || record.ExpirySnapshotID != "":
		return nil
	}
	id := seen.ExpirySnapshotID
	snapshotter, err := m.snapshotter(ctx, seen.Backend)
	if err != nil {
		return err
	}
	got, err := snapshotter.GetSnapshot(ctx, sdk.GetSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet})
	if errors.Is(err, sdk.ErrNotFound) {
		return nil // it is not there yet, or was deleted
	}
	if err != nil {
		return failure("read snapshot", id, seen.Backend, err)
	}
	if s := got.Snapshot; s.ID != id || s.SandboxID != seen.ID || s.Identity.Fleet != m.settings.Fleet {
		return fmt.Errorf("backend %q names snapshot %.40q as the one that was made at the end of %s, and it is of %.40q in fleet %.80q", seen.Backend, s.ID, seen.ID, s.SandboxID, s.Identity.Fleet)
	}
	known, err := m.record(ctx, id)
	if err != nil {
		return err
	}
	if !known.Known() {
		_, err = m.append(ctx, id, ledger.Event{
			Type: ledger.Adopted, Reason: ledger.ReasonExpiry, Backend: seen.Backend, Ref: got.Snapshot.Ref, Status: sdk.StatusReady,
			Lease:  &sdk.Lease{ExpiresAt: got.Snapshot.ExpiresAt, MaxExpiresAt: got.Snapshot.ExpiresAt, Generation: 1},
			Intent: &ledger.Intent{Fleet: m.settings.Fleet, Identity: got.Snapshot.Identity, Profile: got.Snapshot.Profile, SnapshotOf: seen.ID, SnapshotKind: got.Snapshot.Kind},
		})
		if err != nil {
			return err
		}
	}
	_, err = m.append(ctx, seen.ID, ledger.Event{Type: ledger.Snapshotted, Reason: ledger.ReasonExpiry, SnapshotID: id})
	return err
}
