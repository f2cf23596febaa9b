// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// last returns the events of an id after its first n.
func (h house) last(t *testing.T, id string, n int) []ledger.Event {
	t.Helper()
	events, err := h.Events(t.Context(), id)
	if err != nil || len(events) < n {
		t.Fatal(err, events)
	}
	return events[n:]
}

// Whoever sees an end first writes it, once, and the tombstone tells of it
// whoever removed what was left.
func TestAnEndIsWrittenOnceByWhoeverSeesIt(t *testing.T) {
	for name, c := range map[string]struct {
		ends   func(h house, s Sandbox)
		event  ledger.Type
		reason sdk.EndReason
		after  sdk.Status
	}{
		"deadline": {func(h house, _ Sandbox) { h.clock.Advance(2 * time.Hour) }, ledger.Expired, sdk.EndDeadline, sdk.StatusExpired},
		"died":     {func(h house, s Sandbox) { _ = h.server.Kill(s.Ref) }, ledger.Lost, sdk.EndGone, sdk.StatusLost},
		"removed by others": {func(h house, s Sandbox) {
			ext, err := h.Manager.open(context.Background(), "cloud")
			if err == nil {
				_, err = ext.Destroy(context.Background(), sdk.DestroyOptions{Target: sdk.Target{ID: s.ID, Ref: s.Ref, Fleet: "ci"}})
			}
			if err != nil {
				panic(err)
			}
		}, ledger.Lost, sdk.EndGone, sdk.StatusLost},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			s := h.create(t, CreateOptions{TTL: time.Hour})
			before := len(h.types(t, s.ID))
			c.ends(h, s)
			for range 3 {
				got, err := h.Get(t.Context(), s.ID, GetOptions{})
				if err != nil || got.Status != c.after || got.EndReason != c.reason {
					t.Fatalf("%+v, %v", got, err)
				}
			}
			told := h.last(t, s.ID, before)
			if len(told) != 1 || told[0].Type != c.event || told[0].Reason != string(c.reason) || told[0].Message == "" {
				t.Fatalf("%+v", told)
			}
			if _, err := h.Destroy(t.Context(), s.ID, DestroyOptions{Reason: "user"}); err != nil {
				t.Fatal(err)
			}
			got, err := h.Get(t.Context(), s.ID, GetOptions{})
			if err != nil || got.Status != c.after || got.EndReason != c.reason || got.Reason != told[0].Message {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A destroy that comes before anybody has looked tells of the end as well.
func TestADestroyWritesTheEndFirst(t *testing.T) {
	h := newHouse(t)
	s := h.create(t, CreateOptions{TTL: time.Hour})
	before := len(h.types(t, s.ID))
	h.clock.Advance(2 * time.Hour)
	if _, err := h.Destroy(t.Context(), s.ID, DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []ledger.Type{ledger.Expired, ledger.Claiming, ledger.Destroying, ledger.Destroyed}
	if got := h.types(t, s.ID)[before:]; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// The snapshot that an end has left gets a log here, so that it is kept,
// extended and reaped like any other.
func TestTheSnapshotOfAnEndIsAdopted(t *testing.T) {
	h := newHouse(t)
	s := h.create(t, CreateOptions{TTL: time.Hour, End: sandbox.End{OnExpiry: sdk.OnExpirySnapshot, ExpirySnapshotTTL: 5 * time.Hour}})
	h.clock.Advance(time.Hour)
	for range 2 {
		got, err := h.Get(t.Context(), s.ID, GetOptions{})
		if err != nil || got.Status != sdk.StatusExpired || got.ExpirySnapshotID != sdk.ExpirySnapshotID(s.ID) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	record, err := h.ledger.Get(t.Context(), sdk.ExpirySnapshotID(s.ID))
	if err != nil || !record.Open || record.Status != sdk.StatusReady || record.SnapshotOf != s.ID || record.Sequence != 1 ||
		!record.Lease.ExpiresAt.Equal(start.Add(6*time.Hour)) {
		t.Fatalf("%+v, %v", record, err)
	}
	if _, err := h.Destroy(t.Context(), s.ID, DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := h.Get(t.Context(), s.ID, GetOptions{})
	if err != nil || got.Status != sdk.StatusExpired || got.ExpirySnapshotID != record.ID {
		t.Errorf("%+v, %v", got, err)
	}
	fork, err := h.Create(t.Context(), CreateOptions{Snapshot: record.ID})
	if err != nil || fork.Snapshot != record.ID {
		t.Errorf("%+v, %v", fork, err)
	}
}
