// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

// refresher answers the read of a sandbox that is as the state says with that
// very state. A refresh is mostly that, and the framework needs some twenty
// times as long for it as all the rest (BenchmarkRefresh), since it walks the
// schema for each attribute. Whatever else a read finds is the framework's and
// [sandboxResource.Read]'s to answer.
type refresher struct {
	framework
	provider *Provider
}

// framework is everything that the framework's server answers. The plugin
// library finds out by assertion what a server can do.
type framework interface {
	tfprotov6.ProviderServer
	tfprotov6.ListResourceServer
	tfprotov6.ActionServer
	tfprotov6.StateStoreServer
}

// Server returns the provider as Terraform's plugin protocol has it.
func (p *Provider) Server() tfprotov6.ProviderServer {
	server := providerserver.NewProtocol6(p)()
	if whole, ok := server.(framework); ok {
		return &refresher{framework: whole, provider: p}
	}
	return server
}

// ReadResource reads one resource.
func (r *refresher) ReadResource(ctx context.Context, req *tfprotov6.ReadResourceRequest) (*tfprotov6.ReadResourceResponse, error) {
	if req.TypeName == typeName+"_sandbox" && r.unchanged(ctx, req.CurrentState) {
		return &tfprotov6.ReadResourceResponse{NewState: req.CurrentState, Private: req.Private, NewIdentity: req.CurrentIdentity}, nil
	}
	return r.framework.ReadResource(ctx, req)
}

// unchanged reports whether a sandbox is as its state says. It is false
// whenever that can't be told.
func (r *refresher) unchanged(ctx context.Context, current *tfprotov6.DynamicValue) bool {
	manager := r.manager()
	if manager == nil || current == nil {
		return false
	}
	var model sandboxModel
	if err := sandboxFields().decode(ctx, current, &model); err != nil || model.Status.IsNull() {
		return false
	}
	got, err := manager.Get(ctx, model.ID.ValueString(), model.getOptions())
	if err != nil {
		return false
	}
	before := model
	model.flatten(got)
	model.settle(got)
	return sandboxFields().equal(&before, &model)
}

// manager returns the verbs, nil where they can't be had without telling.
func (r *refresher) manager() *lifecycle.Manager {
	s := r.provider.session()
	if s == nil || s.deferred() {
		return nil
	}
	runtime, err := s.open()
	if err != nil {
		return nil
	}
	return runtime.Manager
}

// session returns the configured provider, nil before that.
func (p *Provider) session() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sessions) == 0 {
		return nil
	}
	return p.sessions[len(p.sessions)-1]
}

// fields are the attributes of a model with the places of their values in it.
type fields struct {
	object tftypes.Type
	all    []field
}

type field struct {
	name  string
	kind  attr.Type
	index []int
}

var sandboxFields = sync.OnceValue(func() fields {
	ctx := context.Background()
	schema := sandboxSchema(ctx)
	found := fields{object: schema.Type().TerraformType(ctx)}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[sandboxModel]()) {
		if name := f.Tag.Get("tfsdk"); name != "" {
			found.all = append(found.all, field{name: name, kind: schema.Attributes[name].GetType(), index: f.Index})
		}
	}
	return found
})

// decode fills a model from a state.
func (f fields) decode(ctx context.Context, state *tfprotov6.DynamicValue, into *sandboxModel) error {
	object, err := state.Unmarshal(f.object)
	if err != nil {
		return fmt.Errorf("decode the state: %w", err)
	}
	var values map[string]tftypes.Value
	if err := object.As(&values); err != nil {
		return fmt.Errorf("decode the state: %w", err)
	}
	model := reflect.ValueOf(into).Elem()
	for _, field := range f.all {
		value, err := field.kind.ValueFromTerraform(ctx, values[field.name])
		if err != nil {
			return fmt.Errorf("decode %s of the state: %w", field.name, err)
		}
		model.FieldByIndex(field.index).Set(reflect.ValueOf(value))
	}
	return nil
}

// equal compares two models, attribute by attribute.
func (f fields) equal(a, b *sandboxModel) bool {
	left, right := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for _, field := range f.all {
		l, leftOK := left.FieldByIndex(field.index).Interface().(attr.Value)
		r, rightOK := right.FieldByIndex(field.index).Interface().(attr.Value)
		if !leftOK || !rightOK || !l.Equal(r) {
			return false
		}
	}
	return true
}
