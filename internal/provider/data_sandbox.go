// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

// sandboxDataModel is a sandbox as a data source shows it: the facts, and
// what are arguments in the resource.
type sandboxDataModel struct {
	sandboxFacts

	Backend           types.String `tfsdk:"backend"`
	Snapshot          types.String `tfsdk:"snapshot"`
	OnExpiry          types.String `tfsdk:"on_expiry"`
	IdleTimeout       types.String `tfsdk:"idle_timeout"`
	ExpirySnapshotTTL types.String `tfsdk:"expiry_snapshot_ttl"`
	PausedTTL         types.String `tfsdk:"paused_ttl"`
	Owner             types.String `tfsdk:"owner"`
	Task              types.String `tfsdk:"task"`
	Run               types.String `tfsdk:"run"`
	Labels            types.Map    `tfsdk:"labels"`
}

var sandboxDataTable = []fact{
	{"backend", factText, "Backend that it is on."},
	{"snapshot", factText, "Id of the snapshot that it was restored from, as far as this machine's ledger knows."},
	{"on_expiry", factText, "What happens at its end: `destroy`, `snapshot` or `pause`."},
	{"idle_timeout", factText, "How long it lives without being used, as a Go duration."},
	{"expiry_snapshot_ttl", factText, "How long the snapshot of its end will be kept, as a Go duration. Null unless `on_expiry` is `snapshot`."},
	{"paused_ttl", factText, "How long it is kept once it was paused at its end, as a Go duration. Null unless `on_expiry` is `pause`."},
	{"owner", factText, "Team or person that it is for."},
	{"task", factText, "What it is for."},
	{"run", factText, "URL or id of the run that made it."},
	{"labels", factMap, "Its labels, the profile's included."},
}

func (m *sandboxDataModel) flatten(v lifecycle.Sandbox) {
	m.sandboxFacts.flatten(v)
	m.Backend, m.Snapshot, m.OnExpiry = textValue(v.Backend), textValue(v.Snapshot), textValue(string(v.OnExpiry))
	m.IdleTimeout, m.ExpirySnapshotTTL, m.PausedTTL = textValue(v.IdleTimeout), textValue(v.ExpirySnapshotTTL), textValue(v.PausedTTL)
	m.Owner, m.Task, m.Run = textValue(v.Owner), textValue(v.Task), textValue(v.Run)
	m.Labels = mapValue(v.Labels)
}

// sandboxDataSource is the data source sandboxer_sandbox.
type sandboxDataSource struct{ session *session }

var _ datasource.DataSourceWithConfigure = (*sandboxDataSource)(nil)

func newSandboxDataSource() datasource.DataSource { return &sandboxDataSource{} }

func (d *sandboxDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sandbox"
}

func (d *sandboxDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "One sandbox of the fleet, whoever made it. One that has ended is shown as long as the ledger of this machine remembers it.",
		Attributes:          map[string]schema.Attribute{},
	}
	dataFacts(sandboxFactTable, resp.Schema.Attributes)
	dataFacts(sandboxDataTable, resp.Schema.Attributes)
	resp.Schema.Attributes["id"] = schema.StringAttribute{Required: true, MarkdownDescription: "Id of the sandbox, `sbx-…`."}
	resp.Schema.Attributes["backend"] = schema.StringAttribute{Optional: true, Computed: true, MarkdownDescription: "Backend that it is on. Default: it is found."}
}

func (d *sandboxDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.session = sessionOf(req.ProviderData, &resp.Diagnostics)
}

func (d *sandboxDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model sandboxDataModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	manager := d.session.manager(&resp.Diagnostics)
	if manager == nil {
		return
	}
	got, err := manager.Get(ctx, model.ID.ValueString(), lifecycle.GetOptions{Backend: model.Backend.ValueString(), Batched: true})
	if err != nil {
		addError(&resp.Diagnostics, "Failed read", err, func(at string) (path.Path, bool) { return path.Root(at), at == "id" || at == "backend" })
		return
	}
	model.flatten(got)
	resp.Diagnostics.Append(resp.State.Set(ctx, &model)...)
}
