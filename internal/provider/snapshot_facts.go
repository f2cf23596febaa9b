// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// snapshotModel is sandboxer_snapshot.
type snapshotModel struct {
	SandboxID        types.String   `tfsdk:"sandbox_id"`
	Backend          types.String   `tfsdk:"backend"`
	Kind             types.String   `tfsdk:"kind"`
	TTL              duration       `tfsdk:"ttl"`
	Labels           types.Map      `tfsdk:"labels"`
	OnSourceReplaced types.String   `tfsdk:"on_source_replaced"`
	OnExpired        types.String   `tfsdk:"on_expired"`
	Timeouts         timeouts.Value `tfsdk:"timeouts"`

	ID              types.String      `tfsdk:"id"`
	Status          types.String      `tfsdk:"status"`
	Ref             types.String      `tfsdk:"ref"`
	Fleet           types.String      `tfsdk:"fleet"`
	ProfileName     types.String      `tfsdk:"profile_name"`
	ProfileRevision types.String      `tfsdk:"profile_revision"`
	CreatedAt       timetypes.RFC3339 `tfsdk:"created_at"`
	ExpiresAt       timetypes.RFC3339 `tfsdk:"expires_at"`
	Size            types.Int64       `tfsdk:"size"`
	Digest          types.String      `tfsdk:"digest"`
	ContainsSecrets types.Bool        `tfsdk:"contains_secrets"`
	Lost            types.List        `tfsdk:"lost"`
}

var snapshotFactTable = []fact{
	{"id", factText, "Id of the snapshot, `snp-…`."},
	{"status", factText, "`ready`, `expired` (its retention ended) or `lost` (gone before that)."},
	{"ref", factText, "The backend's own handle of it."},
	{"fleet", factText, "Fleet that owns it."},
	{"profile_name", factText, "Name of the profile of the sandbox that it was made from."},
	{"profile_revision", factText, "Digest of that profile."},
	{"created_at", factTime, "When it was made."},
	{"expires_at", factTime, "When its retention ends."},
	{"size", factNumber, "Bytes at rest."},
	{"digest", factText, "Digest of its content, where the backend has one."},
	{"contains_secrets", factBool, "Whether it may hold secret values: true for a memory snapshot of a sandbox that was given secrets."},
	{"lost", factTexts, "Processes or state that a restore will not bring back."},
}

// The statuses of a snapshot, as far as they are not a sandbox's.
const (
	snapshotReady   = string(sdk.StatusReady)
	snapshotExpired = string(sdk.StatusExpired)
	snapshotLost    = string(sdk.StatusLost)
)

var snapshotTimeouts = timeouts.Opts{
	Create: true, Update: true, Delete: true,
	CreateDescription: "Taking the snapshot until it is durable. Default: `20m`.",
	UpdateDescription: "Extending its retention. Default: `20m`.",
	DeleteDescription: "Deleting it and seeing it gone. Default: `5m`.",
}

func snapshotSchema(ctx context.Context) schema.Schema {
	kind := choiceArgument("What it holds: `filesystem` (default), or `memory`, which is processes and memory as well. Another kind replaces the snapshot.", string(sdk.SnapshotFilesystem), string(sdk.SnapshotMemory))
	kind.Default = stringdefault.StaticString(string(sdk.SnapshotFilesystem))
	s := schema.Schema{
		MarkdownDescription: "A checkpoint of a sandbox, with a retention of its own. A new sandbox can be restored from it, as often as wanted.\n\n" +
			"A snapshot keeps the source that it was made from: when the sandbox is replaced, the snapshot stays, unless `on_source_replaced` says otherwise. " +
			"Import by the id of the snapshot, or by `BACKEND/ID`.",
		Attributes: map[string]schema.Attribute{
			"sandbox_id":         schema.StringAttribute{Required: true, MarkdownDescription: "Id of the sandbox to snapshot. See `on_source_replaced` for what another id does."},
			"backend":            settledArgument("Backend of the sandbox. Default: it is found."),
			"kind":               kind,
			"ttl":                durationArgument("How long it is kept, as a Go duration, counted from its creation. Default: `168h`, which neither `default_ttl` nor `max_ttl` shortens. Raising it extends the retention in place, to the later of the present end and now + `ttl`; lowering it shortens nothing."),
			"labels":             schema.MapAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Labels, added to the sandbox's. A change replaces the snapshot."},
			"on_source_replaced": choiceArgument("What another `sandbox_id` does: `keep` (default) stays with the sandbox that the snapshot was made from; `replace` takes a new snapshot.", choiceKeep, choiceReplace),
			"on_expired":         choiceArgument("What a plan does when the snapshot is gone: `replace` (default) takes a new one; `forget` leaves it gone; `fail` refuses to go on.", choiceReplace, choiceForget, choiceFail),
			"timeouts":           timeoutsArgument(ctx, snapshotTimeouts),
		},
	}
	resourceFacts(snapshotFactTable, s.Attributes)
	return s
}

// flatten shows a snapshot: the one place where a view becomes Terraform's
// values.
func (m *snapshotModel) flatten(v lifecycle.Snapshot) {
	m.SandboxID = types.StringValue(v.SandboxID)
	m.Backend = textValue(v.Backend)
	m.Kind = types.StringValue(string(v.Kind))
	m.ID = types.StringValue(v.ID)
	m.Status = types.StringValue(snapshotReady)
	m.Ref = textValue(v.Ref)
	m.Fleet = textValue(v.Fleet)
	m.ProfileName = textValue(v.Profile)
	m.ProfileRevision = textValue(v.ProfileRevision)
	m.CreatedAt = timeValue(v.CreatedAt)
	m.ExpiresAt = timeValue(v.ExpiresAt)
	m.Size = types.Int64Value(v.Size)
	m.Digest = textValue(v.Digest)
	m.ContainsSecrets = types.BoolValue(v.ContainsSecrets)
	m.Lost = textsValue(v.Lost)
}

// ended reports whether the snapshot is gone.
func (m *snapshotModel) ended() bool {
	return m.Status.ValueString() == snapshotExpired || m.Status.ValueString() == snapshotLost
}

// forget makes every fact unknown: another snapshot will have others.
func (m *snapshotModel) forget() {
	m.ID, m.Status, m.Ref, m.Fleet = types.StringUnknown(), types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
	m.ProfileName, m.ProfileRevision, m.Digest = types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
	m.CreatedAt, m.ExpiresAt = timetypes.NewRFC3339Unknown(), timetypes.NewRFC3339Unknown()
	m.Size, m.ContainsSecrets, m.Lost = types.Int64Unknown(), types.BoolUnknown(), types.ListUnknown(types.StringType)
}
