// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// renewSlack is what does not count when two lives are compared: the state
// holds seconds, and time passes between two looks at the clock.
const renewSlack = 2 * time.Second

// ModifyPlan decides what a plan does with a sandbox: make, keep, extend,
// replace or refuse.
func (r *sandboxResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || r.session == nil {
		return
	}
	var plan, config sandboxModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	secrets := config.SecretsWO.IsUnknown() || len(config.SecretsWO.Elements()) > 0
	if req.State.Raw.IsNull() {
		r.planCreate(ctx, &plan, secrets, &resp.Diagnostics)
		resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
		return
	}
	var state sandboxModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.RequiresReplace = append(resp.RequiresReplace, r.planExisting(ctx, &plan, state, secrets, &resp.Diagnostics)...)
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
}

// planCreate checks a sandbox that will be made, and says of it what is
// known already.
func (r *sandboxResource) planCreate(ctx context.Context, plan *sandboxModel, secrets bool, diags *diag.Diagnostics) {
	if r.session.deferred() {
		r.session.warnDeferred(diags, "A new sandbox")
		if !plan.Profile.IsUnknown() && isDocument(plan.Profile.ValueString()) {
			if p, err := r.session.profile(ctx, plan.Profile.ValueString()); err == nil {
				plan.foresee(p)
			}
		}
		return
	}
	manager := r.session.manager(diags)
	if manager == nil {
		return
	}
	p, known, err := r.source(ctx, manager, plan)
	if err != nil {
		if certain(err) {
			addError(diags, "Refused sandbox", err, plan.blame)
		} else {
			warnUnchecked(diags, "The snapshot could not be looked at", err)
		}
		return
	}
	if !known || plan.Backend.IsUnknown() && plan.Snapshot.IsUnknown() {
		return
	}
	verdict := r.check(ctx, manager, *plan, p, secrets)
	for _, f := range verdict.refused {
		f.error(diags)
	}
	diags.Append(verdict.warned...)
	r.foretell(ctx, manager, *plan, p, diags)
}

// source returns the profile that a new sandbox will be made from; known is
// false while it is not.
func (r *sandboxResource) source(ctx context.Context, manager *lifecycle.Manager, plan *sandboxModel) (p sdk.Profile, known bool, err error) {
	switch {
	case plan.Profile.IsUnknown() || plan.Snapshot.IsUnknown():
		return p, false, nil
	case !plan.Snapshot.IsNull():
		backend := plan.Backend.ValueString()
		snapshot, err := manager.GetSnapshot(ctx, plan.Snapshot.ValueString(), lifecycle.GetOptions{Backend: backend})
		if errors.Is(err, sdk.ErrNotFound) {
			return p, false, &sdk.Error{Kind: sdk.ErrNotFound, Path: "snapshot", Message: fmt.Sprintf("snapshot %s is gone", plan.Snapshot.ValueString()), Err: err}
		}
		if err != nil {
			return p, false, err
		}
		if !manager.Now().Before(snapshot.ExpiresAt) {
			return p, false, &sdk.Error{Kind: sdk.ErrExpired, Path: "snapshot", Message: fmt.Sprintf("the retention of snapshot %s ended at %s", snapshot.ID, timeValue(snapshot.ExpiresAt).ValueString())}
		}
		plan.Backend = types.StringValue(snapshot.Backend)
		p = snapshot.Document()
	default:
		if p, err = r.session.profile(ctx, plan.Profile.ValueString()); err != nil {
			if !certain(err) {
				err = &sdk.Error{Kind: sdk.ErrInvalid, Path: "profile", Message: err.Error()}
			}
			return p, false, err
		}
		if plan.Backend.IsUnknown() {
			// What is planned is applied, also where the default is another.
			name, err := manager.BackendName("")
			if err != nil {
				return p, false, err
			}
			plan.Backend = types.StringValue(name)
		}
	}
	plan.foresee(p)
	return p, true, nil
}

// foresee sets what follows from the profile.
func (m *sandboxModel) foresee(p sdk.Profile) {
	m.Document = types.StringValue(sandbox.Document(p))
	m.ProfileName = types.StringValue(p.Name)
	m.ProfileRevision = types.StringValue(sandbox.Revision(p))
	if m.OnExpiry.IsUnknown() {
		choice := p.OnExpiry
		if choice == "" {
			choice = sdk.OnExpiryDestroy
		}
		m.OnExpiry = types.StringValue(string(choice))
	}
}

