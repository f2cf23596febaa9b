// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// The budget of a write begins with the end of its caller: as long as the
// caller waits, a slow disk or a held log is waited for.
func TestAWriteWaitsAsLongAsItsCaller(t *testing.T) {
	h := newHouse(t)
	h.settings.Budgets.Rollback = time.Nanosecond
	id := sandbox.NewID(start)
	held, release := make(chan struct{}), make(chan struct{})
	holding := make(chan error)
	go func() {
		_, _, err := h.ledger.Append(context.Background(), id, func(ledger.Record) (ledger.Event, error) {
			close(held)
			<-release
			return ledger.Event{Type: ledger.Adopted, Fleet: "ci"}, nil
		})
		holding <- err
	}()
	<-held
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := h.append(given, id, ledger.Event{Type: ledger.Ready}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who has given up waited on: %v", err)
	}
	waiting := make(chan error)
	go func() {
		_, err := h.append(t.Context(), id, ledger.Event{Type: ledger.Ready})
		waiting <- err
	}()
	select {
	case err := <-waiting:
		t.Errorf("who waits was given up: %v", err)
	case <-time.After(50 * time.Millisecond):
		close(release)
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	}
	if err := <-holding; err != nil {
		t.Error(err)
	}
}
