// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Create makes a sandbox from a profile or a snapshot and returns when it is
// ready.
//
// The intent is on disk before the backend is asked; a lost answer is
// searched for by id and adopted. When the context ends or the sandbox does
// not become ready, what was made is removed. The returned sandbox has an id
// exactly when something is left that the caller has to know of: on success,
// with OnFailed keep, and when the removal failed.
func (m *Manager) Create(ctx context.Context, opts CreateOptions) (Sandbox, error) {
	plan, err := m.planCreate(ctx, opts)
	if err != nil {
		return Sandbox{}, err
	}
	var intended written
	want := demand{
		owner: plan.intent.Identity.Owner, backend: plan.backend, profile: plan.profile,
		from: plan.intent.Identity.CreatedAt, until: plan.lease.ExpiresAt,
	}
	err = m.withinBounds(ctx, want, func() (err error) {
		intended, err = m.append(ctx, plan.id, ledger.Event{
			Type: ledger.Intended, Backend: plan.backend, Lease: &plan.lease,
			ProfileRevision: plan.intent.Identity.ProfileRevision, Intent: &plan.intent, Actor: plan.intent.Identity.Actor, Run: plan.intent.Identity.Run,
		})
		return err
	})
	if err != nil {
		return Sandbox{}, err
	}
	made, how, err := m.makeSandbox(ctx, opts, plan, intended)
	if err != nil {
		return Sandbox{}, err
	}
	at := place{id: plan.id, backend: plan.backend, ref: made.Ref, expiresAt: made.Lease.ExpiresAt}
	known, err := m.append(ctx, plan.id, ledger.Event{
		Type: how, Backend: plan.backend, Ref: made.Ref, Incarnation: made.Incarnation, Lease: &made.Lease, Status: sdk.StatusCreating,
	})
	m.lister(plan.backend).invalidate()
	if err != nil {
		return m.undo(ctx, at, opts, "the ledger could not be written", err)
	}
	at.record = known.record
	if opts.Created != nil {
		opts.Created(viewBackend(plan.backend, made, &at.record))
	}
	ready, err := m.bringUp(ctx, at, plan)
	if err != nil {
		return m.undo(ctx, at, opts, "it did not become ready", err)
	}
	// What was seen last is the answer: a call that could fail now, of a
	// caller who was interrupted, would leave a sandbox that nobody is told of.
	return ready, nil
}

// createPlan is everything that is decided before the intent.
type createPlan struct {
	id      string
	backend string
	profile sdk.Profile
	lease   sdk.Lease
	intent  ledger.Intent
	options sdk.CreateOptions
	setup   bool // a restored sandbox has been set up before
	resumes bool // its processes begin in the middle of their work
}

// planCreate decides what is made, where, and for how long, and refuses what
// can't be.
func (m *Manager) planCreate(ctx context.Context, opts CreateOptions) (createPlan, error) {
	plan := createPlan{profile: opts.Profile, setup: opts.Snapshot == ""}
	check := CheckOptions{Backend: opts.Backend, End: opts.End, TTL: opts.TTL, verifies: opts.verifies}
	if opts.Snapshot != "" {
		snapshot, err := m.GetSnapshot(ctx, opts.Snapshot, GetOptions{Backend: opts.Backend})
		if err != nil {
			return plan, err
		}
		if !m.clock.Now().Before(snapshot.ExpiresAt) {
			return plan, &sdk.Error{Kind: sdk.ErrExpired, Path: "snapshot", Message: fmt.Sprintf("the retention of %s ended at %s", snapshot.ID, snapshot.ExpiresAt.UTC().Format(time.RFC3339))}
		}
		plan.profile, check.Backend = snapshot.Document(), snapshot.Backend
		plan.resumes = snapshot.Kind == sdk.SnapshotMemory
		check.Restores = true
		check.Needs = append(check.Needs, sandbox.Requirement{Path: "snapshot", Feature: sdk.FeatureRestore, Class: sdk.ClassEmulated})
	}
	if err := m.validateCreate(opts, plan.profile); err != nil {
		return plan, err
	}
	if err := addedCredentials(plan.profile, opts.Env); err != nil {
		return plan, err
	}
	if len(opts.Secrets) > 0 {
		check.Needs = append(check.Needs, sandbox.Requirement{Path: "secrets", Feature: sdk.FeatureSecretFiles, Class: sdk.ClassEmulated})
	}
	check.Profile = plan.profile
	verdict, err := m.Check(ctx, check)
	if err != nil {
		return plan, err
	}
	if err := verdict.Err(); err != nil {
		return plan, err
	}
	plan.backend = verdict.Backend
	now := m.clock.Now().UTC()
	plan.id = sandbox.NewID(now)
	plan.lease = sdk.Lease{ExpiresAt: now.Add(verdict.Life.TTL), MaxExpiresAt: now.Add(verdict.Life.Max), Generation: 1}
	name, revision := profileLabels(plan.profile)
	labels := maps.Clone(orEmpty(plan.profile.Labels))
	maps.Copy(labels, opts.Labels)
	made := opts.Attribution.Or(m.settings.Attribution)
	end := sandbox.ResolveEnd(opts.End, plan.profile)
	plan.intent = ledger.Intent{
		Fleet: m.settings.Fleet, Profile: plan.profile, RestoredFrom: opts.Snapshot,
		OnExpiry: end.OnExpiry, IdleTimeout: durationText(end.IdleTimeout),
		Identity: sdk.Identity{
			ID: plan.id, Fleet: m.settings.Fleet, Incarnation: 1, CreatedAt: now, Labels: labels,
			Owner: made.Owner, Task: made.Task, Run: made.Run, Actor: made.Actor,
			Profile: name, ProfileRevision: revision,
		},
	}
	plan.options = sdk.CreateOptions{
		ID: plan.id, Identity: plan.intent.Identity.Clone(), Profile: plan.profile,
		ExpiresAt: plan.lease.ExpiresAt, MaxExpiresAt: plan.lease.MaxExpiresAt, OnExpiry: end.OnExpiry,
		IdleTimeout: end.IdleTimeout, ExpirySnapshotTTL: end.ExpirySnapshotTTL, PausedTTL: end.PausedTTL,
		Env: opts.Env, Secrets: opts.Secrets, Progress: opts.Progress,
	}
	return plan, nil
}

