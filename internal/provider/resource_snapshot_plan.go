// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// ModifyPlan decides what a plan does with a snapshot: take, keep, extend,
// replace or refuse.
func (r *snapshotResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || r.session == nil {
		return
	}
	var plan snapshotModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if req.State.Raw.IsNull() {
		r.planCreate(ctx, &plan, &resp.Diagnostics)
		resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
		return
	}
	var state snapshotModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.RequiresReplace = append(resp.RequiresReplace, r.planExisting(&plan, state, &resp.Diagnostics)...)
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
}

// planCreate holds the kind against the backend, as far as the backend is
// known: the sandbox's, which is usually made in the same run.
func (r *snapshotResource) planCreate(ctx context.Context, plan *snapshotModel, diags *diag.Diagnostics) {
	if r.session.deferred() {
		r.session.warnDeferred(diags, "A new snapshot")
		return
	}
	manager := r.session.manager(diags)
	if manager == nil {
		return
	}
	backend := plan.Backend.ValueString()
	switch names := manager.BackendNames(); {
	case !plan.Backend.IsUnknown() && backend != "":
	case !plan.SandboxID.IsUnknown():
		if source, err := manager.Get(ctx, plan.SandboxID.ValueString(), lifecycle.GetOptions{Batched: true}); err == nil {
			backend = source.Backend
			plan.Backend = types.StringValue(backend)
		}
	case len(names) == 1:
		backend = names[0]
	}
	if backend != "" {
		r.checkKind(ctx, manager, *plan, backend, diags)
	}
}

func (r *snapshotResource) checkKind(ctx context.Context, manager *lifecycle.Manager, plan snapshotModel, backend string, diags *diag.Diagnostics) {
	need, err := lifecycle.SnapshotRequirement("kind", sdk.SnapshotKind(plan.Kind.ValueString()))
	if err != nil {
		addError(diags, "Refused snapshot", err, snapshotBlame)
		return
	}
	info, err := manager.Backend(ctx, backend, false)
	if err != nil {
		if certain(err) {
			addError(diags, "Refused snapshot", err, snapshotBlame)
		} else {
			diags.AddWarning("Unchecked snapshot", fmt.Sprintf("What backend %q promises could not be looked at. It is checked before the snapshot is taken.\n\nOriginal error: %s", backend, err))
		}
		return
	}
	result := lifecycle.CheckResult{Backend: backend}
	result.Mismatches, _ = sandbox.CheckRequirements([]sandbox.Requirement{need}, info.Capabilities)
	addError(diags, "Refused snapshot", result.Err(), snapshotBlame)
}

// planExisting plans for a snapshot that the state holds, and returns the
// attributes because of which it must be replaced.
func (r *snapshotResource) planExisting(plan *snapshotModel, state snapshotModel, diags *diag.Diagnostics) path.Paths {
	if ttl := durationOf(plan.TTL); ttl != 0 && ttl == durationOf(state.TTL) {
		plan.TTL = state.TTL
	}
	if plan.OnSourceReplaced.ValueString() == choiceKeep {
		// Terraform allows a plan to keep the prior value of an argument.
		plan.SandboxID = state.SandboxID
	}
	var replace path.Paths
	for _, fixed := range []struct {
		name        string
		plan, state attr.Value
	}{
		{"sandbox_id", plan.SandboxID, state.SandboxID},
		{"backend", plan.Backend, state.Backend},
		{"kind", plan.Kind, state.Kind},
		{"labels", plan.Labels, state.Labels},
	} {
		if !fixed.plan.Equal(fixed.state) {
			replace = append(replace, path.Root(fixed.name))
		}
	}
	if len(replace) > 0 {
		plan.forget()
		return replace
	}
	if state.ended() {
		return plan.planEnded(state, diags)
	}
	switch ttl := durationOf(plan.TTL); {
	case plan.TTL.IsUnknown(), ttl > state.retained():
		plan.ExpiresAt = timetypes.NewRFC3339Unknown()
	case ttl > 0 && ttl < state.retained() && !plan.TTL.Equal(state.TTL):
		diags.AddAttributeWarning(path.Root("ttl"), "Retention not shortened",
			fmt.Sprintf("A lower ttl shortens no retention: snapshot %s on backend %q is kept until %s.", state.ID.ValueString(), state.Backend.ValueString(), state.ExpiresAt.ValueString()))
	}
	return nil
}

// planEnded plans for a snapshot that is gone.
func (m *snapshotModel) planEnded(state snapshotModel, diags *diag.Diagnostics) path.Paths {
	switch m.OnExpired.ValueString() {
	case choiceForget:
		return nil
	case choiceReplace:
		m.forget()
		return path.Paths{path.Root("status")}
	}
	refused := endedSnapshot(state)
	if changed := !m.TTL.Equal(state.TTL) || !m.OnExpired.Equal(state.OnExpired) || !m.OnSourceReplaced.Equal(state.OnSourceReplaced) || !m.Timeouts.Equal(state.Timeouts); changed {
		refused.error(diags)
		return nil
	}
	refused.warning(diags, "\n\nNothing about this snapshot changes, so the plan goes on, and apply will fail with this.")
	m.Status = types.StringUnknown()
	return nil
}
