// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package schemajson writes a provider's schemas in the form of `terraform
// providers schema -json`, asked of the provider server in process. The
// documentation thus depends neither on an installed Terraform nor on what
// its version exports: 1.11 leaves out identities, actions and lists.
package schemajson

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// The parts of the document; the names are Terraform's.
type (
	document struct {
		FormatVersion string              `json:"format_version"`
		Schemas       map[string]Provider `json:"provider_schemas"`
	}

	// Provider is the schemas of one provider.
	Provider struct {
		Provider           *Schema              `json:"provider,omitempty"`
		Resources          map[string]*Schema   `json:"resource_schemas,omitempty"`
		DataSources        map[string]*Schema   `json:"data_source_schemas,omitempty"`
		EphemeralResources map[string]*Schema   `json:"ephemeral_resource_schemas,omitempty"`
		Actions            map[string]*Schema   `json:"action_schemas,omitempty"`
		Lists              map[string]*Schema   `json:"list_resource_schemas,omitempty"`
		Functions          map[string]*function `json:"functions,omitempty"`
		Identities         map[string]*identity `json:"resource_identity_schemas,omitempty"`
	}

	// Schema is one object's schema.
	Schema struct {
		Version int64  `json:"version"`
		Block   *Block `json:"block"`
	}

	// Block is a block of attributes and further blocks.
	Block struct {
		Attributes      map[string]*Attribute   `json:"attributes,omitempty"`
		Blocks          map[string]*nestedBlock `json:"block_types,omitempty"`
		Description     string                  `json:"description,omitempty"`
		DescriptionKind string                  `json:"description_kind,omitempty"`
		Deprecated      bool                    `json:"deprecated,omitempty"`
	}

	nestedBlock struct {
		Nesting  string `json:"nesting_mode"`
		Block    *Block `json:"block"`
		MinItems int64  `json:"min_items,omitempty"`
		MaxItems int64  `json:"max_items,omitempty"`
	}

	// Attribute is one attribute.
	Attribute struct {
		Type            json.RawMessage `json:"type,omitempty"`
		Nested          *nestedType     `json:"nested_type,omitempty"`
		Description     string          `json:"description,omitempty"`
		DescriptionKind string          `json:"description_kind,omitempty"`
		Deprecated      bool            `json:"deprecated,omitempty"`
		Required        bool            `json:"required,omitempty"`
		Optional        bool            `json:"optional,omitempty"`
		Computed        bool            `json:"computed,omitempty"`
		Sensitive       bool            `json:"sensitive,omitempty"`
		WriteOnly       bool            `json:"write_only,omitempty"`
	}

	nestedType struct {
		Attributes map[string]*Attribute `json:"attributes,omitempty"`
		Nesting    string                `json:"nesting_mode"`
	}

	function struct {
		Description string          `json:"description,omitempty"`
		Summary     string          `json:"summary,omitempty"`
		Deprecation string          `json:"deprecation_message,omitempty"`
		Return      json.RawMessage `json:"return_type"`
		Parameters  []*parameter    `json:"parameters,omitempty"`
		Variadic    *parameter      `json:"variadic_parameter,omitempty"`
	}

	parameter struct {
		Name        string          `json:"name,omitempty"`
		Description string          `json:"description,omitempty"`
		Nullable    bool            `json:"is_nullable,omitempty"`
		Type        json.RawMessage `json:"type"`
	}

	identity struct {
		Version    int64                         `json:"version"`
		Attributes map[string]*identityAttribute `json:"attributes,omitempty"`
	}

	identityAttribute struct {
		Type        json.RawMessage `json:"type"`
		Description string          `json:"description,omitempty"`
		Required    bool            `json:"required_for_import,omitempty"`
		Optional    bool            `json:"optional_for_import,omitempty"`
	}
)

// Fetch asks a provider server for its schemas.
func Fetch(ctx context.Context, server tfprotov6.ProviderServer) (Provider, error) {
	var p Provider
	got, err := server.GetProviderSchema(ctx, &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		return p, err
	}
	if err := firstError(got.Diagnostics); err != nil {
		return p, err
	}
	identities, err := server.GetResourceIdentitySchemas(ctx, &tfprotov6.GetResourceIdentitySchemasRequest{})
	if err != nil {
		return p, err
	}
	if err := firstError(identities.Diagnostics); err != nil {
		return p, err
	}
	c := &converter{}
	p = Provider{
		Provider:           c.schema(got.Provider),
		Resources:          convert(got.ResourceSchemas, c.schema),
		DataSources:        convert(got.DataSourceSchemas, c.schema),
		EphemeralResources: convert(got.EphemeralResourceSchemas, c.schema),
		Lists:              convert(got.ListResourceSchemas, c.schema),
		Functions:          convert(got.Functions, c.function),
		Identities:         convert(identities.IdentitySchemas, c.identity),
		Actions: convert(got.ActionSchemas, func(a *tfprotov6.ActionSchema) *Schema {
			return c.schema(a.Schema)
		}),
	}
	return p, c.err
}

