// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Explanation tells why a sandbox is alive, or why it died.
type Explanation struct {
	ID     string     `json:"id"`
	Alive  bool       `json:"alive"`
	Status sdk.Status `json:"status"`
	// Summary is the answer in one sentence.
	Summary string `json:"summary"`
	// EndsAt and EndsBy say when it ends as things stand, and by which of its
	// clocks; for one that is alive.
	EndsAt    time.Time      `json:"ends_at,omitzero"`
	EndsBy    sdk.EndReason  `json:"ends_by,omitempty"`
	EndReason sdk.EndReason  `json:"end_reason,omitempty"` // of one that has ended
	OnExpiry  sdk.OnExpiry   `json:"on_expiry"`
	Guards    []sdk.Guard    `json:"guards"`
	Sandbox   Sandbox        `json:"sandbox"`
	Events    []ledger.Event `json:"events"` // of this ledger, oldest first
}

// Explain tells why a sandbox is alive, or why it died. It is a look at it,
// like [Manager.Get]; of one whose backend can't be asked it tells what the
// ledger knows, and says so.
func (m *Manager) Explain(ctx context.Context, id string, opts GetOptions) (Explanation, error) {
	s, err := m.Get(ctx, id, opts)
	if errors.Is(err, sdk.ErrUnreachable) {
		record, readErr := m.record(ctx, id)
		if readErr != nil || !record.Known() {
			return Explanation{}, errors.Join(err, readErr)
		}
		s = viewRecord(record)
		s.Unreachable = err.Error()
	} else if err != nil {
		return Explanation{}, err
	}
	events, err := m.Events(ctx, id)
	if err != nil {
		return Explanation{}, fmt.Errorf("read the ledger of %s: %w", id, err)
	}
	e := Explanation{
		ID: s.ID, Alive: s.Alive(), Status: s.Status, OnExpiry: s.OnExpiry, Guards: s.Guards, EndReason: s.EndReason, Sandbox: s,
		Events: append([]ledger.Event{}, events...),
	}
	if e.Alive {
		e.EndsAt, e.EndsBy = s.EndsAt()
		e.Summary = whyAlive(s, m.Now())
	} else {
		e.Summary = whyDead(s, events)
	}
	if s.Unreachable != "" {
		e.Summary = "Its backend can't be asked (" + s.Unreachable + "); as the ledger knows it: " + e.Summary
	}
	return e, nil
}

func whyAlive(s Sandbox, now time.Time) string {
	at, clock := s.EndsAt()
	text := fmt.Sprintf("It is %s because its lease runs until %s", s.Status, s.ExpiresAt.UTC().Format(time.RFC3339))
	if clock == sdk.EndIdle {
		text += fmt.Sprintf("; not used for %s, it ends at %s", s.IdleTimeout, at.UTC().Format(time.RFC3339))
	}
	if s.Status == sdk.StatusPaused && s.Reason != "" {
		text += "; " + s.Reason
	}
	if !now.Before(at) {
		text += ", which has passed: what has to end it has not come yet"
	}
	if len(s.Guards) == 0 {
		text += "; nothing that is known of ends it when nobody is there"
	}
	return text + "."
}

// whyDead goes by what is told of the sandbox, and by the log for what was
// done by a verb.
func whyDead(s Sandbox, events []ledger.Event) string {
	text := fmt.Sprintf("It is %s", s.Status)
	if s.EndReason != "" {
		text += fmt.Sprintf(" (%s)", s.EndReason)
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	for _, e := range events {
		switch e.Type {
		case ledger.Destroying, ledger.Destroyed:
			if s.EndReason == "" {
				text += fmt.Sprintf("; its destroy began at %s%s", e.Time.UTC().Format(time.RFC3339), by(e))
				return text + "."
			}
		case ledger.Forgotten:
			text += fmt.Sprintf("; it was given up at %s%s, since its backend could not be asked, and may still be there", e.Time.UTC().Format(time.RFC3339), by(e))
		case ledger.CreateFailed, ledger.Failed:
			text += "; " + cmp.Or(e.Message, e.Reason)
		}
	}
	if s.ExpirySnapshotID != "" {
		text += "; its end left the snapshot " + s.ExpirySnapshotID
	}
	return strings.TrimSuffix(text, ".") + "."
}

func by(e ledger.Event) string {
	text := ""
	if e.Actor != "" {
		text += ", by " + e.Actor
	}
	if e.Reason != "" {
		text += ", because of " + e.Reason
	}
	return text
}
