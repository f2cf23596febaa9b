// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// sandboxFacts is what is computed about a sandbox, in the resource and in
// the data sources.
type sandboxFacts struct {
	ID                  types.String      `tfsdk:"id"`
	Status              types.String      `tfsdk:"status"`
	Reason              types.String      `tfsdk:"reason"`
	Ref                 types.String      `tfsdk:"ref"`
	Fleet               types.String      `tfsdk:"fleet"`
	ProfileName         types.String      `tfsdk:"profile_name"`
	ProfileRevision     types.String      `tfsdk:"profile_revision"`
	Document            types.String      `tfsdk:"document"`
	CreatedAt           timetypes.RFC3339 `tfsdk:"created_at"`
	ExpiresAt           timetypes.RFC3339 `tfsdk:"expires_at"`
	MaxExpiresAt        timetypes.RFC3339 `tfsdk:"max_expires_at"`
	Generation          types.Int64       `tfsdk:"generation"`
	Incarnation         types.Int64       `tfsdk:"incarnation"`
	Actor               types.String      `tfsdk:"actor"`
	Endpoints           types.Map         `tfsdk:"endpoints"`
	Guards              types.List        `tfsdk:"guards"`
	IdleExpiresAt       timetypes.RFC3339 `tfsdk:"idle_expires_at"`
	EndReason           types.String      `tfsdk:"end_reason"`
	ExpirySnapshotID    types.String      `tfsdk:"expiry_snapshot_id"`
	ExpirySnapshotError types.String      `tfsdk:"expiry_snapshot_error"`
}

var sandboxFactTable = []fact{
	{"id", factText, "Id of the sandbox, `sbx-…`."},
	{"status", factText, "Where it is in its life: `creating`, `ready`, `paused`, `expired`, `destroying`, `destroyed`, `failed` or `lost` (gone without us)."},
	{"reason", factText, "Why it has this status, where there is something to tell."},
	{"ref", factText, "The backend's own handle of it."},
	{"fleet", factText, "Fleet that owns it."},
	{"profile_name", factText, "Name of the profile that it was made from."},
	{"profile_revision", factText, "Digest of the profile that it was made from."},
	{"document", factText, "The profile that it was made from, as canonical JSON."},
	{"created_at", factTime, "When it was made."},
	{"expires_at", factTime, "Its deadline. It moves when the sandbox is extended, here or elsewhere."},
	{"max_expires_at", factTime, "The latest that its deadline can be moved to."},
	{"generation", factNumber, "Counts the changes of its lease, from 1."},
	{"incarnation", factNumber, "Counts the runs of the machine under it, from 1."},
	{"actor", factText, "Who or what made it."},
	{"endpoints", factMap, "Address of each named port of the profile as the client sees it, `host:port`."},
	{"guards", factTexts, "What ends it at its deadline when every client is dead: `supervisor`, `reaper_service`, `reaper_container`, `backend`. Empty when no live guard is known."},
	{"idle_expires_at", factTime, "When it ends if it is not used before, never later than `expires_at`. Null without an `idle_timeout`, and while it is paused."},
	{"end_reason", factText, "What ended it, or had it paused at its end: `deadline`, `idle`, `limit`, `supervisor_died` or `gone` (by itself, or by someone else)."},
	{"expiry_snapshot_id", factText, "Id of the snapshot that was taken at its end, if one was."},
	{"expiry_snapshot_error", factText, "Why the snapshot that was due at its end is missing."},
}

// flatten shows a sandbox: the one place where a view becomes Terraform's
// values. What the view does not tell, because neither the backend nor the
// ledger of this machine knows the sandbox any more, stays as it was.
func (f *sandboxFacts) flatten(v lifecycle.Sandbox) {
	f.ID = types.StringValue(v.ID)
	f.Status = types.StringValue(string(v.Status))
	f.Reason, f.EndReason = textValue(v.Reason), textValue(string(v.EndReason))
	if v.CreatedAt.IsZero() {
		return
	}
	f.Ref = textValue(v.Ref)
	f.Fleet = textValue(v.Fleet)
	f.ProfileName = textValue(v.Profile)
	f.ProfileRevision = textValue(v.ProfileRevision)
	f.CreatedAt = timeValue(v.CreatedAt)
	f.ExpiresAt = timeValue(v.ExpiresAt)
	f.MaxExpiresAt = timeValue(v.MaxExpiresAt)
	f.Generation = types.Int64Value(v.Generation)
	f.Incarnation = types.Int64Value(v.Incarnation)
	f.Actor = textValue(v.Actor)
	f.Endpoints = mapValue(v.Endpoints)
	f.Guards = textsValue(v.Guards)
	f.IdleExpiresAt = timeValue(v.IdleExpiresAt)
	f.ExpirySnapshotID, f.ExpirySnapshotError = textValue(v.ExpirySnapshotID), textValue(v.ExpirySnapshotError)
	if document := v.Document(); document.Name != "" {
		f.Document = types.StringValue(sandbox.Document(document))
	} else if f.Document.IsUnknown() {
		f.Document = types.StringNull()
	}
}

// endedStatuses are those from which a sandbox does not come back.
var endedStatuses = []sdk.Status{sdk.StatusExpired, sdk.StatusLost, sdk.StatusDestroying, sdk.StatusDestroyed}

// ended reports whether the sandbox is gone or going.
func (f *sandboxFacts) ended() bool {
	return slices.Contains(endedStatuses, sdk.Status(f.Status.ValueString()))
}

// forget makes every fact unknown: another sandbox will have others.
func (f *sandboxFacts) forget() {
	*f = sandboxFacts{
		ID: types.StringUnknown(), Status: types.StringUnknown(), Reason: types.StringUnknown(), Ref: types.StringUnknown(),
		Fleet: types.StringUnknown(), ProfileName: types.StringUnknown(), ProfileRevision: types.StringUnknown(), Document: types.StringUnknown(),
		CreatedAt: timetypes.NewRFC3339Unknown(), ExpiresAt: timetypes.NewRFC3339Unknown(), MaxExpiresAt: timetypes.NewRFC3339Unknown(),
		Generation: types.Int64Unknown(), Incarnation: types.Int64Unknown(), Actor: types.StringUnknown(),
		Endpoints: types.MapUnknown(types.StringType), Guards: types.ListUnknown(types.StringType), ExpirySnapshotID: types.StringUnknown(),
		IdleExpiresAt: timetypes.NewRFC3339Unknown(), EndReason: types.StringUnknown(), ExpirySnapshotError: types.StringUnknown(),
	}
}
