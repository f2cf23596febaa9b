// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/resourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// sandboxResource is sandboxer_sandbox.
type sandboxResource struct{ session *session }

var (
	_ resource.ResourceWithConfigure        = (*sandboxResource)(nil)
	_ resource.ResourceWithConfigValidators = (*sandboxResource)(nil)
	_ resource.ResourceWithValidateConfig   = (*sandboxResource)(nil)
	_ resource.ResourceWithModifyPlan       = (*sandboxResource)(nil)
	_ resource.ResourceWithImportState      = (*sandboxResource)(nil)
)

func newSandboxResource() resource.Resource { return &sandboxResource{} }

func (r *sandboxResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sandbox"
}

func (r *sandboxResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = sandboxSchema(ctx)
}

func (r *sandboxResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.session = sessionOf(req.ProviderData, &resp.Diagnostics)
}

func (r *sandboxResource) ConfigValidators(context.Context) []resource.ConfigValidator {
	return []resource.ConfigValidator{resourcevalidator.ExactlyOneOf(path.MatchRoot("profile"), path.MatchRoot("snapshot"))}
}

// ValidateConfig checks what needs no backend.
func (r *sandboxResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var model sandboxModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	found := sandbox.ValidateEnv("env", textMap(model.Env))
	found = append(found, sandbox.ValidateEnv("secrets", textMap(model.SecretsWO))...)
	found = append(found, sandbox.ValidateLabels("labels", textMap(model.Labels))...)
	addError(&resp.Diagnostics, "Invalid sandbox", sandbox.ProfileError(found), model.blame)
	if model.Snapshot.ValueString() != "" {
		if err := sandbox.ParseSnapshotID(model.Snapshot.ValueString()); err != nil {
			addError(&resp.Diagnostics, "Invalid sandbox", sdk.Invalid("snapshot", "%s", err), model.blame)
		}
	}
	checkProfileText(model.Profile.ValueString(), &resp.Diagnostics, func(string) (path.Path, bool) { return path.Root("profile"), true })
}

const (
	sandboxSaving           failpoint.Point = "provider.sandbox.saving"
	sandboxSaved            failpoint.Point = "provider.sandbox.saved"
	sandboxCreateAnswering  failpoint.Point = "provider.sandbox.create.answering"
	sandboxDestroyAnswering failpoint.Point = "provider.sandbox.destroy.answering"
)

