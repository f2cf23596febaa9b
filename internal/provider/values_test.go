// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

// The values of the test's Terraform, and what Terraform asks of a provider's
// plans and results.

import (
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// value makes a value of a type; what is left out is null.
func (r *run) value(kind tftypes.Type, from any) tftypes.Value {
	r.t.Helper()
	switch from.(type) {
	case nil:
		return tftypes.NewValue(kind, nil)
	case unknown:
		return tftypes.NewValue(kind, tftypes.UnknownValue)
	}
	switch kind := kind.(type) {
	case tftypes.Object:
		given := from.(object)
		values := map[string]tftypes.Value{}
		for name, inner := range kind.AttributeTypes {
			values[name] = r.value(inner, given[name])
		}
		for name := range given {
			if _, ok := kind.AttributeTypes[name]; !ok {
				r.t.Fatalf("no attribute %q", name)
			}
		}
		return tftypes.NewValue(kind, values)
	case tftypes.Map:
		values := map[string]tftypes.Value{}
		for name, inner := range from.(object) {
			values[name] = r.value(kind.ElementType, inner)
		}
		return tftypes.NewValue(kind, values)
	case tftypes.List:
		values := []tftypes.Value{}
		for _, inner := range from.(list) {
			values = append(values, r.value(kind.ElementType, inner))
		}
		return tftypes.NewValue(kind, values)
	}
	return tftypes.NewValue(kind, from)
}

func (r *run) dynamic(kind tftypes.Type, value tftypes.Value) *tfprotov6.DynamicValue {
	r.t.Helper()
	d, err := tfprotov6.NewDynamicValue(kind, value)
	r.must(err)
	return &d
}

func (r *run) undynamic(kind tftypes.Type, d *tfprotov6.DynamicValue) tftypes.Value {
	r.t.Helper()
	if d == nil {
		return tftypes.NewValue(kind, nil)
	}
	value, err := d.Unmarshal(kind)
	r.must(err)
	return value
}

func attributesOf(value tftypes.Value) map[string]tftypes.Value {
	attributes := map[string]tftypes.Value{}
	if value.IsKnown() && !value.IsNull() {
		if err := value.As(&attributes); err != nil {
			panic(err)
		}
	}
	return attributes
}

func attributeOf(value tftypes.Value, name string) tftypes.Value {
	attribute, ok := attributesOf(value)[name]
	if !ok {
		panic("no attribute " + name)
	}
	return attribute
}

// plainValue returns a value as Go has it; nil is null, unknown{} unknown.
func plainValue(value tftypes.Value) any {
	if !value.IsKnown() {
		return unknown{}
	}
	if value.IsNull() {
		return nil
	}
	var text string
	var flag bool
	var elements []tftypes.Value
	number := new(big.Float)
	switch {
	case value.Type().Is(tftypes.String):
		_ = value.As(&text)
		return text
	case value.Type().Is(tftypes.Bool):
		_ = value.As(&flag)
		return flag
	case value.Type().Is(tftypes.Number):
		_ = value.As(&number)
		n, _ := number.Float64()
		return n
	case value.As(&elements) == nil:
		all := list{}
		for _, element := range elements {
			all = append(all, plainValue(element))
		}
		return all
	}
	all := object{}
	for name, element := range attributesOf(value) {
		all[name] = plainValue(element)
	}
	return all
}

// proposed is Terraform's proposal: the configuration, and what is computed
// as it was. Write-only values are in no proposal.
func (r *run) proposed(kind string, config, prior tftypes.Value) tftypes.Value {
	before := attributesOf(prior)
	values := maps.Clone(attributesOf(config))
	for _, a := range r.schema.ResourceSchemas[kind].Block.Attributes {
		switch {
		case a.WriteOnly:
			values[a.Name] = tftypes.NewValue(a.ValueType(), nil)
		case a.Computed && values[a.Name].IsNull() && !prior.IsNull():
			values[a.Name] = before[a.Name]
		}
	}
	return tftypes.NewValue(r.kind(kind), values)
}

// assertPlanValid is Terraform's rule for plans: an argument is planned as
// configured or as it was, and only what is computed can be chosen.
func (r *run) assertPlanValid(p *plan, prior tftypes.Value) {
	r.t.Helper()
	planned, config, before := attributesOf(p.planned), attributesOf(p.config), attributesOf(prior)
	for _, a := range r.schema.ResourceSchemas[p.kind].Block.Attributes {
		now, asked := planned[a.Name], config[a.Name]
		switch {
		case a.WriteOnly:
			if !now.IsNull() {
				r.t.Fatalf("the plan holds the write-only %s", a.Name)
			}
		case now.Equal(asked):
		case !prior.IsNull() && now.Equal(before[a.Name]) && !before[a.Name].IsNull() && !asked.IsNull():
		case a.Computed && asked.IsNull():
		default:
			r.t.Fatalf("invalid plan: %s is planned as %s, configured as %s", a.Name, now, asked)
		}
	}
}

// assertCompatible is Terraform's rule for results: everything is known, and
// what was known at plan is as planned.
func (r *run) assertCompatible(p *plan, result tftypes.Value) {
	r.t.Helper()
	if !result.IsFullyKnown() {
		r.t.Fatalf("the result is not known: %v", plainValue(result))
	}
	for name, now := range attributesOf(result) {
		if planned := attributeOf(p.planned, name); planned.IsFullyKnown() && !planned.Equal(now) {
			r.t.Fatalf("inconsistent result: %s was planned as %s and is %s", name, planned, now)
		}
	}
}

// differences names what differs between two values.
func differences(a, b tftypes.Value) []string {
	var names []string
	other := attributesOf(b)
	for _, name := range slices.Sorted(maps.Keys(attributesOf(a))) {
		if before := attributeOf(a, name); !before.Equal(other[name]) {
			names = append(names, fmt.Sprintf("%s: %v -> %v", name, plainValue(before), plainValue(other[name])))
		}
	}
	return names
}