// planExisting plans for a sandbox that the state holds, and returns the
// attributes because of which it must be replaced.
func (r *sandboxResource) planExisting(ctx context.Context, plan *sandboxModel, state sandboxModel, secrets bool, diags *diag.Diagnostics) path.Paths {
	plan.keepEqual(state)
	r.planProfile(ctx, plan, state)
	if replace := plan.replacedBy(state); len(replace) > 0 {
		// The new one is checked when Terraform plans it, right after this.
		plan.forget()
		return replace
	}
	plan.Run = state.Run
	changed := plan.changes(state)
	var manager *lifecycle.Manager
	if !r.session.deferred() {
		if manager = r.session.manager(diags); manager == nil {
			return nil
		}
	}
	if state.ended() && plan.OnExpired.ValueString() == choiceReplace {
		if manager != nil && !changed {
			if refused := r.check(ctx, manager, *plan, documentOf(state), secrets).refused; len(refused) > 0 {
				plan.refuseLater(refused, diags)
				return nil
			}
		}
		plan.forget()
		return path.Paths{path.Root("status")}
	}
	if !state.ended() {
		plan.planLease(r.session.clock.Now(), state, r.life(*plan), diags)
	}
	if manager == nil {
		return nil
	}
	refused := r.refusals(ctx, manager, *plan, state, secrets, plan.ExpiresAt.IsUnknown())
	switch {
	case len(refused) == 0:
	case changed:
		for _, f := range refused {
			f.error(diags)
		}
	default:
		plan.refuseLater(refused, diags)
	}
	return nil
}

// keepEqual takes the prior spelling of what means the same.
func (m *sandboxModel) keepEqual(state sandboxModel) {
	for _, pair := range [][2]*duration{{&m.TTL, &state.TTL}, {&m.IdleTimeout, &state.IdleTimeout},
		{&m.ExpirySnapshotTTL, &state.ExpirySnapshotTTL}, {&m.PausedTTL, &state.PausedTTL}, {&m.MinRemaining, &state.MinRemaining}, {&m.RenewBelow, &state.RenewBelow}} {
		if planned := durationOf(*pair[0]); planned != 0 && planned == durationOf(*pair[1]) {
			*pair[0] = *pair[1]
		}
	}
}

// planProfile keeps the profile of the state when the planned one is the
// same, can't be looked up here, or must not matter.
func (r *sandboxResource) planProfile(ctx context.Context, plan *sandboxModel, state sandboxModel) {
	if plan.Profile.IsNull() || state.Profile.IsNull() {
		return
	}
	if plan.OnProfileChange.ValueString() == choiceKeep {
		plan.Profile = state.Profile
		return
	}
	if plan.Profile.IsUnknown() {
		return
	}
	p, err := r.session.profile(ctx, plan.Profile.ValueString())
	switch {
	case err != nil && plan.Profile.Equal(state.Profile):
		// The sandbox has its document. A library that lacks the name here
		// says nothing about the sandbox.
	case err == nil && sandbox.Revision(p) == state.ProfileRevision.ValueString():
		plan.Profile = state.Profile
	case err == nil && plan.Profile.Equal(state.Profile):
		// The same name, another profile.
		plan.ProfileRevision = types.StringValue(sandbox.Revision(p))
	}
}

// replacedBy names what makes another sandbox of it.
func (m *sandboxModel) replacedBy(state sandboxModel) path.Paths {
	var paths path.Paths
	for _, fixed := range []struct {
		name        string
		plan, state attr.Value
	}{
		{"profile", m.Profile, state.Profile},
		{"profile_revision", m.ProfileRevision, state.ProfileRevision},
		{"snapshot", m.Snapshot, state.Snapshot},
		{"backend", m.Backend, state.Backend},
		{"on_expiry", m.OnExpiry, state.OnExpiry},
		{"idle_timeout", m.IdleTimeout, state.IdleTimeout},
		{"expiry_snapshot_ttl", m.ExpirySnapshotTTL, state.ExpirySnapshotTTL},
		{"paused_ttl", m.PausedTTL, state.PausedTTL},
		{"env", m.Env, state.Env},
		{"secrets_wo_version", m.SecretsWOVersion, state.SecretsWOVersion},
		{"labels", m.Labels, state.Labels},
		{"owner", m.Owner, state.Owner},
		{"task", m.Task, state.Task},
	} {
		if !fixed.plan.Equal(fixed.state) {
			paths = append(paths, path.Root(fixed.name))
		}
	}
	return paths
}