func (m *Manager) validateCreate(opts CreateOptions, profile sdk.Profile) error {
	found := sandbox.ValidateProfile(profile)
	found = append(found, sandbox.ValidateEnv("env", opts.Env)...)
	secrets := make(map[string]string, len(opts.Secrets))
	for name, value := range opts.Secrets {
		secrets[name] = string(value)
	}
	found = append(found, sandbox.ValidateEnv("secrets", secrets)...)
	found = append(found, opts.End.Validate()...)
	found = append(found, sandbox.ValidateLabels("labels", opts.Labels)...)
	switch opts.OnFailed {
	case "", OnFailedDestroy, OnFailedKeep:
	default:
		found = append(found, sandbox.Problem{Path: "on_failed", Message: "want destroy or keep"})
	}
	return sandbox.ProfileError(found)
}

// makeSandbox asks the backend, and searches for the answer when it is lost.
// An error means that nothing was made, or that the ledger's open intent
// tells the reaper about it.
func (m *Manager) makeSandbox(ctx context.Context, opts CreateOptions, plan createPlan, intended written) (sdk.Sandbox, ledger.Type, error) {
	ext, err := m.open(ctx, plan.backend)
	if err != nil {
		return sdk.Sandbox{}, "", m.notMade(ctx, plan, err)
	}
	plan.options.Event = intended.event
	how := ledger.Created
	var result sdk.CreateResult
	if opts.Snapshot == "" {
		result, err = ext.Create(ctx, plan.options)
	} else {
		how = ledger.Restored
		snapshotter, ok := sdk.As[sdk.Snapshotter](ext)
		if !ok {
			return sdk.Sandbox{}, "", m.notMade(ctx, plan, sdk.Unsupported("snapshot", "backend %q can't restore", plan.backend))
		}
		result, err = snapshotter.Restore(ctx, sdk.RestoreOptions{SnapshotID: opts.Snapshot, Create: plan.options})
	}
	if err == nil && result.Sandbox.ID == plan.id {
		return result.Sandbox, how, nil
	}
	if err == nil {
		err = fmt.Errorf("the answer is about sandbox %.40q", result.Sandbox.ID)
	}
	return m.searchLost(ctx, plan, err)
}

