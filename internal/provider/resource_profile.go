// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/profile"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// profileResource is sandboxer_profile: a value with a plan.
type profileResource struct{ session *session }

var (
	_ resource.ResourceWithConfigure      = (*profileResource)(nil)
	_ resource.ResourceWithValidateConfig = (*profileResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*profileResource)(nil)
	_ resource.ResourceWithImportState    = (*profileResource)(nil)
)

func newProfileResource() resource.Resource { return &profileResource{} }

func (r *profileResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_profile"
}

func (r *profileResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = profileSchema(ctx)
}

func (r *profileResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.session = sessionOf(req.ProviderData, &resp.Diagnostics)
}

// ValidateConfig reports every fault of a profile whose arguments are known.
func (r *profileResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	if !argumentsKnown(req.Config.Raw) {
		return
	}
	var model profileModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if !resp.Diagnostics.HasError() {
		_, diags := validProfile(ctx, model)
		resp.Diagnostics.Append(diags...)
	}
}

// validProfile returns the profile that the arguments mean, and its faults
// on their attributes.
func validProfile(ctx context.Context, model profileModel) (sdk.Profile, diag.Diagnostics) {
	p, diags := model.profile(ctx)
	if !diags.HasError() {
		addError(&diags, "Invalid profile", sandbox.ProfileError(sandbox.ValidateProfile(p)), profileBlame)
	}
	return p, diags
}

// argumentsKnown reports whether everything that makes up the document is
// known.
func argumentsKnown(raw tftypes.Value) bool {
	attributes := map[string]tftypes.Value{}
	if !raw.IsKnown() || raw.IsNull() || raw.As(&attributes) != nil {
		return false
	}
	for name := range profileArguments() {
		if !attributes[name].IsFullyKnown() {
			return false
		}
	}
	return true
}

