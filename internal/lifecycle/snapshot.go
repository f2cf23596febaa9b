// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// kindFeatures are what each kind of snapshot needs of a backend.
var kindFeatures = map[sdk.SnapshotKind]sdk.Feature{
	sdk.SnapshotFilesystem: sdk.FeatureFilesystemSnapshot,
	sdk.SnapshotMemory:     sdk.FeatureMemorySnapshot,
}

// SnapshotRequirement returns what a kind of snapshot needs of a backend, on
// an attribute.
func SnapshotRequirement(at string, kind sdk.SnapshotKind) (sandbox.Requirement, error) {
	feature, ok := kindFeatures[kind]
	if !ok {
		return sandbox.Requirement{}, sdk.Invalid(at, "%.40q is not one of filesystem, memory", kind)
	}
	return sandbox.Requirement{Path: at, Feature: feature, Class: sdk.ClassEmulated}, nil
}

// Snapshot checkpoints a sandbox and returns when the snapshot is durable.
// Its intent is in the ledger first; a lost answer is searched for by id, and
// what a cancelled call has made is removed.
func (m *Manager) Snapshot(ctx context.Context, id string, opts SnapshotOptions) (Snapshot, error) {
	kind := cmp.Or(opts.Kind, sdk.SnapshotFilesystem)
	ext, at, err := m.using(ctx, id, opts.Backend)
	if err != nil {
		return Snapshot{}, err
	}
	snapshotter, err := m.checkSnapshot(ctx, ext, at, kind, opts)
	if err != nil {
		return Snapshot{}, err
	}
	got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
	if err != nil {
		return Snapshot{}, failure("read sandbox", id, at.backend, err)
	}
	source, err := m.view(at, got.Sandbox)
	if err != nil {
		return Snapshot{}, err
	}
	if !source.Alive() {
		return Snapshot{}, sdk.Errorf(sdk.ErrConflict, "sandbox %s on backend %q can't be snapshotted: its status is %s", id, at.backend, source.Status)
	}
	now := m.clock.Now().UTC()
	labels := maps.Clone(source.Labels)
	maps.Copy(labels, opts.Labels)
	made := opts.Attribution.Or(m.settings.Attribution).Or(sandbox.Attribution{Owner: source.Owner, Task: source.Task})
	request := sdk.SnapshotOptions{
		Target: at.target(m.settings.Fleet), SnapshotID: sandbox.NewSnapshotID(now), Kind: kind,
		ExpiresAt: now.Add(cmp.Or(opts.TTL, DefaultSnapshotTTL)), Progress: opts.Progress,
		Identity: sdk.Identity{
			Fleet: m.settings.Fleet, Incarnation: 1, CreatedAt: now, Labels: labels,
			Owner: made.Owner, Task: made.Task, Run: made.Run, Actor: made.Actor,
			Profile: source.Profile, ProfileRevision: source.ProfileRevision,
		},
	}
	request.Identity.ID = request.SnapshotID
	intended, err := m.append(ctx, request.SnapshotID, ledger.Event{
		Type: ledger.Intended, Backend: at.backend, Lease: &sdk.Lease{ExpiresAt: request.ExpiresAt, MaxExpiresAt: request.ExpiresAt, Generation: 1},
		Intent: &ledger.Intent{Fleet: m.settings.Fleet, Identity: request.Identity, Profile: source.document, SnapshotOf: id, SnapshotKind: kind},
	})
	if err != nil {
		return Snapshot{}, err
	}
	snapshotting := ledger.Event{Type: ledger.Snapshotting, SnapshotID: request.SnapshotID, Backend: at.backend, Ref: source.Ref, Intent: intentOf(at, source.found)}
	if snapshotting.Intent != nil {
		snapshotting.Lease = &source.found.Lease // of a sandbox that another ledger made
	}
	if _, err := m.append(ctx, id, snapshotting); err != nil {
		return Snapshot{}, err
	}
	request.Event = intended.event
	result, err := snapshotter.Snapshot(ctx, request)
	if err != nil || result.Snapshot.ID != request.SnapshotID {
		if err == nil {
			err = errOtherSnapshot
		}
		result.Snapshot, err = m.searchSnapshot(ctx, at, request.SnapshotID, failure("snapshot sandbox", id, at.backend, err))
	}
	if err != nil {
		return Snapshot{}, err
	}
	return m.keepSnapshot(ctx, at, result.Snapshot, opts)
}

