// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// sandboxesModel is the data source sandboxer_sandboxes.
type sandboxesModel struct {
	Backend     types.String       `tfsdk:"backend"`
	Statuses    types.List         `tfsdk:"statuses"`
	Owner       types.String       `tfsdk:"owner"`
	ProfileName types.String       `tfsdk:"profile_name"`
	Labels      types.Map          `tfsdk:"labels"`
	Closed      types.Bool         `tfsdk:"include_destroyed"`
	Sandboxes   []sandboxDataModel `tfsdk:"sandboxes"`
	IDs         types.List         `tfsdk:"ids"`
	Unreachable types.Map          `tfsdk:"unreachable"`
}

// statuses are the statuses that can be asked for.
var statuses = []string{
	string(sdk.StatusCreating), string(sdk.StatusReady), string(sdk.StatusPaused), string(sdk.StatusExpired),
	string(sdk.StatusDestroying), string(sdk.StatusDestroyed), string(sdk.StatusFailed), string(sdk.StatusLost),
}

// sandboxesDataSource lists the fleet.
type sandboxesDataSource struct{ session *session }

var _ datasource.DataSourceWithConfigure = (*sandboxesDataSource)(nil)

func newSandboxesDataSource() datasource.DataSource { return &sandboxesDataSource{} }

func (d *sandboxesDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sandboxes"
}

func (d *sandboxesDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	element := map[string]schema.Attribute{}
	dataFacts(sandboxFactTable, element)
	dataFacts(sandboxDataTable, element)
	text := func(description string) schema.Attribute {
		return schema.StringAttribute{Optional: true, MarkdownDescription: description}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "The sandboxes of the fleet, whoever made them, by id, which is by age. A backend that can't be asked is named in `unreachable`, with a warning; what the ledger knew of it last is listed all the same.",
		Attributes: map[string]schema.Attribute{
			"backend": text("Only this backend."),
			"statuses": schema.ListAttribute{
				Optional: true, ElementType: types.StringType, MarkdownDescription: "Only these statuses. Default: all but `destroyed`.",
				Validators: []validator.List{listvalidator.ValueStringsAre(stringvalidator.OneOf(statuses...))},
			},
			"owner":             text("Only this owner's."),
			"profile_name":      text("Only those made from a profile of this name."),
			"labels":            schema.MapAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Only those with all of these labels."},
			"include_destroyed": schema.BoolAttribute{Optional: true, MarkdownDescription: "Whether to list destroyed sandboxes too, as long as the ledger remembers them."},
			"sandboxes": schema.ListNestedAttribute{
				Computed: true, MarkdownDescription: "What was found.", NestedObject: schema.NestedAttributeObject{Attributes: element},
			},
		},
	}
	dataFacts([]fact{
		{"ids", factTexts, "The ids of what was found."},
		{"unreachable", factMap, "Backends that could not be asked, and why."},
	}, resp.Schema.Attributes)
}

func (d *sandboxesDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.session = sessionOf(req.ProviderData, &resp.Diagnostics)
}

func (d *sandboxesDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model sandboxesModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	opts := lifecycle.ListOptions{
		Backend: model.Backend.ValueString(), Owner: model.Owner.ValueString(), Profile: model.ProfileName.ValueString(),
		Labels: textMap(model.Labels), Closed: model.Closed.ValueBool(),
	}
	resp.Diagnostics.Append(model.Statuses.ElementsAs(ctx, &opts.Status, false)...)
	opts.Closed = opts.Closed || slices.Contains(opts.Status, sdk.StatusDestroyed)
	manager := d.session.manager(&resp.Diagnostics)
	if manager == nil || resp.Diagnostics.HasError() {
		return
	}
	list, err := manager.List(ctx, opts)
	if err != nil {
		addError(&resp.Diagnostics, "Failed listing", err, func(at string) (path.Path, bool) { return path.Root(at), at == "backend" })
		return
	}
	for _, name := range slices.Sorted(maps.Keys(list.Unreachable)) {
		resp.Diagnostics.AddWarning("Unreachable backend", fmt.Sprintf("Backend %q could not be listed; what the ledger knew of it last is shown.\n\nOriginal error: %s", name, list.Unreachable[name]))
	}
	model.Sandboxes = make([]sandboxDataModel, len(list.Sandboxes))
	ids := make([]string, len(list.Sandboxes))
	for i, found := range list.Sandboxes {
		model.Sandboxes[i].flatten(found)
		ids[i] = found.ID
	}
	model.IDs, model.Unreachable = textsValue(ids), mapValue(list.Unreachable)
	resp.Diagnostics.Append(resp.State.Set(ctx, &model)...)
}