// Create makes the sandbox. Its id and ref are in the state before setup and
// readiness are awaited; when it fails or is cancelled, what was made is
// removed, because a partial state is lost in Pulumi and, with a kill, in
// Terraform too.
func (r *sandboxResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan, config sandboxModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	timeout, diags := plan.Timeouts.Create(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	manager := r.session.manager(&resp.Diagnostics)
	if manager == nil {
		return
	}
	defer r.session.work()()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	opts, err := r.createOptions(ctx, plan)
	if err != nil {
		addError(&resp.Diagnostics, "Refused sandbox", err, plan.blame)
		return
	}
	opts.Secrets = secretMap(config.SecretsWO)
	save := func(v lifecycle.Sandbox) {
		_ = failpoint.Hit(sandboxSaving)
		plan.flatten(v)
		plan.settle(v)
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
		_ = failpoint.Hit(sandboxSaved)
	}
	opts.Created = func(v lifecycle.Sandbox) {
		tflog.Info(ctx, "made a sandbox", map[string]any{"id": v.ID, "backend": v.Backend})
		save(v)
	}
	made, err := manager.Create(ctx, opts)
	defer func() { _ = failpoint.Hit(sandboxCreateAnswering) }()
	switch {
	case err == nil:
		save(made)
	case made.ID != "":
		// Something is left: the state and the error name it.
		save(made)
		addError(&resp.Diagnostics, "Failed sandbox", err, plan.blame)
	default:
		resp.State.RemoveResource(ctx)
		addError(&resp.Diagnostics, "Failed sandbox", err, plan.blame)
	}
}

// createOptions translates a plan.
func (r *sandboxResource) createOptions(ctx context.Context, plan sandboxModel) (lifecycle.CreateOptions, error) {
	opts := lifecycle.CreateOptions{
		Snapshot: plan.Snapshot.ValueString(), Backend: plan.Backend.ValueString(), TTL: durationOf(plan.TTL),
		End: plan.end(), OnFailed: plan.OnFailed.ValueString(),
		Env: textMap(plan.Env), Labels: textMap(plan.Labels),
		Attribution: sandbox.Attribution{Owner: plan.Owner.ValueString(), Task: plan.Task.ValueString(), Run: plan.Run.ValueString()},
		Progress:    progress(ctx),
	}
	if opts.Snapshot != "" {
		return opts, nil
	}
	// A profile is a value: what was planned is made, whatever its name
	// resolves to where the plan is applied.
	text := plan.Profile.ValueString()
	if planned := plan.Document.ValueString(); planned != "" {
		text = planned
	}
	var err error
	opts.Profile, err = r.session.profile(ctx, text)
	return opts, err
}

// Read returns the sandbox as it is. It changes nothing, and a sandbox that
// has ended stays, with its status: what to do about it is the plan's matter.
func (r *sandboxResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state sandboxModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if r.session.deferred() {
		r.session.warnDeferred(&resp.Diagnostics, "Sandbox "+state.ID.ValueString()+" was not refreshed")
		return
	}
	manager := r.session.manager(&resp.Diagnostics)
	if manager == nil {
		return
	}
	imported := state.Status.IsNull()
	got, err := manager.Get(ctx, state.ID.ValueString(), state.getOptions())
	switch {
	case errors.Is(err, sdk.ErrNotFound) && imported:
		resp.State.RemoveResource(ctx)
		return
	case errors.Is(err, sdk.ErrNotFound):
		got = lifecycle.Sandbox{ID: state.ID.ValueString(), Status: sdk.StatusLost, Reason: "known to neither its backend nor the ledger of this machine"}
	case errors.Is(err, sdk.ErrUnreachable) && manager.Forgets():
		warnUnread(&resp.Diagnostics, "Sandbox "+state.ID.ValueString(), err)
		return
	case err != nil:
		addError(&resp.Diagnostics, "Failed read", err, nil)
		return
	}
	state.flatten(got)
	state.settle(got)
	if imported {
		state.adopt(got)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

// getOptions lets one listing serve all reads, and hands over what the state
// knows, for a sandbox that this machine's ledger has no record of.
func (m *sandboxModel) getOptions() lifecycle.GetOptions {
	return lifecycle.GetOptions{Backend: m.Backend.ValueString(), Batched: true, ExpiresAt: timeOf(m.ExpiresAt), Ref: m.Ref.ValueString()}
}

// adopt fills the arguments of an imported sandbox.
func (m *sandboxModel) adopt(v lifecycle.Sandbox) {
	document := v.Document()
	if v.Snapshot != "" {
		m.Snapshot = types.StringValue(v.Snapshot)
	} else {
		m.Profile = m.Document
	}
	own := map[string]string{}
	for key, value := range v.Labels {
		// The profile's labels are not the sandbox's own.
		if inherited, ok := document.Labels[key]; !ok || inherited != value {
			own[key] = value
		}
	}
	if len(own) > 0 {
		m.Labels = mapValue(own)
	}
}

// Update extends, and refuses what was refused at plan with a warning only.
func (r *sandboxResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state, config sandboxModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	timeout, diags := plan.Timeouts.Update(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	touches := plan.Status.IsUnknown() || plan.ExpiresAt.IsUnknown()
	if !touches {
		// Only settings of Terraform's own changed.
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
		return
	}
	manager := r.session.manager(&resp.Diagnostics)
	if manager == nil {
		return
	}
	defer r.session.work()()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, err := manager.Get(ctx, state.ID.ValueString(), state.getOptions())
	if err != nil {
		addError(&resp.Diagnostics, "Failed read", err, nil)
		return
	}
	present := state
	present.flatten(got)
	if plan.ExpiresAt.IsUnknown() && !present.ended() && (plan.raises(state) || plan.due(manager.Now(), present)) {
		if got, err = r.extend(ctx, manager, plan, state, &resp.Diagnostics); err != nil {
			addError(&resp.Diagnostics, "Refused extension", err, plan.blame)
			return
		}
		present.flatten(got)
	}
	refused := r.refusals(ctx, manager, plan, present, len(config.SecretsWO.Elements()) > 0, false)
	for _, f := range refused {
		f.error(&resp.Diagnostics)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	// Terraform refuses a result that differs from what the plan said; what
	// else has changed is seen by the next refresh.
	if plan.Status.IsUnknown() {
		plan.Status = present.Status
	}
	if plan.ExpiresAt.IsUnknown() {
		plan.ExpiresAt, plan.Generation = present.ExpiresAt, present.Generation
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// extend moves the deadline to now + ttl. A raised ttl must be granted whole;
// a renewal takes what the maximum leaves.
func (r *sandboxResource) extend(ctx context.Context, manager *lifecycle.Manager, plan, state sandboxModel, diags *diag.Diagnostics) (lifecycle.Sandbox, error) {
	raised := plan.raises(state)
	ttl := r.life(plan)
	got, err := manager.Extend(ctx, state.ID.ValueString(), lifecycle.ExtendOptions{
		Backend: state.Backend.ValueString(), TTL: ttl, AllowLess: !raised, Reason: "terraform apply",
	})
	if err != nil {
		return got, err
	}
	if wanted := manager.Now().Add(ttl); !raised && got.ExpiresAt.Add(renewSlack).Before(wanted) {
		diags.AddAttributeWarning(path.Root("renew_below"), "Shortened renewal",
			fmt.Sprintf("Sandbox %s on backend %q was extended to %s, its maximum, and no further.", got.ID, got.Backend, timeValue(got.ExpiresAt).ValueString()))
	}
	tflog.Info(ctx, "extended a sandbox", map[string]any{"id": got.ID, "backend": got.Backend, "expires_at": timeValue(got.ExpiresAt).ValueString()})
	return got, nil
}

// Delete destroys the sandbox and returns when it is seen to be gone. It
// succeeds when it was gone already.
func (r *sandboxResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state sandboxModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	timeout, diags := state.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	manager := r.session.manager(&resp.Diagnostics)
	if manager == nil {
		return
	}
	defer r.session.work()()
	ctx, cancel := surviving(ctx, timeout)
	defer cancel()
	result, err := manager.Destroy(ctx, state.ID.ValueString(), lifecycle.DestroyOptions{
		Backend: state.Backend.ValueString(), Ref: state.Ref.ValueString(), ExpiresAt: timeOf(state.ExpiresAt), Reason: "terraform",
	})
	defer func() { _ = failpoint.Hit(sandboxDestroyAnswering) }()
	if err != nil {
		addError(&resp.Diagnostics, "Failed destroy", err, nil)
		return
	}
	if result.Unverifiable != "" {
		resp.Diagnostics.AddWarning("Unverifiable end",
			fmt.Sprintf("Sandbox %s was past its deadline on backend %q, which enforces deadlines, and could not be asked about.\n\nOriginal error: %s", state.ID.ValueString(), state.Backend.ValueString(), result.Unverifiable))
	}
	warnForgotten(&resp.Diagnostics, "Sandbox "+state.ID.ValueString(), result.Forgotten)
	tflog.Info(ctx, "destroyed a sandbox", map[string]any{"id": result.ID, "backend": result.Backend, "existed": result.Existed})
}

// ImportState takes ID or BACKEND/ID.
func (r *sandboxResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	backend, id := splitImport(req.ID)
	if err := sandbox.ParseID(id); err != nil {
		addError(&resp.Diagnostics, "Invalid import id", sdk.Invalid("", "%s", err), nil)
		return
	}
	set := func(name string, value attr.Value) {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	set("id", types.StringValue(id))
	set("backend", textValue(backend))
	set("on_expired", types.StringValue(choiceReplace))
	set("on_failed", types.StringValue(lifecycle.OnFailedDestroy))
	set("on_profile_change", types.StringValue(choiceReplace))
	set("timeouts", timeouts.Value{Object: types.ObjectNull(timeoutTypes(sandboxTimeouts))})
}

// splitImport splits BACKEND/ID; the backend may be left out.
func splitImport(text string) (backend, id string) {
	if i := strings.LastIndex(text, "/"); i >= 0 {
		return text[:i], text[i+1:]
	}
	return "", text
}

func timeoutTypes(opts timeouts.Opts) map[string]attr.Type {
	kinds := map[string]attr.Type{}
	for name, set := range map[string]bool{"create": opts.Create, "read": opts.Read, "update": opts.Update, "delete": opts.Delete} {
		if set {
			kinds[name] = types.StringType
		}
	}
	return kinds
}