func (m *Manager) checkSnapshot(ctx context.Context, ext sdk.Extension, at place, kind sdk.SnapshotKind, opts SnapshotOptions) (sdk.Snapshotter, error) {
	need, err := SnapshotRequirement("kind", kind)
	if err != nil {
		return nil, err
	}
	if err := sandbox.ProfileError(sandbox.ValidateLabels("labels", opts.Labels)); err != nil {
		return nil, err
	}
	described, err := m.describe(ctx, at.backend)
	if err != nil {
		return nil, err
	}
	result := CheckResult{Backend: at.backend}
	result.Mismatches, _ = sandbox.CheckRequirements([]sandbox.Requirement{need}, described.Capabilities)
	if err := result.Err(); err != nil {
		return nil, err
	}
	snapshotter, ok := sdk.As[sdk.Snapshotter](ext)
	if !ok {
		return nil, lacks(at.backend, "snapshot")
	}
	return snapshotter, nil
}

// errOtherSnapshot is an answer that is about something else.
var errOtherSnapshot = errors.New("the answer is about another snapshot")

// keepSnapshot writes down that a snapshot exists, in its own log and in that
// of the sandbox, where it was made from one that is here.
func (m *Manager) keepSnapshot(ctx context.Context, at place, made sdk.Snapshot, opts SnapshotOptions) (Snapshot, error) {
	kept, err := m.append(ctx, made.ID, ledger.Event{
		Type: ledger.Snapshotted, Ref: made.Ref, Lease: &sdk.Lease{ExpiresAt: made.ExpiresAt, MaxExpiresAt: made.ExpiresAt, Generation: 1},
	})
	if err == nil && at.id != "" {
		_, err = m.append(ctx, at.id, ledger.Event{Type: ledger.Snapshotted, SnapshotID: made.ID})
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %s was made on backend %q, and the ledger keeps its intent: %w", made.ID, at.backend, err)
	}
	view := viewSnapshot(at.backend, made, &kept.record)
	if opts.Created != nil {
		opts.Created(view)
	}
	return view, nil
}

// searchSnapshot looks for a snapshot whose answer was lost or whose call
// was cancelled. The place has no id when it was not made from a sandbox here.
func (m *Manager) searchSnapshot(ctx context.Context, at place, snapshotID string, cause error) (sdk.Snapshot, error) {
	cancelled := ctx.Err() != nil
	search, cancel := detached(ctx, m.settings.Budgets.Search)
	defer cancel()
	// The extension may have died of the call: it is opened anew.
	snapshotter, err := m.snapshotter(search, at.backend)
	var got sdk.GetSnapshotResult
	if err == nil {
		got, err = snapshotter.GetSnapshot(search, sdk.GetSnapshotOptions{SnapshotID: snapshotID, Fleet: m.settings.Fleet})
	}
	if err == nil && got.Snapshot.ID == snapshotID && !cancelled && refused(cause) == nil {
		return got.Snapshot, nil
	}
	if err == nil || errors.Is(err, sdk.ErrNotFound) {
		_, err = snapshotter.DeleteSnapshot(search, sdk.DeleteSnapshotOptions{SnapshotID: snapshotID, Fleet: m.settings.Fleet})
	}
	if err != nil {
		return sdk.Snapshot{}, fmt.Errorf("%w; whether snapshot %s exists could not be learnt (%w): the ledger keeps the intent", cause, snapshotID, err)
	}
	if got.Snapshot.ID == "" && errors.Is(cause, sdk.ErrUnreachable) {
		// As with a sandbox, it may come yet.
		_, err := m.append(ctx, snapshotID, ledger.Event{Type: ledger.Lost, Reason: reasonOf(cause), Message: "the answer to its making was lost, and it is not there"})
		return sdk.Snapshot{}, errors.Join(fmt.Errorf("%w; the backend does not show snapshot %s, and may do so yet: the ledger keeps the intent", cause, snapshotID), err)
	}
	for _, id := range []string{snapshotID, at.id} {
		if id == "" {
			continue
		}
		_, err := m.append(ctx, id, ledger.Event{Type: ledger.SnapshotFailed, Reason: reasonOf(cause), Message: cause.Error(), SnapshotID: snapshotID})
		cause = errors.Join(cause, err)
	}
	return sdk.Snapshot{}, cause
}

