// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	dschema "github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/boolplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/listplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/mapplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// fact is one computed attribute that a resource and its data sources share:
// it is described once and rendered for each.
type fact struct {
	name        string
	kind        factKind
	description string
}

type factKind int

const (
	factText factKind = iota
	factTime
	factNumber
	factBool
	factTexts
	factMap
)

// resourceFacts renders facts for a resource. A fact stays as it is until the
// plan says that it changes: drift of a computed value is never a plan.
func resourceFacts(facts []fact, into map[string]schema.Attribute) {
	for _, f := range facts {
		var a schema.Attribute
		switch f.kind {
		case factText:
			a = schema.StringAttribute{Computed: true, MarkdownDescription: f.description, PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}}
		case factTime:
			a = schema.StringAttribute{Computed: true, CustomType: timetypes.RFC3339Type{}, MarkdownDescription: f.description, PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}}
		case factNumber:
			a = schema.Int64Attribute{Computed: true, MarkdownDescription: f.description, PlanModifiers: []planmodifier.Int64{int64planmodifier.UseStateForUnknown()}}
		case factBool:
			a = schema.BoolAttribute{Computed: true, MarkdownDescription: f.description, PlanModifiers: []planmodifier.Bool{boolplanmodifier.UseStateForUnknown()}}
		case factTexts:
			a = schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: f.description, PlanModifiers: []planmodifier.List{listplanmodifier.UseStateForUnknown()}}
		case factMap:
			a = schema.MapAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: f.description, PlanModifiers: []planmodifier.Map{mapplanmodifier.UseStateForUnknown()}}
		}
		into[f.name] = a
	}
}

// dataFacts renders facts for a data source.
func dataFacts(facts []fact, into map[string]dschema.Attribute) {
	for _, f := range facts {
		var a dschema.Attribute
		switch f.kind {
		case factText:
			a = dschema.StringAttribute{Computed: true, MarkdownDescription: f.description}
		case factTime:
			a = dschema.StringAttribute{Computed: true, CustomType: timetypes.RFC3339Type{}, MarkdownDescription: f.description}
		case factNumber:
			a = dschema.Int64Attribute{Computed: true, MarkdownDescription: f.description}
		case factBool:
			a = dschema.BoolAttribute{Computed: true, MarkdownDescription: f.description}
		case factTexts:
			a = dschema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: f.description}
		case factMap:
			a = dschema.MapAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: f.description}
		}
		into[f.name] = a
	}
}

// textArgument is an optional argument without a default.
func textArgument(description string, validators ...validator.String) schema.StringAttribute {
	return schema.StringAttribute{Optional: true, MarkdownDescription: description, Validators: append(validators, filled{})}
}

// settledArgument is an argument that is chosen for who leaves it out, and
// then stays.
func settledArgument(description string, validators ...validator.String) schema.StringAttribute {
	a := textArgument(description, validators...)
	a.Computed = true
	a.PlanModifiers = []planmodifier.String{stringplanmodifier.UseStateForUnknown()}
	return a
}

// choiceArgument is one of several words; the first is the default.
func choiceArgument(description string, choices ...string) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, Computed: true, MarkdownDescription: description, Default: stringdefault.StaticString(choices[0]),
		Validators: []validator.String{stringvalidator.OneOf(choices...)},
	}
}

func durationArgument(description string) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, CustomType: durationType{}, MarkdownDescription: description,
		Validators: []validator.String{positive{}},
	}
}

// timeoutsArgument is the attribute that every resource has.
func timeoutsArgument(ctx context.Context, opts timeouts.Opts) schema.Attribute {
	a, ok := timeouts.Attributes(ctx, opts).(schema.SingleNestedAttribute)
	if !ok {
		return timeouts.Attributes(ctx, opts)
	}
	a.MarkdownDescription = "How long each operation may take, as Go durations."
	return a
}

// timeValue is a time as the state holds it: to the second, cut off, so that
// a deadline is never shown later than it is.
func timeValue(t time.Time) timetypes.RFC3339 {
	if t.IsZero() {
		return timetypes.NewRFC3339Null()
	}
	return timetypes.NewRFC3339TimeValue(t.UTC().Truncate(time.Second))
}

// timeOf returns a time of the state, zero when there is none.
func timeOf(value timetypes.RFC3339) time.Time {
	if value.IsNull() || value.IsUnknown() {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, value.ValueString())
	if err != nil {
		return time.Time{}
	}
	return t
}

// textValue is null for an empty text.
func textValue(s string) types.String {
	if s == "" {
		return types.StringNull()
	}
	return types.StringValue(s)
}

// moneyValue is an amount of dollars, null for none.
func moneyValue(dollars float64) types.Float64 {
	if dollars == 0 {
		return types.Float64Null()
	}
	return types.Float64Value(dollars)
}

// mapValue is a map of texts, empty rather than null.
func mapValue(m map[string]string) types.Map {
	elements := make(map[string]attr.Value, len(m))
	for key, value := range m {
		elements[key] = types.StringValue(value)
	}
	return types.MapValueMust(types.StringType, elements)
}

// textsValue is a list of texts, empty rather than null.
func textsValue[S ~string](texts []S) types.List {
	elements := make([]attr.Value, 0, len(texts))
	for _, text := range texts {
		elements = append(elements, types.StringValue(string(text)))
	}
	return types.ListValueMust(types.StringType, elements)
}

// textMap returns the known elements of a map of texts, nil when it is null
// or unknown. An element that is null counts as left out.
func textMap(m types.Map) map[string]string {
	if m.IsNull() || m.IsUnknown() {
		return nil
	}
	texts := make(map[string]string, len(m.Elements()))
	for key, value := range m.Elements() {
		if text, ok := value.(types.String); ok && !text.IsNull() && !text.IsUnknown() {
			texts[key] = text.ValueString()
		}
	}
	return texts
}

// secretMap returns the values of a write-only map as secrets.
func secretMap(m types.Map) map[string]sdk.Secret {
	texts := textMap(m)
	if len(texts) == 0 {
		return nil
	}
	secrets := make(map[string]sdk.Secret, len(texts))
	for name, value := range texts {
		secrets[name] = sdk.Secret(value)
	}
	return secrets
}
