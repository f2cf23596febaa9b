// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The choices for an object that has ended, and for what it was made from.
const (
	choiceReplace = "replace"
	choiceForget  = "forget"
	choiceFail    = "fail"
	choiceKeep    = "keep"
)

// sandboxModel is sandboxer_sandbox.
type sandboxModel struct {
	sandboxFacts

	Profile           types.String   `tfsdk:"profile"`
	Snapshot          types.String   `tfsdk:"snapshot"`
	Backend           types.String   `tfsdk:"backend"`
	TTL               duration       `tfsdk:"ttl"`
	OnExpiry          types.String   `tfsdk:"on_expiry"`
	IdleTimeout       duration       `tfsdk:"idle_timeout"`
	ExpirySnapshotTTL duration       `tfsdk:"expiry_snapshot_ttl"`
	PausedTTL         duration       `tfsdk:"paused_ttl"`
	OnExpired         types.String   `tfsdk:"on_expired"`
	MinRemaining      duration       `tfsdk:"min_remaining"`
	RenewBelow        duration       `tfsdk:"renew_below"`
	OnFailed          types.String   `tfsdk:"on_failed"`
	OnProfileChange   types.String   `tfsdk:"on_profile_change"`
	Env               types.Map      `tfsdk:"env"`
	SecretsWO         types.Map      `tfsdk:"secrets_wo"`
	SecretsWOVersion  types.Int64    `tfsdk:"secrets_wo_version"`
	Labels            types.Map      `tfsdk:"labels"`
	Owner             types.String   `tfsdk:"owner"`
	Task              types.String   `tfsdk:"task"`
	Run               types.String   `tfsdk:"run"`
	Timeouts          timeouts.Value `tfsdk:"timeouts"`
}

// sandboxTimeouts are the operations that can be bounded.
var sandboxTimeouts = timeouts.Opts{
	Create: true, Update: true, Delete: true,
	CreateDescription: "Making the sandbox, its setup and its readiness check included. Default: `20m`.",
	UpdateDescription: "Extending it. Default: `20m`.",
	DeleteDescription: "Destroying it and seeing it gone. Default: `5m`.",
}

func sandboxSchema(ctx context.Context) schema.Schema {
	textMap := func(description string) schema.MapAttribute {
		return schema.MapAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: description}
	}
	secrets := textMap("Secrets, write-only: each becomes the file `/run/secrets/NAME` in memory, and the environment variable `NAME_FILE` holds its path. They are in no state and no plan. They change only together with `secrets_wo_version`. A restored sandbox has to be given them again: a memory snapshot keeps the files, not `NAME_FILE`. Needs Terraform 1.11 or OpenTofu 1.11.")
	secrets.WriteOnly = true
	secrets.Validators = []validator.Map{mapvalidator.AlsoRequires(path.MatchRoot("secrets_wo_version"))}
	s := schema.Schema{
		MarkdownDescription: "A sandbox: an isolated environment that is made from a profile or a snapshot, and that ends at its deadline whatever happens to Terraform.\n\n" +
			"A sandbox that has ended stays in the state with its `status`, and the next plan replaces it, and what depends on it, unless `on_expired` says otherwise. " +
			"A create that fails, or is interrupted, removes what it made. " +
			"Import by the id of the sandbox, or by `BACKEND/ID`; what a backend does not tell (`ttl`, `env`, secrets) is not imported, and a configuration that sets `env` or `secrets_wo_version` plans a replacement.",
		Attributes: map[string]schema.Attribute{
			"profile":             textArgument("What it is made from: the `document` of a `sandboxer_profile`, or the name of a profile in a library or within `sandboxer`. Exactly one of `profile` and `snapshot` is set. Another profile replaces the sandbox, see `on_profile_change`."),
			"snapshot":            textArgument("Id of the snapshot to restore. A restored sandbox takes `env` and `labels` from the profile and from here, not from the sandbox that was snapshotted, and `owner`, `task` and `run` as a new one does; secrets have to be given again. Another snapshot replaces the sandbox."),
			"backend":             settledArgument("Backend to make it on. Default: the snapshot's, or the provider's. Another one replaces the sandbox."),
			"ttl":                 durationArgument("How long it lives, as a Go duration, counted from its creation. Default: the profile's, then the provider's `default_ttl`. Raising it extends the sandbox in place, to the later of its present deadline and now + `ttl`; lowering it shortens nothing. A deadline that was moved elsewhere is no change."),
			"on_expiry":           settledArgument("What happens at the end, by the deadline or by `idle_timeout`: `destroy`; `snapshot`, then destroy: the snapshot is made before the end, which it never delays, and is `expiry_snapshot_id`; `pause`: it is paused and destroyed after `paused_ttl`, unless it is extended or resumed. Default: the profile's, then `destroy`. Another choice replaces the sandbox.", stringvalidator.OneOf(string(sdk.OnExpiryDestroy), string(sdk.OnExpirySnapshot), string(sdk.OnExpiryPause))),
			"idle_timeout":        durationArgument("Second clock, as a Go duration, which can only end the sandbox earlier: how long it lives without being used. What counts as use is what the backend says of `idle_exec`, `idle_files`, `idle_ports` and `idle_processes`; a refresh or any other look is none. Default: the profile's. Another one replaces the sandbox."),
			"expiry_snapshot_ttl": durationArgument("How long the snapshot that `on_expiry = \"snapshot\"` makes is kept, as a Go duration. Default: the profile's, then `168h`. Another one replaces the sandbox."),
			"paused_ttl":          durationArgument("How long the sandbox is kept once `on_expiry = \"pause\"` has paused it, within its maximum, as a Go duration. Default: the profile's, then `24h`. Another one replaces the sandbox."),
			"on_expired":          choiceArgument("What a plan does with a sandbox that has ended, by its deadline or otherwise: `replace` (default) makes a new one; `forget` leaves it gone; `fail` refuses to go on.", choiceReplace, choiceForget, choiceFail),
			"min_remaining":       durationArgument("Refuses to go on with a sandbox that has less than this left to live, as a Go duration."),
			"renew_below":         durationArgument("Extends the sandbox to now + `ttl`, in place, when less than this is left to live at plan, as a Go duration."),
			"on_failed":           choiceArgument("What happens to a sandbox that was made but did not become ready: `destroy` (default), or `keep` for inspection, until its deadline.", lifecycle.OnFailedDestroy, lifecycle.OnFailedKeep),
			"on_profile_change":   choiceArgument("What another profile does to the sandbox: `replace` (default), or `keep` until it is replaced for another reason.", choiceReplace, choiceKeep),
			"env":                 textMap("Environment variables, added to the profile's. Those of a snapshot's source are not taken over. A change replaces the sandbox."),
			"secrets_wo":          secrets,
			"secrets_wo_version":  schema.Int64Attribute{Optional: true, MarkdownDescription: "Version of `secrets_wo`: a change replaces the sandbox with the present secrets.", Validators: []validator.Int64{int64validator.AlsoRequires(path.MatchRoot("secrets_wo"))}},
			"labels":              textMap("Labels, added to the profile's. Those of a snapshot's source are not taken over. A change replaces the sandbox."),
			"owner":               settledArgument("Team or person that it is for. Default: the provider's, then CI's. A change replaces the sandbox."),
			"task":                settledArgument("What it is for. Default: the provider's, then CI's. A change replaces the sandbox."),
			"run":                 settledArgument("URL or id of the run that makes it. Default: the provider's, then CI's. It is about the creation: a later value changes nothing."),
			"timeouts":            timeoutsArgument(ctx, sandboxTimeouts),
		},
	}
	resourceFacts(sandboxFactTable, s.Attributes)
	return s
}

