// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package schemajson

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/provider"
)

// The document has the form that tfplugindocs reads.
func TestDocument(t *testing.T) {
	server, err := providerserver.NewProtocol6WithError(provider.New(provider.Options{Version: "test"}))()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Fetch(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := Marshal("sandboxer", p)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Schemas map[string]struct {
			Resources map[string]struct {
				Block struct {
					Attributes map[string]struct {
						Type      json.RawMessage `json:"type"`
						WriteOnly bool            `json:"write_only"`
						Nested    *struct {
							Nesting    string                     `json:"nesting_mode"`
							Attributes map[string]json.RawMessage `json:"attributes"`
						} `json:"nested_type"`
					} `json:"attributes"`
				} `json:"block"`
			} `json:"resource_schemas"`
		} `json:"provider_schemas"`
	}
	if err := json.Unmarshal(encoded, &document); err != nil {
		t.Fatal(err)
	}
	resources := document.Schemas["sandboxer"].Resources
	sandbox, profile := resources["sandboxer_sandbox"].Block.Attributes, resources["sandboxer_profile"].Block.Attributes
	var kind []string
	if err := json.Unmarshal(sandbox["env"].Type, &kind); err != nil || !slices.Equal(kind, []string{"map", "string"}) {
		t.Errorf("the type of env is %s, %v", sandbox["env"].Type, err)
	}
	if !sandbox["secrets_wo"].WriteOnly || sandbox["env"].WriteOnly {
		t.Error("write-only is lost or invented")
	}
	if ttl := profile["ttl"].Nested; ttl == nil || ttl.Nesting != "single" || ttl.Attributes["max"] == nil {
		t.Errorf("ttl is %+v", ttl)
	}
	if files := profile["files"].Nested; files == nil || files.Nesting != "map" {
		t.Errorf("files is %+v", files)
	}
}

// What is not described is named, however deep it lies.
func TestUndescribed(t *testing.T) {
	p := Provider{Resources: map[string]*Schema{"x_y": {Block: &Block{
		Description: "A thing.",
		Attributes: map[string]*Attribute{
			"good": {Description: "Good."},
			"deep": {Description: "Deep.", Nested: &nestedType{Attributes: map[string]*Attribute{"bad": {}}}},
		},
	}}}}
	got := p.Undescribed()
	if len(got) != 1 || got[0] != "resource x_y.deep.bad has no description" {
		t.Errorf("Undescribed() = %q", got)
	}
}
