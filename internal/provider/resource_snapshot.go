// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// snapshotResource is sandboxer_snapshot.
type snapshotResource struct{ session *session }

var (
	_ resource.ResourceWithConfigure      = (*snapshotResource)(nil)
	_ resource.ResourceWithValidateConfig = (*snapshotResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*snapshotResource)(nil)
	_ resource.ResourceWithImportState    = (*snapshotResource)(nil)
)

func newSnapshotResource() resource.Resource { return &snapshotResource{} }

func (r *snapshotResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_snapshot"
}

func (r *snapshotResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = snapshotSchema(ctx)
}

func (r *snapshotResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.session = sessionOf(req.ProviderData, &resp.Diagnostics)
}

// ValidateConfig checks what needs no backend.
func (r *snapshotResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var model snapshotModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	found := sandbox.ValidateLabels("labels", textMap(model.Labels))
	if !model.SandboxID.IsUnknown() {
		if err := sandbox.ParseID(model.SandboxID.ValueString()); err != nil {
			found = append(found, sandbox.Problem{Path: "sandbox_id", Message: err.Error()})
		}
	}
	addError(&resp.Diagnostics, "Invalid snapshot", sandbox.ProfileError(found), snapshotBlame)
}

// snapshotBlame finds the attribute that a path of a snapshot stands for.
func snapshotBlame(at string) (path.Path, bool) {
	head, rest := cutStep(at)
	switch head {
	case "id":
		return path.Root("sandbox_id"), true
	case "labels":
		if len(rest) > 1 {
			return path.Root(head).AtMapKey(rest[1:]), true
		}
		return path.Root(head), true
	case "sandbox_id", "backend", "kind", "ttl":
		return path.Root(head), true
	}
	return path.Empty(), false
}

const (
	snapshotSaving          failpoint.Point = "provider.snapshot.saving"
	snapshotSaved           failpoint.Point = "provider.snapshot.saved"
	snapshotCreateAnswering failpoint.Point = "provider.snapshot.create.answering"
	snapshotDeleteAnswering failpoint.Point = "provider.snapshot.delete.answering"
)

// Create takes the snapshot and returns when it is durable. A call that is
// cancelled removes what it made.
func (r *snapshotResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan snapshotModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
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
	save := func(v lifecycle.Snapshot) {
		_ = failpoint.Hit(snapshotSaving)
		plan.flatten(v)
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
		_ = failpoint.Hit(snapshotSaved)
	}
	made, err := manager.Snapshot(ctx, plan.SandboxID.ValueString(), lifecycle.SnapshotOptions{
		Backend: plan.Backend.ValueString(), Kind: sdk.SnapshotKind(plan.Kind.ValueString()), TTL: durationOf(plan.TTL),
		Labels: textMap(plan.Labels), Created: save, Progress: progress(ctx),
	})
	defer func() { _ = failpoint.Hit(snapshotCreateAnswering) }()
	if err != nil {
		addError(&resp.Diagnostics, "Failed snapshot", err, snapshotBlame)
		return
	}
	save(made)
	tflog.Info(ctx, "took a snapshot", map[string]any{"id": made.ID, "sandbox_id": made.SandboxID, "backend": made.Backend})
}