// locateSnapshot finds the backend of a snapshot.
func (m *Manager) locateSnapshot(ctx context.Context, id, backend string) (sdk.Snapshotter, string, ledger.Record, error) {
	if err := sandbox.ParseSnapshotID(id); err != nil {
		return nil, "", ledger.Record{}, sdk.Invalid("snapshot", "%s", err)
	}
	record, err := m.record(ctx, id)
	if err != nil {
		return nil, "", record, err
	}
	if record.Known() && record.Fleet != "" && record.Fleet != m.settings.Fleet {
		return nil, "", record, foreign(id, record.Fleet, m.settings.Fleet)
	}
	names := []string{cmp.Or(backend, record.Backend)}
	if names[0] == "" {
		names = m.backends.Names()
	}
	var failed []string
	for _, name := range names {
		snapshotter, err := m.snapshotter(ctx, name)
		if err == nil && len(names) == 1 {
			return snapshotter, name, record, nil
		}
		if err == nil {
			_, err = snapshotter.GetSnapshot(ctx, sdk.GetSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet})
		}
		switch {
		case err == nil:
			return snapshotter, name, record, nil
		case errors.Is(err, sdk.ErrUnsupported) && len(names) == 1:
			return nil, "", record, err
		case !errors.Is(err, sdk.ErrNotFound) && !errors.Is(err, sdk.ErrUnsupported):
			failed = append(failed, fmt.Sprintf("backend %q: %s", name, err))
		}
	}
	if len(failed) > 0 {
		return nil, "", record, sdk.Errorf(sdk.ErrUnreachable, "snapshot %s is unknown to the ledger and these backends could not be asked: %s", id, strings.Join(failed, "; "))
	}
	return nil, "", record, sdk.Errorf(sdk.ErrNotFound, "snapshot %s is known to neither the ledger nor a backend of fleet %q", id, m.settings.Fleet)
}

func (m *Manager) snapshotter(ctx context.Context, backend string) (sdk.Snapshotter, error) {
	ext, err := m.open(ctx, backend)
	if err != nil {
		return nil, err
	}
	snapshotter, ok := sdk.As[sdk.Snapshotter](ext)
	if !ok {
		return nil, lacks(backend, "snapshots")
	}
	return snapshotter, nil
}

// GetSnapshot returns a snapshot. [sdk.ErrNotFound] means that it is gone.
func (m *Manager) GetSnapshot(ctx context.Context, id string, opts GetOptions) (Snapshot, error) {
	snapshotter, backend, record, err := m.locateSnapshot(ctx, id, opts.Backend)
	if err != nil {
		return Snapshot{}, err
	}
	got, err := snapshotter.GetSnapshot(ctx, sdk.GetSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet})
	if err != nil {
		return Snapshot{}, failure("read snapshot", id, backend, err)
	}
	if got.Snapshot.ID != id {
		return Snapshot{}, fmt.Errorf("backend %q answered with snapshot %.40q when asked for %s", backend, got.Snapshot.ID, id)
	}
	if got.Snapshot.Identity.Fleet != m.settings.Fleet {
		return Snapshot{}, foreign(id, got.Snapshot.Identity.Fleet, m.settings.Fleet)
	}
	return viewSnapshot(backend, got.Snapshot, known(record)), nil
}

func known(record ledger.Record) *ledger.Record {
	if !record.Known() {
		return nil
	}
	return &record
}

