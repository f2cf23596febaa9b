// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/datasourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// profileDataModel is the data source sandboxer_profile.
type profileDataModel struct {
	Name         types.String `tfsdk:"name"`
	Document     types.String `tfsdk:"document"`
	ID           types.String `tfsdk:"id"`
	Revision     types.String `tfsdk:"revision"`
	Description  types.String `tfsdk:"description"`
	Requirements types.Map    `tfsdk:"requirements"`
}

// profileDataSource looks a profile up by its name, or reads a document.
type profileDataSource struct{ session *session }

var (
	_ datasource.DataSourceWithConfigure        = (*profileDataSource)(nil)
	_ datasource.DataSourceWithConfigValidators = (*profileDataSource)(nil)
)

func newProfileDataSource() datasource.DataSource { return &profileDataSource{} }

func (d *profileDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_profile"
}

func (d *profileDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A profile: by its name, in a library or among the built-in ones, or from its document.",
		Attributes: map[string]schema.Attribute{
			"name":     schema.StringAttribute{Optional: true, Computed: true, MarkdownDescription: "Name to look up, or `NAME@REVISION`. Exactly one of `name` and `document` is set."},
			"document": schema.StringAttribute{Optional: true, Computed: true, MarkdownDescription: "The profile as JSON; without a name to look up, the document to read. It is given back in canonical form."},
		},
	}
	dataFacts([]fact{
		{"id", factText, "`NAME@REVISION`."},
		{"revision", factText, "Digest of the canonical form, `sha256:…`."},
		{"description", factText, "What the profile is for."},
		{"requirements", factMap, "What the profile needs of a backend, by feature: what it names in `requires` and what it sets, with the weakest class that will do."},
	}, resp.Schema.Attributes)
}

func (d *profileDataSource) ConfigValidators(context.Context) []datasource.ConfigValidator {
	return []datasource.ConfigValidator{datasourcevalidator.ExactlyOneOf(path.MatchRoot("name"), path.MatchRoot("document"))}
}

func (d *profileDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.session = sessionOf(req.ProviderData, &resp.Diagnostics)
}

func (d *profileDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model profileDataModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	attribute, text := path.Root("name"), model.Name.ValueString()
	if !model.Document.IsNull() {
		attribute, text = path.Root("document"), model.Document.ValueString()
		if !isDocument(text) {
			resp.Diagnostics.AddAttributeError(attribute, "Invalid profile", "The document is not a JSON object.")
			return
		}
	}
	p, err := d.session.profile(ctx, text)
	if err != nil {
		addError(&resp.Diagnostics, "Unknown profile", err, func(string) (path.Path, bool) { return attribute, true })
		return
	}
	// Terraform takes what a configuration sets as it is; the name may have
	// carried a revision.
	if model.Name.IsNull() {
		model.Name = types.StringValue(p.Name)
	}
	if model.Document.IsNull() {
		model.Document = types.StringValue(sandbox.Document(p))
	}
	model.ID, model.Revision = types.StringValue(sandbox.ProfileID(p)), types.StringValue(sandbox.Revision(p))
	model.Description = textValue(p.Description)
	model.Requirements = mapValue(strongest(sandbox.Requirements(p)))
	resp.Diagnostics.Append(resp.State.Set(ctx, &model)...)
}

// strongest returns the strongest class that is asked for of each feature.
func strongest(needs []sandbox.Requirement) map[string]string {
	classes := map[string]string{}
	for _, need := range needs {
		feature := string(need.Feature)
		if present, ok := classes[feature]; !ok || need.Class.Satisfies(sdk.Class(present)) {
			classes[feature] = string(need.Class)
		}
	}
	return classes
}
