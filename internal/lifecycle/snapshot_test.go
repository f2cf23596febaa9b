// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
)

// A sandbox that another ledger made and that is snapshotted here has a log
// here that can stand by itself: it names the backend and the deadline.
func TestASnapshotOfASandboxMadeElsewhere(t *testing.T) {
	here := newHouse(t)
	there := newHouseOn(t, here.clock, here.server, "ci", saasstub.Options{})
	made := here.create(t, CreateOptions{})
	snapshot, err := there.Snapshot(t.Context(), made.ID, SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record, err := there.ledger.Get(t.Context(), made.ID)
	if err != nil || record.Backend != "cloud" || !record.Lease.ExpiresAt.Equal(made.ExpiresAt) || record.Identity.ID != made.ID || record.Identity.Owner != made.Owner {
		t.Errorf("%+v, %v", record, err)
	}
	if _, err := there.Destroy(t.Context(), made.ID, DestroyOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := there.DeleteSnapshot(t.Context(), snapshot.ID, DeleteSnapshotOptions{}); err != nil {
		t.Error(err)
	}
	if open := there.open(t); len(open) != 0 {
		t.Errorf("open: %+v", open)
	}
}