// Snapshots returns the fleet's snapshots, by id, which is by age. Backends
// that can't be asked are named.
func (m *Manager) Snapshots(ctx context.Context, opts ListSnapshotsOptions) (ListSnapshotsResult, error) {
	names := m.backends.Names()
	if opts.Backend != "" {
		name, err := m.BackendName(opts.Backend)
		if err != nil {
			return ListSnapshotsResult{}, err
		}
		names = []string{name}
	}
	records, _, err := m.ledger.List(ctx, ledger.Filter{Fleet: m.settings.Fleet, Kind: ledger.KindSnapshot, Open: true})
	if err != nil {
		return ListSnapshotsResult{}, fmt.Errorf("list the ledger: %w", err)
	}
	byID := make(map[string]*ledger.Record, len(records))
	for i := range records {
		byID[records[i].ID] = &records[i]
	}
	result := ListSnapshotsResult{Snapshots: []Snapshot{}, Unreachable: map[string]string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			list, err := m.listSnapshots(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				result.Unreachable[name] = err.Error()
			case list.Incomplete != "":
				result.Unreachable[name] = list.Incomplete
			}
			for _, s := range list.Snapshots {
				if s.Identity.Fleet == m.settings.Fleet && (opts.SandboxID == "" || opts.SandboxID == s.SandboxID) {
					result.Snapshots = append(result.Snapshots, viewSnapshot(name, s, byID[s.ID]))
				}
			}
		})
	}
	wg.Wait()
	if opts.Missing {
		result.addMissing(records, names, opts.SandboxID)
	}
	slices.SortFunc(result.Snapshots, func(a, b Snapshot) int { return cmp.Compare(a.ID, b.ID) })
	return result, nil
}

// addMissing adds what the ledger holds open and no listing shows, for the
// backends that could be asked for everything.
func (r *ListSnapshotsResult) addMissing(records []ledger.Record, names []string, sandboxID string) {
	listed := map[string]bool{}
	for _, s := range r.Snapshots {
		listed[s.ID] = true
	}
	for _, record := range records {
		_, unreachable := r.Unreachable[record.Backend]
		wanted := sandboxID == "" || sandboxID == record.SnapshotOf
		if wanted && !listed[record.ID] && !unreachable && slices.Contains(names, record.Backend) {
			r.Snapshots = append(r.Snapshots, viewMissingSnapshot(record))
		}
	}
}

// listSnapshots asks one backend; one that makes no snapshots has none.
func (m *Manager) listSnapshots(ctx context.Context, backend string) (sdk.ListSnapshotsResult, error) {
	snapshotter, err := m.snapshotter(ctx, backend)
	if errors.Is(err, sdk.ErrUnsupported) {
		return sdk.ListSnapshotsResult{}, nil
	}
	if err != nil {
		return sdk.ListSnapshotsResult{}, err
	}
	return snapshotter.ListSnapshots(ctx, sdk.ListSnapshotsOptions{Fleet: m.settings.Fleet})
}

// ExtendSnapshotOptions are the options of [Manager.ExtendSnapshot].
type ExtendSnapshotOptions struct {
	Backend string
	To      time.Time
}

// ExtendSnapshot moves a snapshot's retention later; it never shortens.
func (m *Manager) ExtendSnapshot(ctx context.Context, id string, opts ExtendSnapshotOptions) (Snapshot, error) {
	snapshotter, backend, record, err := m.locateSnapshot(ctx, id, opts.Backend)
	if err != nil {
		return Snapshot{}, err
	}
	result, err := snapshotter.ExtendSnapshot(ctx, sdk.ExtendSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet, ExpiresAt: opts.To})
	if err != nil {
		return Snapshot{}, failure("extend snapshot", id, backend, err)
	}
	if record.Known() {
		lease := sdk.Lease{ExpiresAt: result.Snapshot.ExpiresAt, MaxExpiresAt: result.Snapshot.ExpiresAt, Generation: record.Lease.Generation + 1}
		if _, err := m.append(ctx, id, ledger.Event{Type: ledger.Extended, Lease: &lease}); err != nil {
			return Snapshot{}, err
		}
	}
	return viewSnapshot(backend, result.Snapshot, known(record)), nil
}