// ModifyPlan computes id and document, so that what uses the profile knows
// them at plan, and holds the profile against the backends that it names.
func (r *profileResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	var plan profileModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	known := argumentsKnown(req.Plan.Raw)
	var p sdk.Profile
	if known {
		var diags diag.Diagnostics
		p, diags = validProfile(ctx, plan)
		resp.Diagnostics.Append(diags...)
		if resp.Diagnostics.HasError() {
			return
		}
		plan.flatten(p)
	} else {
		plan.ID, plan.Revision, plan.Document = types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
	}
	changed := true
	if !req.State.Raw.IsNull() {
		var state profileModel
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
		changed = !req.Plan.Raw.Equal(req.State.Raw)
		if !plan.ID.Equal(state.ID) {
			// A profile is its content: another content is another profile.
			resp.RequiresReplace = append(resp.RequiresReplace, path.Root("id"))
		}
	}
	if known {
		var refused, warned diag.Diagnostics
		r.check(ctx, plan, p, &refused, &warned)
		resp.Diagnostics.Append(warned...)
		if changed {
			resp.Diagnostics.Append(refused...)
		} else if refused.HasError() {
			downgrade(refused, &resp.Diagnostics)
			plan.Revision = types.StringUnknown()
		}
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
}

// downgrade makes warnings of refusals of an unchanged object: an error at
// plan would also stop `terraform destroy`, which plans first.
func downgrade(refused diag.Diagnostics, into *diag.Diagnostics) {
	const more = "\n\nNothing about this object changes, so the plan goes on, and apply will fail with this."
	for _, d := range refused.Errors() {
		if at, ok := d.(diag.DiagnosticWithPath); ok {
			into.AddAttributeWarning(at.Path(), d.Summary(), d.Detail()+more)
			continue
		}
		into.AddWarning(d.Summary(), d.Detail()+more)
	}
}

// check holds a profile against each backend that it names.
func (r *profileResource) check(ctx context.Context, model profileModel, p sdk.Profile, refused, warned *diag.Diagnostics) {
	if r.session == nil || model.Backends.IsUnknown() || len(model.Backends.Elements()) == 0 {
		return
	}
	if r.session.deferred() {
		r.session.warnDeferred(warned, "Profile "+p.Name)
		return
	}
	manager := r.session.manager(refused)
	if manager == nil {
		return
	}
	for i, element := range model.Backends.Elements() {
		name, ok := element.(types.String)
		if !ok || name.IsUnknown() {
			continue
		}
		at := path.Root("backends").AtListIndex(i)
		result, err := manager.Check(ctx, lifecycle.CheckOptions{Backend: name.ValueString(), Profile: p})
		blamed := func(where string) (path.Path, bool) {
			if where == "backend" {
				return at, true
			}
			return profileBlame(where)
		}
		switch {
		case err != nil && certain(err):
			addError(refused, "Refused profile", err, blamed)
			continue
		case err != nil:
			warned.AddAttributeWarning(at, "Unchecked profile", fmt.Sprintf("Whether backend %q can run profile %s is checked again where the profile is used.\n\nOriginal error: %s", name.ValueString(), p.Name, err))
			continue
		}
		undecided := result.Undecided
		result.Undecided = nil
		addError(refused, "Refused profile", result.Err(), blamed)
		for _, open := range undecided {
			warnUndecided(warned, result, open, blamed)
		}
	}
}

// Create publishes the profile and prepares the backends when that is asked
// for.
func (r *profileResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan profileModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if r.apply(ctx, &plan, &resp.Diagnostics) {
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	}
}

// Read returns what the state holds: a profile is a value, and no store that
// lacks it can make it wrong.
func (r *profileResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	resp.State.Raw = req.State.Raw
}

// Update prepares, since what can change in place is where and whether to.
func (r *profileResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan profileModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Update(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if r.apply(ctx, &plan, &resp.Diagnostics) {
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	}
}

// apply makes a plan true; it reports whether it did.
func (r *profileResource) apply(ctx context.Context, plan *profileModel, diags *diag.Diagnostics) bool {
	p, found := validProfile(ctx, *plan)
	diags.Append(found...)
	if diags.HasError() {
		return false
	}
	plan.flatten(p)
	r.check(ctx, *plan, p, diags, diags)
	if diags.HasError() {
		return false
	}
	runtime := r.session.runtime(diags)
	if runtime == nil {
		return false
	}
	// The library is a convenience of the command line: what uses the profile
	// in Terraform takes its document.
	if err := profile.Publish(runtime.Config.PublishedProfiles(), published(p)); err != nil {
		diags.AddAttributeWarning(path.Root("name"), "Unpublished profile",
			fmt.Sprintf("`sandboxer` will not find profile %s by its name on this machine.\n\nOriginal error: %s", p.Name, err))
	}
	if !plan.Prepare.ValueBool() {
		return true
	}
	var names []string
	diags.Append(plan.Backends.ElementsAs(ctx, &names, false)...)
	if len(names) == 0 {
		names = []string{""}
	}
	defer r.session.work()()
	for _, name := range names {
		_, err := runtime.Manager.Prepare(ctx, lifecycle.PrepareOptions{Backend: name, Profile: p, Progress: progress(ctx)})
		addError(diags, "Unprepared profile", err, profileBlame)
	}
	return !diags.HasError()
}

// Delete takes the profile out of the library, when that still has just this
// revision. What was prepared is a cache of the backend and stays.
func (r *profileResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state profileModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() || r.session.deferred() {
		return
	}
	p, err := sandbox.ParseDocument(state.Document.ValueString())
	if err == nil {
		var runtime *config.Runtime
		if runtime, err = r.session.open(); err == nil {
			err = profile.Unpublish(runtime.Config.PublishedProfiles(), p.Name, sandbox.Revision(published(p)))
		}
	}
	if err != nil {
		resp.Diagnostics.AddWarning("Profile left in the library",
			fmt.Sprintf("`sandboxer profile list` may still show %s.\n\nOriginal error: %s", state.ID.ValueString(), err))
	}
}

// ImportState takes a document, or the name or id of a profile that a name
// resolves to here or that a sandbox of the fleet was made from.
func (r *profileResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	p, ok := r.find(ctx, req.ID, &resp.Diagnostics)
	if !ok {
		return
	}
	model := profileModel{
		Prepare: types.BoolValue(false), Backends: types.ListNull(types.StringType),
		Timeouts: timeouts.Value{Object: types.ObjectNull(map[string]attr.Type{"create": types.StringType, "update": types.StringType})},
	}
	resp.Diagnostics.Append(model.fill(ctx, p)...)
	model.flatten(p)
	resp.Diagnostics.Append(resp.State.Set(ctx, &model)...)
}

func (r *profileResource) find(ctx context.Context, id string, diags *diag.Diagnostics) (sdk.Profile, bool) {
	name, revision, _ := strings.Cut(id, "@")
	if isDocument(id) {
		name, revision = id, ""
	}
	p, err := r.session.profile(ctx, name)
	if err == nil && (revision == "" || sandbox.Revision(p) == revision) {
		return p, true
	}
	if revision != "" {
		if found, ok := r.findInFleet(ctx, name, revision, diags); ok || diags.HasError() {
			return found, ok
		}
		err = sdk.Errorf(sdk.ErrNotFound, "no profile of this id is in a library here, and no sandbox of the fleet was made from it")
	}
	addError(diags, "Unknown profile", err, nil)
	return sdk.Profile{}, false
}

func (r *profileResource) findInFleet(ctx context.Context, name, revision string, diags *diag.Diagnostics) (sdk.Profile, bool) {
	manager := r.session.manager(diags)
	if manager == nil {
		return sdk.Profile{}, false
	}
	list, err := manager.List(ctx, lifecycle.ListOptions{Profile: name, Closed: true})
	addError(diags, "Failed listing", err, nil)
	for _, s := range list.Sandboxes {
		if p := s.Document(); p.Name != "" && s.ProfileRevision == revision && sandbox.Revision(p) == revision {
			return p, true
		}
	}
	return sdk.Profile{}, false
}
