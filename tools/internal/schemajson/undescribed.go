// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package schemajson

import (
	"maps"
	"slices"
)

// Undescribed returns every object and attribute without a description.
func (p Provider) Undescribed() []string {
	var found []string
	visit := func(kind, name string, s *Schema) {
		at := kind + " " + name
		if s.Block.Description == "" && kind != "provider" {
			found = append(found, at+" has no description")
		}
		found = append(found, undescribed(at, s.Block)...)
	}
	if p.Provider != nil {
		visit("provider", "", p.Provider)
	}
	for kind, all := range map[string]map[string]*Schema{
		"resource": p.Resources, "data source": p.DataSources, "ephemeral resource": p.EphemeralResources,
		"action": p.Actions, "list resource": p.Lists,
	} {
		for name, s := range all {
			visit(kind, name, s)
		}
	}
	for name, f := range p.Functions {
		if f.Description == "" || f.Summary == "" {
			found = append(found, "function "+name+" has no description or summary")
		}
		for _, parameter := range f.Parameters {
			if parameter.Description == "" {
				found = append(found, "function "+name+": "+parameter.Name+" has no description")
			}
		}
	}
	slices.Sort(found)
	return found
}

func undescribed(at string, b *Block) []string {
	found := attributesUndescribed(at, b.Attributes)
	for name, nested := range b.Blocks {
		found = append(found, undescribed(at+"."+name, nested.Block)...)
	}
	return found
}

func attributesUndescribed(at string, all map[string]*Attribute) []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a := all[name]
		if a.Description == "" {
			found = append(found, at+"."+name+" has no description")
		}
		if a.Nested != nil {
			found = append(found, attributesUndescribed(at+"."+name, a.Nested.Attributes)...)
		}
	}
	return found
}
