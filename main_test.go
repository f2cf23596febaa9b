// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"

	face "github.com/sand-boxer/terraform-provider-sandboxer/internal/provider"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The provider block has exactly the settings that an extension within this
// program describes, in the same words.
func TestProviderBlockAgreesWithExtensions(t *testing.T) {
	var block provider.SchemaResponse
	face.New(face.Options{}).Schema(t.Context(), provider.SchemaRequest{}, &block)
	for name, construct := range builtins() {
		described, err := construct().Describe(t.Context(), sdk.DescribeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		nested, ok := block.Schema.Attributes[name].(schema.SingleNestedAttribute)
		if !ok {
			t.Errorf("the provider block has no object %s", name)
			continue
		}
		for _, key := range described.ConfigSchema {
			if a := nested.Attributes[key.Name]; a == nil || a.GetMarkdownDescription() != key.Description {
				t.Errorf("%s.%s is not described in the provider block as by the extension", name, key.Name)
			}
		}
		for attribute := range nested.Attributes {
			if !slices.ContainsFunc(described.ConfigSchema, func(key sdk.ConfigKey) bool { return key.Name == attribute }) {
				t.Errorf("the extension %s knows no %s", name, attribute)
			}
		}
	}
}

// Terraform gets the plugin, everyone else the command line.
func TestFaces(t *testing.T) {
	cases := []struct {
		args   string
		cookie string
		want   bool
	}{
		{"/x/terraform-provider-sandboxer_v0.1.0", "abc", true},
		{"/x/terraform-provider-sandboxer", "", true},
		{"/x/terraform-provider-sandboxer -debug", "", true},
		{"/x/terraform-provider-sandboxer --debug", "", true},
		{"/x/terraform-provider-sandboxer list", "", false},
		{"/x/other", "abc", true},
		{"/x/sandboxer", "", false},
		{"/x/sandboxer list", "", false},
		{"/x/sandboxer list", "abc", false},
		{"/x/sandboxer -debug", "", false},
	}
	for _, c := range cases {
		got := plugin(strings.Fields(c.args), func(name string) string {
			if name == cookie {
				return c.cookie
			}
			return ""
		})
		if got != c.want {
			t.Errorf("%s with the cookie %q: plugin = %v, want %v", c.args, c.cookie, got, c.want)
		}
	}
}

func TestVersion(t *testing.T) {
	before := version
	t.Cleanup(func() { version = before })
	if version = "1.2.3"; programVersion() != "1.2.3" {
		t.Error(programVersion())
	}
	if version = ""; programVersion() == "" {
		t.Error("no version")
	}
}
