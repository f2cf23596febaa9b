// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// verdict is what a check of a sandbox comes to. A refusal is certain;
// everything else is a warning, and the lifecycle checks again before it
// writes its intent.
type verdict struct {
	refused []finding
	warned  diag.Diagnostics
}

// check holds a sandbox against its backend and the maximum.
func (r *sandboxResource) check(ctx context.Context, manager *lifecycle.Manager, plan sandboxModel, p sdk.Profile, secrets bool) verdict {
	var v verdict
	opts := lifecycle.CheckOptions{Backend: plan.Backend.ValueString(), Profile: p, End: plan.end(), TTL: durationOf(plan.TTL)}
	if secrets {
		opts.Needs = append(opts.Needs, secretsNeed)
	}
	if !plan.Snapshot.IsNull() {
		opts.Restores = true
		opts.Needs = append(opts.Needs, sandbox.Requirement{Path: "snapshot", Feature: sdk.FeatureRestore, Class: sdk.ClassEmulated})
	}
	result, err := manager.Check(ctx, opts)
	switch {
	case err != nil && certain(err):
		v.refused = append(v.refused, findings("Refused sandbox", err, plan.blame)...)
		return v
	case err != nil:
		warnUnchecked(&v.warned, fmt.Sprintf("What backend %q promises could not be looked at", plan.Backend.ValueString()), err)
		return v
	}
	undecided := result.Undecided
	result.Undecided = nil
	v.refused = append(v.refused, findings("Refused sandbox", result.Err(), plan.blame)...)
	for _, open := range undecided {
		warnUndecided(&v.warned, result, open, plan.blame)
	}
	if least := durationOf(plan.MinRemaining); least > result.Life.TTL {
		v.refused = append(v.refused, finding{
			summary: "Too little life", attribute: path.Root("min_remaining"), located: true,
			detail: fmt.Sprintf("The sandbox would live for %s, less than min_remaining = %s.\n\nWhat to do: raise ttl, or lower min_remaining.", result.Life.TTL, least),
		})
	}
	if !result.Guarded {
		v.warned.AddAttributeWarning(path.Root("backend"), "No live guard",
			fmt.Sprintf("Nothing on backend %q ends a sandbox at its deadline when every client is dead.\n\nWhat to do: run `sandboxer reap --every 1m`, or from cron, somewhere that stays up.", result.Backend))
	}
	return v
}

// refusals returns why an existing sandbox can't be gone on with; extending
// says that the plan will extend it.
func (r *sandboxResource) refusals(ctx context.Context, manager *lifecycle.Manager, plan, present sandboxModel, secrets, extending bool) []finding {
	id, backend := present.ID.ValueString(), present.Backend.ValueString()
	if present.ended() && plan.OnExpired.ValueString() != choiceReplace {
		if plan.OnExpired.ValueString() != choiceFail {
			return nil
		}
		return []finding{{
			summary: "Ended sandbox", attribute: path.Root("on_expired"), located: true,
			detail: fmt.Sprintf("Sandbox %s on backend %q has ended: its status is %s, its deadline was %s.\n\nWhat to do: replace it (-replace), or set on_expired to \"replace\" or \"forget\".",
				id, backend, present.Status.ValueString(), present.ExpiresAt.ValueString()),
		}}
	}
	p := documentOf(present)
	if present.ended() {
		// A new one will be made.
		return r.check(ctx, manager, plan, p, secrets).refused
	}
	refused := r.checkPromises(ctx, manager, plan, p, secrets)
	least := durationOf(plan.MinRemaining)
	if least == 0 {
		return refused
	}
	left := timeOf(present.ExpiresAt).Sub(manager.Now())
	if extending {
		left = max(left, r.life(plan))
	}
	if left < least {
		refused = append(refused, finding{
			summary: "Too little life", attribute: path.Root("min_remaining"), located: true,
			detail: fmt.Sprintf("Sandbox %s on backend %q has %s left, less than min_remaining = %s.\n\nWhat to do: raise ttl, set renew_below, or replace it (-replace).", id, backend, max(left, 0).Round(time.Second), least),
		})
	}
	return refused
}