// searchLost looks for a sandbox whose create failed or was cancelled: the
// backend may have acted all the same.
func (m *Manager) searchLost(ctx context.Context, plan createPlan, cause error) (sdk.Sandbox, ledger.Type, error) {
	cancelled := ctx.Err() != nil
	search, cancel := detached(ctx, m.settings.Budgets.Search)
	defer cancel()
	ext, err := m.open(search, plan.backend)
	if err != nil {
		return sdk.Sandbox{}, "", m.unknown(plan, cause, err)
	}
	target := sdk.Target{ID: plan.id, Fleet: m.settings.Fleet}
	got, err := ext.Get(search, sdk.GetOptions{Target: target})
	if err == nil && got.Sandbox.ID == plan.id && !cancelled && refused(cause) == nil && got.Sandbox.Status != sdk.StatusFailed {
		return got.Sandbox, ledger.Adopted, nil
	}
	if err != nil && !errors.Is(err, sdk.ErrNotFound) {
		return sdk.Sandbox{}, "", m.unknown(plan, cause, err)
	}
	// Not there, or not wanted any more. Destroying by the label also
	// removes what a half-done create has left.
	if err := m.remove(search, ext, place{id: plan.id, backend: plan.backend, ref: got.Sandbox.Ref}); err != nil {
		return sdk.Sandbox{}, "", m.unknown(plan, cause, err)
	}
	if got.Sandbox.ID == "" && errors.Is(cause, sdk.ErrUnreachable) {
		return sdk.Sandbox{}, "", m.mayCome(ctx, plan, cause)
	}
	return sdk.Sandbox{}, "", m.notMade(ctx, plan, cause)
}

// mayCome keeps the log open of an intent whose answer was lost and of which
// nothing is seen: a request may still be on its way, and a listing may lag
// behind what it did.
func (m *Manager) mayCome(ctx context.Context, plan createPlan, cause error) error {
	_, err := m.append(ctx, plan.id, ledger.Event{Type: ledger.Lost, Reason: reasonOf(cause), Message: "the answer to its create was lost, and it is not there"})
	return errors.Join(fmt.Errorf("%w; the backend does not show it, and may do so yet: the ledger keeps the intent, and `sandboxer reap` removes it after %s",
		failure("create sandbox", plan.id, plan.backend, cause), plan.lease.ExpiresAt.Format(time.RFC3339)), err)
}

// refused returns the error when it says that the backend did not act.
func refused(err error) error {
	for _, kind := range []error{sdk.ErrInvalid, sdk.ErrUnsupported, sdk.ErrUnauthenticated, sdk.ErrQuota} {
		if errors.Is(err, kind) {
			return err
		}
	}
	return nil
}

// notMade closes the log of an intent from which nothing came.
func (m *Manager) notMade(ctx context.Context, plan createPlan, cause error) error {
	_, err := m.append(ctx, plan.id, ledger.Event{Type: ledger.CreateFailed, Reason: reasonOf(cause), Message: cause.Error()})
	return errors.Join(failure("create sandbox", plan.id, plan.backend, cause), err)
}

// unknown reports an intent whose fate could not be learnt. Its log stays
// open, so the reaper acts on it at the deadline.
func (m *Manager) unknown(plan createPlan, cause, err error) error {
	return fmt.Errorf("%w; whether it exists could not be learnt (%w): the ledger keeps the intent, and `sandboxer reap` removes it after %s",
		failure("create sandbox", plan.id, plan.backend, cause), err, plan.lease.ExpiresAt.Format(time.RFC3339))
}

// undo removes a sandbox that must not stay, or keeps it where the caller
// wants to look at it.
func (m *Manager) undo(ctx context.Context, at place, opts CreateOptions, what string, cause error) (Sandbox, error) {
	cancelled := ctx.Err() != nil
	cause = fmt.Errorf("sandbox %s was made on backend %q but %s: %w", at.id, at.backend, what, cause)
	if opts.OnFailed == OnFailedKeep && !cancelled {
		failed, err := m.append(ctx, at.id, ledger.Event{Type: ledger.Failed, Reason: reasonOf(cause), Message: cause.Error()})
		if err == nil {
			at.record = failed.record
		}
		return m.lastKnown(at), errors.Join(fmt.Errorf("%w; it is kept for inspection until its deadline", cause), err)
	}
	rollback, cancel := outliving(ctx, m.settings.Budgets.Rollback)
	defer cancel()
	reason := "createfailed"
	if cancelled {
		reason = "cancelled"
	}
	if _, err := m.Destroy(rollback, at.id, DestroyOptions{Backend: at.backend, Ref: at.ref, Reason: reason}); err != nil {
		view := m.lastKnown(at)
		view.Status = sdk.StatusFailed
		return view, fmt.Errorf("%w; removing it failed too, and `sandboxer reap` removes it after its deadline: %w", cause, err)
	}
	return Sandbox{}, fmt.Errorf("%w; it was removed again", cause)
}

// reasonOf returns a short code for an error.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	for _, kind := range sdk.Kinds() {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return "error"
}