// changes reports whether the configuration changes anything in place.
func (m *sandboxModel) changes(state sandboxModel) bool {
	return !m.TTL.Equal(state.TTL) || !m.OnExpired.Equal(state.OnExpired) || !m.MinRemaining.Equal(state.MinRemaining) ||
		!m.RenewBelow.Equal(state.RenewBelow) || !m.OnFailed.Equal(state.OnFailed) || !m.OnProfileChange.Equal(state.OnProfileChange) ||
		!m.Timeouts.Equal(state.Timeouts)
}

// raises reports whether the ttl is longer than before.
func (m *sandboxModel) raises(state sandboxModel) bool {
	return durationOf(m.TTL) > 0 && durationOf(m.TTL) > state.lived()
}

// due reports whether less is left to live than the sandbox is renewed at.
func (m *sandboxModel) due(now time.Time, state sandboxModel) bool {
	below := durationOf(m.RenewBelow)
	return below > 0 && timeOf(state.ExpiresAt).Sub(now) < below
}

// lived is the ttl of the state; without one, what was granted at creation,
// as far as the deadline tells.
func (m *sandboxModel) lived() time.Duration {
	if ttl := durationOf(m.TTL); ttl > 0 {
		return ttl
	}
	return timeOf(m.ExpiresAt).Sub(timeOf(m.CreatedAt)) + renewSlack
}

// planLease plans an extension in place where the ttl was raised or little is
// left. Nothing ever shortens.
func (m *sandboxModel) planLease(now time.Time, state sandboxModel, life time.Duration, diags *diag.Diagnostics) {
	expires, most := timeOf(state.ExpiresAt), timeOf(state.MaxExpiresAt)
	// A ttl that is known only at apply may be a longer one.
	extend := m.TTL.IsUnknown()
	switch {
	case m.raises(state):
		if until := now.Add(durationOf(m.TTL)); until.After(most.Add(time.Second)) && until.After(expires) {
			diags.AddAttributeError(path.Root("ttl"), "Extension past the maximum",
				fmt.Sprintf("Sandbox %s on backend %q can be extended to %s at most; now + %s is %s.\n\nWhat to do: choose a shorter ttl, or replace the sandbox (-replace), from a snapshot if its content matters.",
					state.ID.ValueString(), state.Backend.ValueString(), state.MaxExpiresAt.ValueString(), m.TTL.ValueString(), timeValue(until).ValueString()))
			return
		}
		extend = true
	case durationOf(m.TTL) > 0 && durationOf(m.TTL) < state.lived() && !m.TTL.Equal(state.TTL):
		diags.AddAttributeWarning(path.Root("ttl"), "Deadline not shortened",
			fmt.Sprintf("A lower ttl shortens no lease: sandbox %s on backend %q keeps its deadline %s.\n\nWhat to do: `sandboxer expire %s` moves it earlier.",
				state.ID.ValueString(), state.Backend.ValueString(), state.ExpiresAt.ValueString(), state.ID.ValueString()))
	}
	if !extend && m.due(now, state) {
		switch {
		case expires.Equal(most):
			diags.AddAttributeWarning(path.Root("renew_below"), "Renewal at its maximum",
				fmt.Sprintf("Sandbox %s on backend %q has %s left and its deadline %s is the latest possible.", state.ID.ValueString(), state.Backend.ValueString(), expires.Sub(now).Round(time.Second), state.ExpiresAt.ValueString()))
		case now.Add(life).After(expires):
			extend = true
		}
	}
	if extend {
		m.ExpiresAt, m.Generation = timetypes.NewRFC3339Unknown(), types.Int64Unknown()
	}
}

// refuseLater plans an update that apply will refuse, with a warning: an
// error here would stop `terraform destroy`, which plans first.
func (m *sandboxModel) refuseLater(refused []finding, diags *diag.Diagnostics) {
	for _, f := range refused {
		f.warning(diags, "\n\nNothing about this sandbox changes, so the plan goes on, and apply will fail with this.")
	}
	m.Status = types.StringUnknown()
}
