// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// printSandbox prints one sandbox.
func (a *app) printSandbox(s lifecycle.Sandbox, now time.Time) error {
	return a.print(s, facts(
		"ID", s.ID,
		"STATUS", statusOf(s),
		"REASON", s.Reason,
		"UNREACHABLE", s.Unreachable,
		"PROFILE", strings.Trim(s.Profile+"@"+s.ProfileRevision, "@"),
		"SNAPSHOT", s.Snapshot,
		"BACKEND", s.Backend,
		"REF", s.Ref,
		"FLEET", s.Fleet,
		"CREATED", moment(s.CreatedAt, now),
		"EXPIRES", moment(s.ExpiresAt, now),
		"AT MOST", moment(s.MaxExpiresAt, now),
		"IDLE UNTIL", moment(s.IdleExpiresAt, now),
		"IDLE TIMEOUT", s.IdleTimeout,
		"ON EXPIRY", string(s.OnExpiry),
		"KEPT PAUSED", s.PausedTTL,
		"ENDED BY", string(s.EndReason),
		"EXPIRY SNAPSHOT", cmp.Or(s.ExpirySnapshotID, missing(s.ExpirySnapshotError)),
		"GUARDS", guards(s.Guards),
		"OWNER", s.Owner,
		"TASK", s.Task,
		"RUN", s.Run,
		"ACTOR", s.Actor,
		"LABELS", labels(s.Labels),
		"ENDPOINTS", labels(s.Endpoints),
	))
}

// missing shows why something is not there.
func missing(why string) string {
	if why == "" {
		return ""
	}
	return "none: " + why
}

// printSandboxes prints a listing.
func (a *app) printSandboxes(list []lifecycle.Sandbox, runtime *config.Runtime, wide bool) error {
	now := runtime.Manager.Now()
	a.noteNothing(len(list), runtime)
	rows := [][]string{{"ID", "STATUS", "PROFILE", "BACKEND", "EXPIRES", "OWNER", "TASK"}}
	if wide {
		rows[0] = append(rows[0], "RUN")
	}
	for _, s := range list {
		row := []string{s.ID, statusOf(s), s.Profile, s.Backend, expires(s, now), s.Owner, s.Task}
		if wide {
			row = append(row, s.Run)
		}
		rows = append(rows, row)
	}
	return a.print(list, rows)
}

// expires shows when a sandbox ends as things stand.
func expires(s lifecycle.Sandbox, now time.Time) string {
	at, clock := s.EndsAt()
	if clock == sdk.EndIdle {
		return when(at, now) + " if idle"
	}
	return when(at, now)
}

// statusOf marks what could not be asked about, and what this ledger has no
// record of.
func statusOf(s lifecycle.Sandbox) string {
	status := string(s.Status)
	if s.Unreachable != "" {
		status += "? (unreachable)"
	}
	if !s.Known {
		status += " (not in this ledger)"
	}
	return status
}

func guards(list []sdk.Guard) string {
	var names []string
	for _, guard := range list {
		names = append(names, string(guard))
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// printSnapshot prints one snapshot.
func (a *app) printSnapshot(s lifecycle.Snapshot, now time.Time) error {
	return a.print(s, facts(
		"ID", s.ID,
		"KIND", string(s.Kind),
		"SANDBOX", s.SandboxID,
		"PROFILE", strings.Trim(s.Profile+"@"+s.ProfileRevision, "@"),
		"BACKEND", s.Backend,
		"REF", s.Ref,
		"FLEET", s.Fleet,
		"CREATED", moment(s.CreatedAt, now),
		"EXPIRES", moment(s.ExpiresAt, now),
		"SIZE", sizeOf(s.Size),
		"DIGEST", s.Digest,
		"CONTAINS SECRETS", strconv.FormatBool(s.ContainsSecrets),
		"LOST", strings.Join(s.Lost, ", "),
		"OWNER", s.Owner,
		"LABELS", labels(s.Labels),
	))
}

// printSnapshots prints a listing of snapshots.
func (a *app) printSnapshots(list []lifecycle.Snapshot, runtime *config.Runtime) error {
	now := runtime.Manager.Now()
	a.noteNothing(len(list), runtime)
	rows := [][]string{{"ID", "KIND", "SANDBOX", "PROFILE", "BACKEND", "SIZE", "EXPIRES"}}
	for _, s := range list {
		rows = append(rows, []string{s.ID, string(s.Kind), s.SandboxID, s.Profile, s.Backend, sizeOf(s.Size), when(s.ExpiresAt, now)})
	}
	return a.print(list, rows)
}

// noteNothing says of an empty table which fleet it is of: whoever misses
// something often looks into another one.
func (a *app) noteNothing(length int, runtime *config.Runtime) {
	if length == 0 && a.format == formatTable {
		a.note("fleet %q: nothing (another fleet: --fleet)", runtime.Manager.Fleet())
	}
}

// noteIncomplete says what a listing could not see.
func (a *app) noteIncomplete(unreachable map[string]string, unreadable []string) {
	for _, name := range sortedKeys(unreachable) {
		a.note("warning: backend %s could not be asked: %s", name, unreachable[name])
	}
	for _, log := range unreadable {
		a.note("warning: a log of the ledger can't be read: %s", log)
	}
	if len(unreadable) > 0 {
		a.note("  to do: the guide on troubleshooting says what such a log means and when it can be taken away")
	}
}
