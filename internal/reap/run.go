// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// atOnce is how many items a sweep works on at a time.
	atOnce = 8
	// itemBudget bounds each half of one item, so that a stuck backend does
	// not hold up the sweep.
	itemBudget = 2 * time.Minute
)

// The outcomes of an item.
const (
	OutcomeRemoved = "removed"
	OutcomeGone    = "gone"    // nothing was there any more; the ledger says so now
	OutcomeSkipped = "skipped" // extended meanwhile
	OutcomeFailed  = "failed"
	// OutcomeUnverifiable is for what counts as ended because its deadline
	// passed long ago on a backend that enforces it, which could not be asked.
	// Should the backend list it later, a later sweep takes it up again.
	OutcomeUnverifiable = "unverifiable"
)

// Result is what became of one item.
type Result struct {
	Item
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"` // why it was skipped or failed
}

// Report is what became of a selection.
type Report struct {
	Selection
	Results []Result `json:"results"`
	Removed int      `json:"removed"`
	Gone    int      `json:"gone"`
	Skipped int      `json:"skipped"`
	Failed  int      `json:"failed"`
	// Unverifiable counts what could not be seen gone and counts as ended.
	Unverifiable int `json:"unverifiable"`
	Pruned       int `json:"pruned"` // tombstones past their retention
	// PruneError says why tombstones could not be pruned.
	PruneError string `json:"prune_error,omitempty"`
	// Unwritten names sandboxes whose end was seen and could not be written
	// into the ledger, and why.
	Unwritten map[string]string `json:"unwritten,omitempty"`
}

// Clean reports whether everything that was due is gone and everything could
// be asked.
func (r Report) Clean() bool {
	return r.Failed == 0 && r.Unverifiable == 0 && len(r.Unreachable) == 0 && len(r.Unreadable) == 0 && r.PruneError == "" && len(r.Unwritten) == 0
}

// Run removes what was selected and returns what became of each item, in the
// order of the selection. An item that fails is counted and named. The error
// is the context's, when that ended the sweep early: what was not begun is
// then reported as failed.
func (r *Reaper) Run(ctx context.Context, selection Selection) (Report, error) {
	report := Report{Selection: selection, Results: make([]Result, len(selection.Items))}
	report.Unwritten = r.witness(ctx, selection.seen)
	// All are removed before any is looked for: one listing then shows for all
	// of them that they are gone.
	confirm := make([]func() Result, len(selection.Items))
	each(len(selection.Items), func(i int) { confirm[i] = r.begin(ctx, selection.Items[i]) })
	each(len(selection.Items), func(i int) { report.Results[i] = confirm[i]() })
	for _, result := range report.Results {
		switch result.Outcome {
		case OutcomeRemoved:
			report.Removed++
		case OutcomeGone:
			report.Gone++
		case OutcomeSkipped:
			report.Skipped++
		case OutcomeUnverifiable:
			report.Unverifiable++
		default:
			report.Failed++
		}
	}
	if ctx.Err() != nil {
		return report, ctx.Err()
	}
	pruned, err := r.ledger.Prune(ctx, ledger.DefaultRetention)
	report.Pruned = pruned
	if err != nil {
		report.PruneError = err.Error()
	}
	return report, nil
}

// witness writes down which sandboxes have ended without us, before anything
// of them is removed.
func (r *Reaper) witness(ctx context.Context, seen []lifecycle.Sandbox) map[string]string {
	failed := make([]error, len(seen))
	each(len(seen), func(i int) { failed[i] = r.manager.Witness(ctx, seen[i]) })
	var unwritten map[string]string
	for i, err := range failed {
		if err != nil {
			if unwritten == nil {
				unwritten = map[string]string{}
			}
			unwritten[seen[i].ID] = err.Error()
		}
	}
	return unwritten
}

// each does something for each of n, some at a time.
func each(n int, do func(i int)) {
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			do(i)
		})
	}
	wg.Wait()
}