// settle completes the arguments that were left out by what was decided.
func (m *sandboxModel) settle(v lifecycle.Sandbox) {
	if v.CreatedAt.IsZero() {
		return
	}
	m.Backend = textValue(v.Backend)
	m.OnExpiry = textValue(string(v.OnExpiry))
	m.Owner, m.Task, m.Run = textValue(v.Owner), textValue(v.Task), textValue(v.Run)
}

// end is how the sandbox is asked to end.
func (m *sandboxModel) end() sandbox.End {
	return sandbox.End{
		OnExpiry: sdk.OnExpiry(m.OnExpiry.ValueString()), IdleTimeout: durationOf(m.IdleTimeout),
		ExpirySnapshotTTL: durationOf(m.ExpirySnapshotTTL), PausedTTL: durationOf(m.PausedTTL),
	}
}

// blame finds the attribute that a path of a create stands for. What is not
// the sandbox's own is within its profile, which is one attribute here; the
// text of the diagnostic then names the path.
func (m *sandboxModel) blame(at string) (path.Path, bool) {
	head, rest := cutStep(at)
	key := func(attribute string) path.Path {
		if len(rest) > 1 && rest[0] == '.' {
			return path.Root(attribute).AtMapKey(rest[1:])
		}
		return path.Root(attribute)
	}
	switch {
	case head == "id", head == "max_sandboxes", head == "max_sandboxes_per_owner", head == "max_cost_per_hour", head == "max_committed", head == "prices":
		return path.Empty(), false
	case at == "ttl" && !m.TTL.IsNull(), head == "snapshot", head == "backend", head == "on_failed", head == "profile":
		return path.Root(head), true
	case at == "idle_timeout" && !m.IdleTimeout.IsNull(), head == "expiry_snapshot_ttl" && !m.ExpirySnapshotTTL.IsNull(), head == "paused_ttl" && !m.PausedTTL.IsNull():
		return path.Root(head), true
	case head == "on_expiry" && !m.OnExpiry.IsNull() && !m.OnExpiry.IsUnknown():
		return path.Root(head), true
	case head == "secrets":
		return path.Root("secrets_wo"), true
	case (head == "env" && !m.Env.IsNull()), (head == "labels" && !m.Labels.IsNull()):
		return key(head), true
	case m.Snapshot.IsNull():
		return path.Root("profile"), true
	}
	return path.Root("snapshot"), true
}