// DeleteSnapshotOptions are the options of [Manager.DeleteSnapshot].
type DeleteSnapshotOptions struct {
	Backend string
	Reason  string
	// OnUnreachable is the settings' when it is empty.
	OnUnreachable OnUnreachable
}

// DeleteSnapshotResult is the result of [Manager.DeleteSnapshot].
type DeleteSnapshotResult struct {
	Existed bool // false when it was already gone
	// Forgotten is as in [DestroyResult].
	Forgotten string
}

// DeleteSnapshot removes a snapshot and returns when its absence was
// observed. Deleting what is not there succeeds. An unreachable backend is as
// for [Manager.Destroy].
func (m *Manager) DeleteSnapshot(ctx context.Context, id string, opts DeleteSnapshotOptions) (DeleteSnapshotResult, error) {
	existed, backend, err := m.deleteSnapshot(ctx, id, opts)
	result := DeleteSnapshotResult{Existed: existed}
	if !errors.Is(err, sdk.ErrUnreachable) || backend == "" || cmp.Or(opts.OnUnreachable, m.settings.OnUnreachable) != UnreachableForget {
		return result, err
	}
	record, readErr := m.record(ctx, id)
	if readErr != nil {
		return result, errors.Join(err, readErr)
	}
	result.Forgotten = err.Error()
	return result, m.forget(ctx, id, place{backend: backend, record: record}, opts.Reason, err)
}

// deleteSnapshot does so, and returns the backend as soon as it is known.
func (m *Manager) deleteSnapshot(ctx context.Context, id string, opts DeleteSnapshotOptions) (existed bool, at string, err error) {
	snapshotter, backend, record, err := m.locateSnapshot(ctx, id, opts.Backend)
	if errors.Is(err, sdk.ErrNotFound) {
		return false, backend, nil
	}
	if err != nil {
		return false, cmp.Or(backend, opts.Backend, record.Backend), err
	}
	if record.Known() && !record.Open {
		if _, err := snapshotter.GetSnapshot(ctx, sdk.GetSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet}); err != nil {
			return false, backend, nil //nolint:nilerr // its absence was observed before
		}
		if _, err := m.reopen(ctx, id, backend); err != nil {
			return false, backend, err
		}
	}
	if record.Known() {
		if _, err := m.append(ctx, id, ledger.Event{Type: ledger.Destroying, Reason: opts.Reason}); err != nil {
			return false, backend, err
		}
	}
	result, err := snapshotter.DeleteSnapshot(ctx, sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet})
	if err == nil {
		err = m.awaitSnapshotGone(ctx, snapshotter, id)
	}
	if err != nil {
		err = failure("delete snapshot", id, backend, err)
		if record.Known() {
			_, logErr := m.append(ctx, id, ledger.Event{Type: ledger.DestroyFailed, Reason: reasonOf(err), Message: err.Error()})
			err = errors.Join(err, logErr)
		}
		return result.Existed, backend, err
	}
	if record.Known() {
		_, err = m.append(ctx, id, ledger.Event{Type: ledger.SnapshotDeleted, Reason: cmp.Or(opts.Reason, "user")})
	}
	return result.Existed, backend, err
}

// awaitSnapshotGone returns when a snapshot is neither found nor listed.
func (m *Manager) awaitSnapshotGone(ctx context.Context, snapshotter sdk.Snapshotter, id string) error {
	return m.awaitAbsence(ctx, absence{
		find: func() (string, error) {
			_, err := snapshotter.GetSnapshot(ctx, sdk.GetSnapshotOptions{SnapshotID: id, Fleet: m.settings.Fleet})
			return "", err
		},
		list: func() (listed bool, incomplete string, err error) {
			list, err := snapshotter.ListSnapshots(ctx, sdk.ListSnapshotsOptions{Fleet: m.settings.Fleet})
			return slices.ContainsFunc(list.Snapshots, func(s sdk.Snapshot) bool { return s.ID == id }), list.Incomplete, err
		},
	})
}
