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
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// backendDataModel is the data source sandboxer_backend.
type backendDataModel struct {
	Name         types.String              `tfsdk:"name"`
	Probe        types.Bool                `tfsdk:"probe"`
	ID           types.String              `tfsdk:"id"`
	Extension    types.String              `tfsdk:"extension"`
	Version      types.String              `tfsdk:"version"`
	Default      types.Bool                `tfsdk:"default"`
	Usable       types.Bool                `tfsdk:"usable"`
	Reason       types.String              `tfsdk:"reason"`
	Advice       types.String              `tfsdk:"advice"`
	Details      types.Map                 `tfsdk:"details"`
	Capabilities map[string]guaranteeModel `tfsdk:"capabilities"`
}

// guaranteeModel is what a backend says about one feature.
type guaranteeModel struct {
	Class            types.String `tfsdk:"class"`
	Reason           types.String `tfsdk:"reason"`
	DependsOnMachine types.Bool   `tfsdk:"depends_on_machine"`
}

// backendDataSource tells what a backend promises.
type backendDataSource struct{ session *session }

var _ datasource.DataSourceWithConfigure = (*backendDataSource)(nil)

func newBackendDataSource() datasource.DataSource { return &backendDataSource{} }

func (d *backendDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_backend"
}

func (d *backendDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	guarantee := map[string]schema.Attribute{}
	dataFacts([]fact{
		{"class", factText, "`enforced`, `best_effort`, `emulated`, `unverifiable` or `unsupported`."},
		{"reason", factText, "By what, or why not."},
		{"depends_on_machine", factBool, "Whether only a probe can decide; `class` is then the weakest that it can be."},
	}, guarantee)
	resp.Schema = schema.Schema{
		MarkdownDescription: "A configured backend: what it promises, and, with `probe = true`, whether it is usable from here.",
		Attributes: map[string]schema.Attribute{
			"name":  schema.StringAttribute{Optional: true, Computed: true, MarkdownDescription: "Name of the backend. Default: the provider's default."},
			"probe": schema.BoolAttribute{Optional: true, MarkdownDescription: "Whether to ask the backend if it is usable from here, and for its own classes. Default: `false`, which uses no network."},
			"capabilities": schema.MapNestedAttribute{
				Computed: true, MarkdownDescription: "What it promises, by feature.", NestedObject: schema.NestedAttributeObject{Attributes: guarantee},
			},
		},
	}
	dataFacts([]fact{
		{"id", factText, "Name of the backend."},
		{"extension", factText, "Extension that speaks to it."},
		{"version", factText, "Version of the extension."},
		{"default", factBool, "Whether it is the default of whatever names none."},
		{"usable", factBool, "Whether it is usable from here; null without a probe."},
		{"reason", factText, "Why it is not usable."},
		{"advice", factText, "What to do about that."},
		{"details", factMap, "What the probe looked at."},
	}, resp.Schema.Attributes)
}

func (d *backendDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.session = sessionOf(req.ProviderData, &resp.Diagnostics)
}

func (d *backendDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model backendDataModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	manager := d.session.manager(&resp.Diagnostics)
	if manager == nil {
		return
	}
	info, err := manager.Backend(ctx, model.Name.ValueString(), model.Probe.ValueBool())
	if err != nil {
		addError(&resp.Diagnostics, "Failed look at a backend", err, func(string) (path.Path, bool) { return path.Root("name"), true })
		return
	}
	model.flatten(info)
	resp.Diagnostics.Append(resp.State.Set(ctx, &model)...)
}

func (m *backendDataModel) flatten(info lifecycle.BackendInfo) {
	m.Name, m.ID = types.StringValue(info.Name), types.StringValue(info.Name)
	m.Extension, m.Version, m.Default = textValue(info.Extension), textValue(info.Version), types.BoolValue(info.Default)
	m.Usable, m.Reason, m.Advice = types.BoolPointerValue(info.Usable), textValue(info.Reason), textValue(info.Advice)
	details := map[string]string{}
	for _, detail := range info.Details {
		details[detail.Name] = detail.Value
	}
	m.Details = mapValue(details)
	m.Capabilities = map[string]guaranteeModel{}
	for _, feature := range sdk.Features() {
		found := info.Capabilities.Of(feature)
		m.Capabilities[string(feature)] = guaranteeModel{
			Class: types.StringValue(string(found.Class)), Reason: textValue(found.Reason), DependsOnMachine: types.BoolValue(found.DependsOnMachine),
		}
	}
}
