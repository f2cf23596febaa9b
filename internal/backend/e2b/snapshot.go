// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// Snapshots: templates of the vendor's that were made from a sandbox. They have
// a name and nothing else that a client can set, no time, and no end: the name
// carries what every machine has to know, the record the rest, and a tag a
// retention that was moved.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// namePrefix begins the name of every snapshot that is sandboxer's.
const namePrefix = "sbxr-"

// untilPrefix begins the tag of a retention that was moved.
const untilPrefix = "until-"

// snapshotName is what is in the name of a snapshot: only the letters, digits
// and dashes that an alias may have.
type snapshotName struct {
	fleet   string // see fleetKey
	id      string // without its prefix
	sandbox string // the same
	created time.Time
	expires time.Time
	kind    sdk.SnapshotKind
	secrets bool
}

func (n snapshotName) String() string {
	flags := "f"
	if n.kind == sdk.SnapshotMemory {
		flags = "m"
	}
	if n.secrets {
		flags += "s"
	}
	return namePrefix + strings.Join([]string{
		n.fleet, n.id, n.sandbox, strconv.FormatInt(n.created.Unix(), 36), strconv.FormatInt(n.expires.Unix(), 36), flags,
	}, "-")
}

// parseName reads a name; ok is false for one that is not sandboxer's.
func parseName(name string) (n snapshotName, ok bool) {
	_, alias, slugged := strings.Cut(name, "/")
	if !slugged {
		alias = name
	}
	alias, _, _ = strings.Cut(alias, ":")
	rest, ours := strings.CutPrefix(alias, namePrefix)
	parts := strings.Split(rest, "-")
	if !ours || len(parts) != 6 || !sdk.IsSnapshotID("snp-"+parts[1]) || !sdk.IsSandboxID("sbx-"+parts[2]) {
		return n, false
	}
	created, createdErr := strconv.ParseInt(parts[3], 36, 64)
	expires, expiresErr := strconv.ParseInt(parts[4], 36, 64)
	if createdErr != nil || expiresErr != nil || parts[5] == "" {
		return n, false
	}
	n = snapshotName{
		fleet: parts[0], id: parts[1], sandbox: parts[2], created: time.Unix(created, 0).UTC(), expires: time.Unix(expires, 0).UTC(),
		kind: sdk.SnapshotFilesystem, secrets: strings.HasSuffix(parts[5], "s"),
	}
	if parts[5][0] == 'm' {
		n.kind = sdk.SnapshotMemory
	}
	return n, true
}

// snapshotPathsMost bounds what a snapshot may take: it copies the memory.
const snapshotDeadline = 5 * time.Minute

