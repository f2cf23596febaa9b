// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"errors"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// What was given up while its backend was away is on record, is not called gone,
// and is removed by the first sweep that can reach it, long before its
// deadline. A sweep itself gives nothing up.
func TestWhatWasForgottenIsSweptLater(t *testing.T) {
	y := newYard(t)
	id := y.create(t, time.Hour)
	server := y.clouds["cloud"]
	away := []saasstub.Fault{{Call: saasstub.CallGetBox, Lie: saasstub.Broken}, {Call: saasstub.CallListBoxes, Lie: saasstub.Broken}, {Call: saasstub.CallDeleteBox, Lie: saasstub.Broken}}
	server.Inject(away...)
	if _, err := y.manager.Destroy(t.Context(), id, lifecycle.DestroyOptions{Backend: "cloud"}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Fatalf("without a choice: %v", err)
	}
	got, err := y.manager.Destroy(t.Context(), id, lifecycle.DestroyOptions{Backend: "cloud", OnUnreachable: lifecycle.UnreachableForget})
	if err != nil || got.Forgotten == "" || got.Existed || got.Unverifiable != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	record, err := y.ledger.Get(t.Context(), id)
	if err != nil || !record.Open || record.LastType != ledger.Forgotten || record.Status != sdk.StatusDestroying {
		t.Errorf("%+v, %v", record, err)
	}
	if report := y.sweep(t); report.Clean() || len(outcomes(report)) != 0 && outcomes(report)[id] != OutcomeFailed {
		t.Errorf("a sweep that reaches nothing: %+v", report)
	}
	server.Heal()
	if len(server.Boxes()) != 1 {
		t.Fatal("the box is gone by itself")
	}
	if report := y.sweep(t); outcomes(report)[id] != OutcomeRemoved || len(server.Boxes()) != 0 {
		t.Errorf("%+v, %d boxes", report, len(server.Boxes()))
	}
	if record, err := y.ledger.Get(t.Context(), id); err != nil || record.Open {
		t.Errorf("%+v, %v", record, err)
	}
}
