// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
)

// attributes is one object of a schema, as the protocol has it.
type attributes = []*tfprotov6.SchemaAttribute

// Every model has the attributes of its schema, all of them and no others.
func TestModelsMatchSchemas(t *testing.T) {
	schema := newWorld(t).start().schema
	nested := func(from attributes, name string) attributes {
		i := slices.IndexFunc(from, func(a *tfprotov6.SchemaAttribute) bool { return a.Name == name })
		if i < 0 || from[i].NestedType == nil {
			t.Fatalf("no nested attribute %s", name)
		}
		return from[i].NestedType.Attributes
	}
	block := schema.Provider.Block.Attributes
	profile := schema.ResourceSchemas[tfProfile].Block.Attributes
	ready := nested(profile, "ready")
	for name, c := range map[string]struct {
		model  any
		schema attributes
	}{
		"provider":                        {providerModel{}, block},
		"provider.backends":               {backendModel{}, nested(block, "backends")},
		tfProfile:                         {profileModel{}, profile},
		tfProfile + ".build":              {buildModel{}, nested(profile, "build")},
		tfProfile + ".compose":            {composeModel{}, nested(profile, "compose")},
		tfProfile + ".machine":            {machineModel{}, nested(profile, "machine")},
		tfProfile + ".files":              {fileModel{}, nested(profile, "files")},
		tfProfile + ".limits":             {limitsModel{}, nested(profile, "limits")},
		tfProfile + ".network":            {networkModel{}, nested(profile, "network")},
		tfProfile + ".ready":              {readyModel{}, ready},
		tfProfile + ".ready.http":         {httpModel{}, nested(ready, "http")},
		tfProfile + ".ready.tcp":          {tcpModel{}, nested(ready, "tcp")},
		tfProfile + ".ttl":                {ttlModel{}, nested(profile, "ttl")},
		tfSandbox:                         {sandboxModel{}, schema.ResourceSchemas[tfSandbox].Block.Attributes},
		tfSnapshot:                        {snapshotModel{}, schema.ResourceSchemas[tfSnapshot].Block.Attributes},
		"data." + tfSandbox:               {sandboxDataModel{}, schema.DataSourceSchemas[tfSandbox].Block.Attributes},
		"data." + tfProfile:               {profileDataModel{}, schema.DataSourceSchemas[tfProfile].Block.Attributes},
		"data.sandboxer_backend":          {backendDataModel{}, schema.DataSourceSchemas["sandboxer_backend"].Block.Attributes},
		"data.sandboxer_backend.classes":  {guaranteeModel{}, nested(schema.DataSourceSchemas["sandboxer_backend"].Block.Attributes, "capabilities")},
		"data.sandboxer_sandboxes":        {sandboxesModel{}, schema.DataSourceSchemas["sandboxer_sandboxes"].Block.Attributes},
		"data.sandboxer_sandboxes.nested": {sandboxDataModel{}, nested(schema.DataSourceSchemas["sandboxer_sandboxes"].Block.Attributes, "sandboxes")},
	} {
		want := map[string]bool{}
		for _, a := range c.schema {
			want[a.Name] = true
		}
		got := map[string]bool{}
		tagsOf(reflect.TypeOf(c.model), got)
		if !maps.Equal(got, want) {
			t.Errorf("%s: the model has %v, the schema %v", name, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}

func tagsOf(kind reflect.Type, into map[string]bool) {
	for i := range kind.NumField() {
		field := kind.Field(i)
		if field.Anonymous {
			tagsOf(field.Type, into)
			continue
		}
		into[field.Tag.Get("tfsdk")] = true
	}
}

// Every object and attribute is described, in Markdown, as a sentence.
func TestEverythingIsDescribed(t *testing.T) {
	schema := newWorld(t).start().schema
	var walk func(at string, all attributes)
	walk = func(at string, all attributes) {
		for _, a := range all {
			here := at + "." + a.Name
			// The nested attributes of timeouts are the library's own.
			if a.Description == "" || (a.DescriptionKind != tfprotov6.StringKindMarkdown && !strings.Contains(here, ".timeouts.")) {
				t.Errorf("%s has no description in Markdown", here)
			}
			if last := a.Description[max(len(a.Description)-1, 0):]; last != "." && last != ")" {
				t.Errorf("%s is not described in a sentence: %q", here, a.Description)
			}
			if a.NestedType != nil {
				walk(here, a.NestedType.Attributes)
			}
		}
	}
	object := func(at string, s *tfprotov6.Schema) {
		if s.Block.Description == "" || s.Block.DescriptionKind != tfprotov6.StringKindMarkdown {
			t.Errorf("%s has no description in Markdown", at)
		}
		walk(at, s.Block.Attributes)
	}
	object("provider", schema.Provider)
	for name, s := range schema.ResourceSchemas {
		object(name, s)
	}
	for name, s := range schema.DataSourceSchemas {
		object("data."+name, s)
	}
}

// The provider block and sandboxer.hcl are one schema. An extension has an
// attribute of its own once it exists.
func TestProviderBlockIsTheConfiguration(t *testing.T) {
	schema := newWorld(t).start().schema
	ours := map[string]bool{}
	for _, a := range schema.Provider.Block.Attributes {
		ours[a.Name] = true
	}
	for _, a := range config.Attributes() {
		if a.Type == config.TypeExtension && a.Name != config.ExtensionLocal && a.Name != config.ExtensionDocker && a.Name != config.ExtensionE2B && a.Name != config.ExtensionModal {
			continue
		}
		if !ours[a.Name] {
			t.Errorf("the provider block lacks %s", a.Name)
		}
		delete(ours, a.Name)
	}
	if len(ours) > 0 {
		t.Errorf("sandboxer.hcl lacks %v", ours)
	}
}

// What Pulumi asks of a schema: see the notes on bridged providers. An id
// that is computed text, timeouts as an attribute, nothing dynamic, no
// blocks.
func TestSchemaIsNaturalInPulumi(t *testing.T) {
	schema := newWorld(t).start().schema
	for name, s := range schema.ResourceSchemas {
		if len(s.Block.BlockTypes) > 0 {
			t.Errorf("%s has blocks", name)
		}
		found := map[string]*tfprotov6.SchemaAttribute{}
		for _, a := range s.Block.Attributes {
			found[a.Name] = a
			if a.Name == "urn" || a.Name == "pulumi" {
				t.Errorf("%s.%s is a name of Pulumi's own", name, a.Name)
			}
			if a.WriteOnly && found[a.Name+"_version"] == nil && !slices.ContainsFunc(s.Block.Attributes, func(b *tfprotov6.SchemaAttribute) bool { return b.Name == a.Name+"_version" }) {
				t.Errorf("%s.%s is write-only and has no version", name, a.Name)
			}
		}
		if id := found["id"]; id == nil || !id.Computed || id.Optional || id.Required || id.Sensitive {
			t.Errorf("%s has no computed id", name)
		}
		if found["timeouts"] == nil {
			t.Errorf("%s has no timeouts", name)
		}
	}
}

// Every resource can be imported, and is configured.
func TestEveryResourceCanBeImported(t *testing.T) {
	p := New(Options{})
	for _, build := range p.Resources(context.Background()) {
		r := build()
		var meta resource.MetadataResponse
		r.Metadata(context.Background(), resource.MetadataRequest{ProviderTypeName: typeName}, &meta)
		if _, ok := r.(resource.ResourceWithImportState); !ok {
			t.Errorf("%s can't be imported", meta.TypeName)
		}
		if _, ok := r.(resource.ResourceWithConfigure); !ok {
			t.Errorf("%s is not configured", meta.TypeName)
		}
	}
	for _, build := range p.DataSources(context.Background()) {
		if _, ok := build().(datasource.DataSourceWithConfigure); !ok {
			t.Error("a data source is not configured")
		}
	}
	var meta provider.MetadataResponse
	New(Options{Version: "1.2.3"}).Metadata(context.Background(), provider.MetadataRequest{}, &meta)
	if meta.TypeName != "sandboxer" || meta.Version != "1.2.3" {
		t.Errorf("%+v", meta)
	}
}