// Snapshot implements [sdk.Snapshotter].
func (e *Extension) Snapshot(ctx context.Context, opts sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	if opts.Kind != sdk.SnapshotFilesystem && opts.Kind != sdk.SnapshotMemory {
		return sdk.SnapshotResult{}, sdk.Unsupported("kind", "E2B makes no snapshot of the kind %.40q", string(opts.Kind))
	}
	if !sdk.IsSnapshotID(opts.SnapshotID) {
		return sdk.SnapshotResult{}, sdk.Invalid("id", "%.80q is not a snapshot id", opts.SnapshotID)
	}
	f, err := e.find(ctx, opts.Target)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	if err := f.alive(); err != nil {
		return sdk.SnapshotResult{}, err
	}
	if f.vendor.State == statePaused {
		return sdk.SnapshotResult{}, sdk.Conflict(f.sandbox.Lease, "sandbox %s is paused, and E2B makes snapshots of what runs: resume it", opts.Target.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotDeadline)
	defer cancel()
	name := snapshotName{
		fleet: fleetKey(opts.Target.Fleet), id: strings.TrimPrefix(opts.SnapshotID, "snp-"), sandbox: strings.TrimPrefix(opts.Target.ID, "sbx-"),
		created: e.now(), expires: opts.ExpiresAt, kind: opts.Kind, secrets: f.object.Secrets,
	}
	made, err := e.makeSnapshot(ctx, f, name)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	s := sdk.Snapshot{
		ID: opts.SnapshotID, Ref: made.SnapshotID, SandboxID: opts.Target.ID, Kind: opts.Kind, Identity: opts.Identity,
		CreatedAt: name.created.UTC(), ExpiresAt: opts.ExpiresAt.UTC(), ContainsSecrets: f.object.Secrets, Profile: f.object.Profile,
	}
	if err := e.records.put(s.ID, snapshotRecord{recordVersion, s}); err != nil {
		return sdk.SnapshotResult{}, errors.Join(err, e.client.deleteTemplate(ctx, s.Ref))
	}
	return sdk.SnapshotResult{Snapshot: s}, nil
}

// makeSnapshot asks for a snapshot. An answer that did not come is searched
// for by the name, which nothing else has; a failure may have ended the
// source, which is then said.
func (e *Extension) makeSnapshot(ctx context.Context, f found, name snapshotName) (vendorSnapshot, error) {
	sent := e.opts.Clock.Now()
	made, err := e.client.createSnapshot(ctx, f.vendor.SandboxID, name.String())
	if err == nil {
		if _, ok := parseName(made.SnapshotID); ok {
			return made, nil
		}
		err = &statusError{cause: fmt.Errorf("the answer names no snapshot")}
	}
	if !unknown(err) || status(err) == http.StatusConflict || absent(err) {
		return made, err
	}
	for pause := adoptPause; ; pause = min(2*pause, adoptMost) {
		all, _, listErr := e.snapshots(ctx, name.fleet)
		if there, ok := all[name.id]; listErr == nil && ok {
			return there.vendor, nil
		}
		v, look := e.client.getSandbox(ctx, f.vendor.SandboxID)
		if absent(look) {
			return made, errors.Join(sdk.Errorf(sdk.ErrNotFound, "sandbox %s was lost while a snapshot of it was made", f.sandbox.ID), err)
		}
		if look == nil && v.State == stateRunning && listErr == nil && status(err) >= http.StatusInternalServerError || e.opts.Clock.Now().Sub(sent) >= e.opts.Settle {
			return made, errors.Join(err, look, listErr)
		}
		if sleepErr := e.opts.Clock.Sleep(ctx, pause); sleepErr != nil {
			return made, errors.Join(err, sleepErr)
		}
	}
}

// foundSnapshot is a snapshot with what it was read from.
type foundSnapshot struct {
	snapshot sdk.Snapshot
	vendor   vendorSnapshot
	name     snapshotName
}

// snapshots returns the snapshots of a fleet, by their ids without the prefix.
func (e *Extension) snapshots(ctx context.Context, fleet string) (all map[string]foundSnapshot, incomplete string, err error) {
	all, tokens, token := map[string]foundSnapshot{}, map[string]bool{}, ""
	for range pagesMost {
		page, next, err := e.client.listSnapshots(ctx, token)
		if err != nil {
			return nil, "", err
		}
		for _, v := range page {
			name, ok := parseName(v.SnapshotID)
			if !ok && len(v.Names) > 0 {
				name, ok = parseName(v.Names[0])
			}
			if ok && name.fleet == fleet {
				all[name.id] = foundSnapshot{vendor: v, name: name}
			}
		}
		if next == "" {
			return all, incomplete, nil
		}
		if len(page) < pageSize {
			incomplete = fmt.Sprintf("a page that is not the last held %d of %d snapshots", len(page), pageSize)
		}
		if tokens[next] {
			return all, "the listing comes back to a page that it has given already", nil
		}
		tokens[next], token = true, next
	}
	return all, fmt.Sprintf("the listing did not end after %d pages", pagesMost), nil
}

// complete fills in what the record knows, and what a tag says of a retention
// that seems to be over: it may have been moved by somebody else.
func (e *Extension) complete(ctx context.Context, f foundSnapshot, fleet string) (foundSnapshot, error) {
	n := f.name
	id := "snp-" + n.id
	var kept snapshotRecord
	has, err := e.records.load(id, &kept)
	if err != nil {
		return f, err
	}
	f.snapshot = kept.Snapshot
	if !has {
		f.snapshot = sdk.Snapshot{
			ID: id, SandboxID: "sbx-" + n.sandbox, Kind: n.kind, CreatedAt: n.created, ExpiresAt: n.expires,
			Identity: sdk.Identity{ID: id, Fleet: fleet, Incarnation: 1, CreatedAt: n.created}, ContainsSecrets: n.secrets,
		}
	}
	f.snapshot.Ref = f.vendor.SnapshotID
	if f.snapshot.ExpiresAt.After(e.now()) {
		return f, nil
	}
	tags, err := e.client.tags(ctx, f.vendor.SnapshotID)
	if err != nil && !absent(err) {
		return f, err
	}
	for _, tag := range tags {
		digits, ok := strings.CutPrefix(tag, untilPrefix)
		seconds, err := strconv.ParseInt(digits, 10, 64)
		if until := time.Unix(seconds, 0).UTC(); ok && err == nil && until.After(f.snapshot.ExpiresAt) {
			f.snapshot.ExpiresAt = until
		}
	}
	return f, nil
}

// findSnapshot returns one snapshot of a fleet.
func (e *Extension) findSnapshot(ctx context.Context, id, fleet string) (foundSnapshot, error) {
	all, incomplete, err := e.snapshots(ctx, fleetKey(fleet))
	if err != nil {
		return foundSnapshot{}, err
	}
	if f, ok := all[strings.TrimPrefix(id, "snp-")]; ok {
		return e.complete(ctx, f, fleet)
	}
	if incomplete != "" {
		return foundSnapshot{}, sdk.Errorf(sdk.ErrUnreachable, "snapshot %s was not found, but %s", id, incomplete)
	}
	return foundSnapshot{}, sdk.Errorf(sdk.ErrNotFound, "E2B has no snapshot %.80s of this fleet", id)
}

// GetSnapshot implements [sdk.Snapshotter].
func (e *Extension) GetSnapshot(ctx context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	f, err := e.findSnapshot(ctx, opts.SnapshotID, opts.Fleet)
	return sdk.GetSnapshotResult{Snapshot: f.snapshot}, err
}

// ListSnapshots implements [sdk.Snapshotter].
func (e *Extension) ListSnapshots(ctx context.Context, opts sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	all, incomplete, err := e.snapshots(ctx, fleetKey(opts.Fleet))
	if err != nil {
		return sdk.ListSnapshotsResult{}, err
	}
	result := sdk.ListSnapshotsResult{Incomplete: incomplete}
	for _, id := range sorted(all) {
		f, err := e.complete(ctx, all[id], opts.Fleet)
		if err != nil {
			return result, err
		}
		result.Snapshots = append(result.Snapshots, f.snapshot)
	}
	return result, nil
}

// ExtendSnapshot implements [sdk.Snapshotter].
func (e *Extension) ExtendSnapshot(ctx context.Context, opts sdk.ExtendSnapshotOptions) (sdk.ExtendSnapshotResult, error) {
	var result sdk.ExtendSnapshotResult
	err := e.records.locked(ctx, opts.SnapshotID, func() error {
		f, err := e.findSnapshot(ctx, opts.SnapshotID, opts.Fleet)
		if err != nil {
			return err
		}
		result.Snapshot = f.snapshot
		if !opts.ExpiresAt.After(f.snapshot.ExpiresAt) {
			return nil
		}
		// Rounded up: never less than was asked for.
		until := opts.ExpiresAt.UTC().Add(time.Second - time.Nanosecond).Truncate(time.Second)
		if err := e.client.addTag(ctx, f.vendor.SnapshotID, untilPrefix+strconv.FormatInt(until.Unix(), 10)); err != nil {
			return err
		}
		result.Snapshot.ExpiresAt = until
		return e.records.put(opts.SnapshotID, snapshotRecord{recordVersion, result.Snapshot})
	})
	return result, err
}

// DeleteSnapshot implements [sdk.Snapshotter].
func (e *Extension) DeleteSnapshot(ctx context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	result := sdk.DeleteSnapshotResult{}
	var last error
	for attempt := range goneTries {
		if last != nil {
			if err := e.opts.Clock.Sleep(ctx, gonePause<<attempt); err != nil {
				return result, errors.Join(last, err)
			}
		}
		f, err := e.findSnapshot(ctx, opts.SnapshotID, opts.Fleet)
		if errors.Is(err, sdk.ErrNotFound) {
			if result.Existed {
				return result, e.records.drop(opts.SnapshotID)
			}
			return result, nil
		}
		if err != nil {
			return result, errors.Join(last, err)
		}
		result.Existed = true
		// One template is one snapshot: the name is its own.
		last = e.client.deleteTemplate(ctx, f.vendor.SnapshotID)
		switch {
		case status(last) == http.StatusBadRequest:
			return result, &sdk.Error{
				Kind: sdk.ErrConflict, Message: fmt.Sprintf("snapshot %s is in use: sandboxes that were made from it are still there", opts.SnapshotID),
				Advice: "destroy them first", Err: last,
			}
		case last != nil && !absent(last) && status(last) != http.StatusConflict && !unknown(last):
			return result, last
		}
	}
	if last == nil {
		last = errContradiction
	}
	return result, fmt.Errorf("snapshot %s could not be seen gone: %w", opts.SnapshotID, last)
}

// Restore implements [sdk.Snapshotter].
func (e *Extension) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	if err := errors.Join(opts.Create.Check(e.now()), refuse(opts.Create, true)); err != nil {
		return sdk.CreateResult{}, err
	}
	f, err := e.findSnapshot(ctx, opts.SnapshotID, opts.Create.Identity.Fleet)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	return e.create(ctx, opts.Create, source{ref: f.vendor.SnapshotID, path: "snapshot"}, false)
}