// checkPromises holds an existing sandbox against the maximum and against
// what its backend promises. It asks no probe: one may boot a sandbox, and
// nothing is about to be made.
func (r *sandboxResource) checkPromises(ctx context.Context, manager *lifecycle.Manager, plan sandboxModel, p sdk.Profile, secrets bool) []finding {
	if p.Name == "" {
		return nil
	}
	_, err := sandbox.ResolveLife(durationOf(plan.TTL), p, r.providerLife())
	refused := findings("Refused sandbox", err, plan.blame)
	info, err := manager.Backend(ctx, plan.Backend.ValueString(), false)
	if err != nil {
		// The refresh has told of a backend that can't be asked.
		return refused
	}
	needsOf := sandbox.Requirements
	if !plan.Snapshot.IsNull() {
		needsOf = sandbox.RestoreRequirements
	}
	needs := needsOf(plan.end().Over(p))
	if secrets {
		needs = append(needs, secretsNeed)
	}
	result := lifecycle.CheckResult{Backend: info.Name}
	result.Mismatches, _ = sandbox.CheckRequirements(needs, info.Capabilities)
	return append(refused, findings("Refused sandbox", result.Err(), plan.blame)...)
}

// secretsNeed is what write-only secrets need of a backend.
var secretsNeed = sandbox.Requirement{Path: "secrets", Feature: sdk.FeatureSecretFiles, Class: sdk.ClassEmulated}

// providerLife is the default and the maximum of the provider.
func (r *sandboxResource) providerLife() sandbox.Life {
	if r.session.deferred() {
		return sandbox.Life{}
	}
	runtime, err := r.session.open()
	if err != nil {
		return sandbox.Life{}
	}
	return runtime.Config.Life()
}

// life is how long a sandbox lives from now when it is made or extended.
func (r *sandboxResource) life(plan sandboxModel) time.Duration {
	if ttl := durationOf(plan.TTL); ttl > 0 {
		return ttl
	}
	// Without a ttl that was asked for, none can be over the maximum.
	life, _ := sandbox.ResolveLife(0, documentOf(plan), r.providerLife())
	return life.TTL
}

// documentOf returns the profile that a sandbox was made from; its name is
// empty when the state has none.
func documentOf(m sandboxModel) sdk.Profile {
	p, err := sandbox.ParseDocument(m.Document.ValueString())
	if err != nil {
		return sdk.Profile{}
	}
	return p
}

// certain tells a refusal, which names its attribute, from a question that
// could not be asked.
func certain(err error) bool {
	var known *sdk.Error
	if !errors.As(err, &known) || known.Path == "" {
		return false
	}
	for _, kind := range []error{sdk.ErrInvalid, sdk.ErrUnsupported, sdk.ErrNotFound, sdk.ErrExpired} {
		if errors.Is(known.Kind, kind) {
			return true
		}
	}
	return false
}

// warnUndecided says that only the machine can tell whether it has a feature.
func warnUndecided(diags *diag.Diagnostics, result lifecycle.CheckResult, open sandbox.Mismatch, at blame) {
	f := finding{
		summary: "Undecided feature",
		detail: fmt.Sprintf("%s: whether backend %q has the feature %s (class %s is needed) depends on the machine, which can't be asked from here: %s\n\nIt is checked again before the sandbox is made.",
			open.Path, result.Backend, open.Feature, open.Class, result.Unreachable),
	}
	f.attribute, f.located = at(open.Path)
	f.warning(diags, "")
}

// warnUnchecked says that a check must wait for apply.
func warnUnchecked(diags *diag.Diagnostics, what string, err error) {
	diags.AddWarning("Unchecked sandbox", fmt.Sprintf("%s. It is checked before the sandbox is made.\n\nOriginal error: %s", what, err))
}

// foretell says that bounds on number or cost leave no room for one more
// sandbox beside those that are alive and those that this plan makes too. It is
// a warning: the ones that are alive may be gone by the time of the apply, some
// by this very plan, and a plan error for a sandbox that was never made would
// stop `terraform destroy` of the rest. The create itself is refused before
// anything is made. What would be refused with nothing beside it is an error
// like every other impossible profile.
func (r *sandboxResource) foretell(ctx context.Context, manager *lifecycle.Manager, plan sandboxModel, p sdk.Profile, diags *diag.Diagnostics) {
	life, err := sandbox.ResolveLife(durationOf(plan.TTL), p, r.providerLife())
	if err != nil {
		return // the check has told of it
	}
	err = r.session.forecast(manager).Add(ctx, lifecycle.Wanted{Backend: plan.Backend.ValueString(), Profile: p, TTL: life.TTL, Owner: plan.Owner.ValueString()})
	switch {
	case err == nil:
	case errors.Is(err, sdk.ErrQuota):
		for _, f := range findings("Exhausted quota", err, plan.blame) {
			f.warning(diags, "\n\nIf it still is so at apply, the sandbox is refused, and nothing of it is made.")
		}
	case certain(err):
		for _, f := range findings("Refused sandbox", err, plan.blame) {
			f.error(diags)
		}
	default:
		warnUnchecked(diags, "How many sandboxes are alive could not be counted", err)
	}
}