// Read returns the snapshot as it is. One that is gone stays, with its
// status.
func (r *snapshotResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state snapshotModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if r.session.deferred() {
		r.session.warnDeferred(&resp.Diagnostics, "Snapshot "+state.ID.ValueString()+" was not refreshed")
		return
	}
	manager := r.session.manager(&resp.Diagnostics)
	if manager == nil {
		return
	}
	imported := state.Status.IsNull()
	got, err := manager.GetSnapshot(ctx, state.ID.ValueString(), lifecycle.GetOptions{Backend: state.Backend.ValueString(), Batched: true})
	switch {
	case errors.Is(err, sdk.ErrNotFound) && imported:
		resp.State.RemoveResource(ctx)
		return
	case errors.Is(err, sdk.ErrNotFound):
		state.Status = types.StringValue(snapshotLost)
		if !manager.Now().Before(timeOf(state.ExpiresAt)) {
			state.Status = types.StringValue(snapshotExpired)
		}
	case errors.Is(err, sdk.ErrUnreachable) && manager.Forgets():
		warnUnread(&resp.Diagnostics, "Snapshot "+state.ID.ValueString(), err)
		return
	case err != nil:
		addError(&resp.Diagnostics, "Failed read", err, nil)
		return
	default:
		state.flatten(got)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

// Update extends the retention, and refuses what was refused at plan with a
// warning only.
func (r *snapshotResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state snapshotModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	timeout, diags := plan.Timeouts.Update(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	if plan.Status.IsUnknown() {
		// Planned in order to be refused here; see refuseLater.
		endedSnapshot(state).error(&resp.Diagnostics)
		return
	}
	if plan.ExpiresAt.IsUnknown() && durationOf(plan.TTL) <= state.retained() {
		// The ttl was not known at plan, and is not longer.
		plan.ExpiresAt = state.ExpiresAt
	}
	if plan.ExpiresAt.IsUnknown() {
		manager := r.session.manager(&resp.Diagnostics)
		if manager == nil {
			return
		}
		defer r.session.work()()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		until := manager.Now().Add(durationOf(plan.TTL))
		if present := timeOf(state.ExpiresAt); until.Before(present) {
			until = present
		}
		got, err := manager.ExtendSnapshot(ctx, state.ID.ValueString(), lifecycle.ExtendSnapshotOptions{Backend: state.Backend.ValueString(), To: until})
		if err != nil {
			addError(&resp.Diagnostics, "Refused extension", err, snapshotBlame)
			return
		}
		plan.ExpiresAt = timeValue(got.ExpiresAt)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// Delete removes the snapshot and returns when it is seen to be gone.
func (r *snapshotResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state snapshotModel
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
	deleted, err := manager.DeleteSnapshot(ctx, state.ID.ValueString(), lifecycle.DeleteSnapshotOptions{Backend: state.Backend.ValueString(), Reason: "terraform"})
	defer func() { _ = failpoint.Hit(snapshotDeleteAnswering) }()
	if err != nil {
		addError(&resp.Diagnostics, "Failed delete", err, nil)
		return
	}
	warnForgotten(&resp.Diagnostics, "Snapshot "+state.ID.ValueString(), deleted.Forgotten)
	tflog.Info(ctx, "deleted a snapshot", map[string]any{"id": state.ID.ValueString(), "existed": deleted.Existed})
}

// ImportState takes ID or BACKEND/ID.
func (r *snapshotResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	backend, id := splitImport(req.ID)
	if err := sandbox.ParseSnapshotID(id); err != nil {
		addError(&resp.Diagnostics, "Invalid import id", sdk.Invalid("", "%s", err), nil)
		return
	}
	set := func(name string, value attr.Value) {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	set("id", types.StringValue(id))
	set("backend", textValue(backend))
	set("on_source_replaced", types.StringValue(choiceKeep))
	set("on_expired", types.StringValue(choiceReplace))
	set("timeouts", timeouts.Value{Object: types.ObjectNull(timeoutTypes(snapshotTimeouts))})
}

// endedSnapshot is the refusal of on_expired = "fail".
func endedSnapshot(state snapshotModel) finding {
	return finding{
		summary: "Ended snapshot", attribute: path.Root("on_expired"), located: true,
		detail: fmt.Sprintf("Snapshot %s on backend %q is gone: its status is %s, its retention was until %s.\n\nWhat to do: replace it (-replace), or set on_expired to \"replace\" or \"forget\".",
			state.ID.ValueString(), state.Backend.ValueString(), state.Status.ValueString(), state.ExpiresAt.ValueString()),
	}
}

// retained is the ttl of a snapshot; without one, what was granted.
func (m *snapshotModel) retained() time.Duration {
	if ttl := durationOf(m.TTL); ttl > 0 {
		return ttl
	}
	return timeOf(m.ExpiresAt).Sub(timeOf(m.CreatedAt)) + renewSlack
}