// begin removes one item, by the same verb that a user calls, and returns what
// sees it gone.
func (r *Reaper) begin(ctx context.Context, item Item) (confirm func() Result) {
	if ctx.Err() != nil {
		result := Result{Item: item, Outcome: OutcomeFailed, Detail: "not begun: " + ctx.Err().Error()}
		return func() Result { return result }
	}
	budget, cancel := context.WithTimeout(ctx, itemBudget)
	defer cancel()
	if item.Kind == KindSnapshot {
		existed, err := r.snapshot(budget, item)
		return func() Result { return resultOf(item, existed, err) }
	}
	removal := r.manager.Remove(budget, item.ID, lifecycle.DestroyOptions{
		Backend: item.Backend, ExpiresAt: item.ExpiresAt, Reason: string(item.end), Listed: item.listed,
		// Whoever began to destroy it did not wait for its deadline.
		OnlyExpired:   item.Reason != ReasonUnfinished,
		OnUnreachable: lifecycle.UnreachableFail, // a sweep forgets nothing
	})
	return func() Result {
		budget, cancel := context.WithTimeout(ctx, itemBudget)
		defer cancel()
		destroyed, err := removal.Confirm(budget)
		if err == nil && destroyed.Unverifiable != "" {
			return Result{Item: item, Outcome: OutcomeUnverifiable, Detail: destroyed.Unverifiable}
		}
		return resultOf(item, destroyed.Existed, err)
	}
}

func resultOf(item Item, existed bool, err error) Result {
	result := Result{Item: item, Outcome: OutcomeFailed}
	switch {
	case err == nil && existed:
		result.Outcome = OutcomeRemoved
	case err == nil:
		result.Outcome = OutcomeGone
	case errors.Is(err, sdk.ErrConflict):
		result.Outcome, result.Detail = OutcomeSkipped, err.Error()
	default:
		result.Detail = err.Error()
	}
	return result
}

// snapshot deletes a snapshot whose retention is still over when it is
// looked at once more: a retention has no claim.
func (r *Reaper) snapshot(ctx context.Context, item Item) (bool, error) {
	present, err := r.manager.GetSnapshot(ctx, item.ID, lifecycle.GetOptions{Backend: item.Backend})
	if err == nil && r.manager.Now().Before(present.ExpiresAt) {
		return false, sdk.Errorf(sdk.ErrConflict, "the retention of %s was extended to %s", item.ID, present.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if err != nil && !errors.Is(err, sdk.ErrNotFound) {
		return false, err
	}
	deleted, err := r.manager.DeleteSnapshot(ctx, item.ID, lifecycle.DeleteSnapshotOptions{
		Backend: item.Backend, Reason: lifecycle.ReasonRetention, OnUnreachable: lifecycle.UnreachableFail,
	})
	return deleted.Existed, err
}

// Every sweeps now and then again after each interval, until the context
// ends, whose error it returns. Each sweep's report, or the error that kept
// it from being planned, goes to told.
func (r *Reaper) Every(ctx context.Context, interval time.Duration, opts Options, told func(Report, error)) error {
	if interval <= 0 {
		return sdk.Invalid("every", "%s is not longer than zero", interval)
	}
	for {
		report, err := r.Sweep(ctx, opts)
		if ctx.Err() == nil || len(report.Results) > 0 {
			told(report, err)
		}
		if err := r.manager.Sleep(ctx, interval); err != nil {
			return err
		}
	}
}

// Sweep plans and runs one sweep.
func (r *Reaper) Sweep(ctx context.Context, opts Options) (Report, error) {
	selection, err := r.Plan(ctx, opts)
	if err != nil {
		return Report{Selection: selection, Results: []Result{}}, fmt.Errorf("sweep of fleet %q: %w", r.manager.Fleet(), err)
	}
	return r.Run(ctx, selection)
}