// Marshal returns the document for one provider under a short name, which is
// the only key under which tfplugindocs finds a provider of another namespace.
func Marshal(name string, p Provider) ([]byte, error) {
	return json.MarshalIndent(document{FormatVersion: "1.0", Schemas: map[string]Provider{name: p}}, "", "  ")
}

func firstError(diagnostics []*tfprotov6.Diagnostic) error {
	for _, d := range diagnostics {
		if d.Severity == tfprotov6.DiagnosticSeverityError {
			return fmt.Errorf("%s: %s", d.Summary, d.Detail)
		}
	}
	return nil
}

func convert[From, To any](all map[string]*From, one func(*From) *To) map[string]*To {
	if len(all) == 0 {
		return nil
	}
	converted := make(map[string]*To, len(all))
	for name, from := range all {
		converted[name] = one(from)
	}
	return converted
}

// converter remembers the first error, so that the conversion reads straight.
type converter struct{ err error }

func (c *converter) typ(t tftypes.Type) json.RawMessage {
	if t == nil {
		return nil
	}
	// The method is deprecated for providers, who should not need it; it is
	// the encoding that Terraform itself uses on the wire and in this document.
	encoded, err := t.MarshalJSON() //nolint:staticcheck // the one encoder of the wire's types
	c.err = errors.Join(c.err, err)
	return encoded
}

func (c *converter) schema(s *tfprotov6.Schema) *Schema {
	if s == nil {
		return nil
	}
	return &Schema{Version: s.Version, Block: c.block(s.Block)}
}

func (c *converter) block(b *tfprotov6.SchemaBlock) *Block {
	if b == nil {
		return &Block{}
	}
	converted := &Block{
		Attributes:      c.attributes(b.Attributes),
		Description:     b.Description,
		DescriptionKind: kind(b.DescriptionKind),
		Deprecated:      b.Deprecated,
	}
	for _, nested := range b.BlockTypes {
		if converted.Blocks == nil {
			converted.Blocks = map[string]*nestedBlock{}
		}
		converted.Blocks[nested.TypeName] = &nestedBlock{
			Nesting:  strings.ToLower(nested.Nesting.String()),
			Block:    c.block(nested.Block),
			MinItems: nested.MinItems,
			MaxItems: nested.MaxItems,
		}
	}
	return converted
}

func (c *converter) attributes(all []*tfprotov6.SchemaAttribute) map[string]*Attribute {
	if len(all) == 0 {
		return nil
	}
	converted := make(map[string]*Attribute, len(all))
	for _, a := range all {
		attribute := &Attribute{
			Description:     a.Description,
			DescriptionKind: kind(a.DescriptionKind),
			Deprecated:      a.Deprecated,
			Required:        a.Required,
			Optional:        a.Optional,
			Computed:        a.Computed,
			Sensitive:       a.Sensitive,
			WriteOnly:       a.WriteOnly,
		}
		if a.NestedType != nil {
			attribute.Nested = &nestedType{
				Attributes: c.attributes(a.NestedType.Attributes),
				Nesting:    strings.ToLower(a.NestedType.Nesting.String()),
			}
		} else {
			attribute.Type = c.typ(a.Type)
		}
		converted[a.Name] = attribute
	}
	return converted
}

func (c *converter) function(f *tfprotov6.Function) *function {
	converted := &function{
		Description: f.Description,
		Summary:     f.Summary,
		Deprecation: f.DeprecationMessage,
		Return:      c.typ(f.Return.Type),
	}
	for _, p := range f.Parameters {
		converted.Parameters = append(converted.Parameters, c.parameter(p))
	}
	if f.VariadicParameter != nil {
		converted.Variadic = c.parameter(f.VariadicParameter)
	}
	return converted
}

func (c *converter) parameter(p *tfprotov6.FunctionParameter) *parameter {
	return &parameter{Name: p.Name, Description: p.Description, Nullable: p.AllowNullValue, Type: c.typ(p.Type)}
}

func (c *converter) identity(i *tfprotov6.ResourceIdentitySchema) *identity {
	converted := &identity{Version: i.Version, Attributes: map[string]*identityAttribute{}}
	for _, a := range i.IdentityAttributes {
		converted.Attributes[a.Name] = &identityAttribute{
			Type:        c.typ(a.Type),
			Description: a.Description,
			Required:    a.RequiredForImport,
			Optional:    a.OptionalForImport,
		}
	}
	return converted
}

func kind(k tfprotov6.StringKind) string {
	if k == tfprotov6.StringKindMarkdown {
		return "markdown"
	}
	return "plain"
}
