// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

// A Terraform of a few functions, on the provider's own protocol: it makes
// the proposed state as Terraform does, plans a replacement as Terraform
// does, and holds the provider to what Terraform holds it to. A life cycle
// takes milliseconds, so this is where behaviour is tested.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// object is a configuration or a value; unknown marks what is known only
// after apply.
type (
	object  = map[string]any
	list    = []any
	unknown struct{}
)

// world is what outlives a run of Terraform: time, the cloud, the disk.
type world struct {
	t            testing.TB
	clock        *clock.Fake
	cloud        *saasstub.Server
	dir          string
	capabilities sdk.Capabilities // replaced classes of the stub's document
	extensions   map[string]func() sdk.Extension
	env          map[string]string // of the process
	block        object            // the provider block
	budgets      lifecycle.Budgets
}

func newWorld(t testing.TB) *world {
	t.Helper()
	c := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return &world{
		t: t, clock: c, cloud: saasstub.NewServer(saasstub.ServerOptions{Clock: c}), dir: t.TempDir(),
		block: object{"backends": object{"cloud": object{"extension": "saas-stub"}}},
	}
}

// options are those of a provider in this world.
func (w *world) options() Options {
	builtins := map[string]func() sdk.Extension{saasstub.Name: func() sdk.Extension {
		return saasstub.New(saasstub.Options{Server: w.cloud, Capabilities: w.capabilities})
	}}
	maps.Copy(builtins, w.extensions)
	return Options{
		Version: "test", Clock: w.clock, Builtins: builtins, Budgets: w.budgets,
		Getenv: func(name string) string { return w.env[name] },
		Load:   func() (config.Config, error) { return config.Config{StateDir: w.dir}, nil },
	}
}

// run is one run of Terraform: one provider process.
type run struct {
	t      testing.TB
	ctx    context.Context
	server tfprotov6.ProviderServer
	schema *tfprotov6.GetProviderSchemaResponse
}

// terraform starts a run; the provider is configured with the world's block.
func (w *world) terraform() *run {
	w.t.Helper()
	r := w.start()
	kind := r.schema.Provider.ValueType()
	resp, err := r.server.ConfigureProvider(r.ctx, &tfprotov6.ConfigureProviderRequest{TerraformVersion: "1.11.4", Config: r.dynamic(kind, r.value(kind, w.block))})
	r.must(err)
	r.clean(resp.Diagnostics)
	return r
}

// start starts a run without configuring the provider.
func (w *world) start() *run {
	w.t.Helper()
	return w.startWith(New(w.options()))
}

func (w *world) startWith(served *Provider) *run {
	w.t.Helper()
	w.t.Cleanup(func() { _ = served.Close(context.Background()) })
	r := &run{t: w.t, ctx: context.Background(), server: served.Server()}
	var err error
	r.schema, err = r.server.GetProviderSchema(r.ctx, &tfprotov6.GetProviderSchemaRequest{})
	r.must(err)
	r.clean(r.schema.Diagnostics)
	return r
}

// state is an object that Terraform keeps.
type state struct {
	kind    string
	value   tftypes.Value
	private []byte
	tainted bool
}

// get returns an attribute as Go has it.
func (s *state) get(name string) any { return plainValue(attributeOf(s.value, name)) }

func (s *state) text(name string) string {
	text, _ := s.get(name).(string)
	return text
}

// plan is what Terraform would show.
type plan struct {
	kind     string
	action   string // "", create, update, replace, delete
	config   tftypes.Value
	prior    *state
	planned  tftypes.Value
	private  []byte
	warnings []*tfprotov6.Diagnostic
	errors   []*tfprotov6.Diagnostic
	replaces []string
}

func (p *plan) get(name string) any { return plainValue(attributeOf(p.planned, name)) }

// unknown reports whether an attribute is known after apply.
func (p *plan) unknown(name string) bool { return !attributeOf(p.planned, name).IsKnown() }

// refresh reads an object as Terraform does before a plan.
func (r *run) refresh(prior *state) *state {
	r.t.Helper()
	next, diags := r.tryRefresh(prior)
	r.clean(diags)
	return next
}

func (r *run) tryRefresh(prior *state) (*state, []*tfprotov6.Diagnostic) {
	r.t.Helper()
	kind := r.kind(prior.kind)
	resp, err := r.server.ReadResource(r.ctx, &tfprotov6.ReadResourceRequest{TypeName: prior.kind, CurrentState: r.dynamic(kind, prior.value), Private: prior.private})
	r.must(err)
	if len(errorsOf(resp.Diagnostics)) > 0 {
		return prior, resp.Diagnostics
	}
	value := r.undynamic(kind, resp.NewState)
	if value.IsNull() {
		return nil, resp.Diagnostics
	}
	return &state{kind: prior.kind, value: value, private: resp.Private, tainted: prior.tainted}, resp.Diagnostics
}

// plan plans one resource: validate, refresh, plan, and plan the replacement.
func (r *run) plan(kindName string, config object, prior *state) *plan {
	r.t.Helper()
	kind := r.kind(kindName)
	p := &plan{kind: kindName, config: r.value(kind, config)}
	valid, err := r.server.ValidateResourceConfig(r.ctx, &tfprotov6.ValidateResourceConfigRequest{
		TypeName: kindName, Config: r.dynamic(kind, p.config), ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true},
	})
	r.must(err)
	if p.add(valid.Diagnostics); len(p.errors) > 0 {
		return p
	}
	if prior != nil {
		var diags []*tfprotov6.Diagnostic
		prior, diags = r.tryRefresh(prior)
		if p.add(diags); len(p.errors) > 0 {
			return p
		}
	}
	p.prior = prior
	if prior != nil && prior.tainted {
		p.action = "replace"
		r.planOnce(p, nil)
		return p
	}
	replaces := r.planOnce(p, prior)
	switch {
	case len(p.errors) > 0:
	case prior == nil:
		p.action = "create"
	case len(replaces) > 0:
		p.action, p.replaces = "replace", replaces
		r.planOnce(p, nil)
	case !p.planned.Equal(prior.value):
		p.action = "update"
	}
	return p
}

// planOnce is one PlanResourceChange; it returns the paths that really force
// a replacement.
func (r *run) planOnce(p *plan, prior *state) []string {
	r.t.Helper()
	kind := r.kind(p.kind)
	priorValue, private := tftypes.NewValue(kind, nil), []byte(nil)
	if prior != nil {
		priorValue, private = prior.value, prior.private
	}
	resp, err := r.server.PlanResourceChange(r.ctx, &tfprotov6.PlanResourceChangeRequest{
		TypeName: p.kind, Config: r.dynamic(kind, p.config), PriorState: r.dynamic(kind, priorValue),
		ProposedNewState: r.dynamic(kind, r.proposed(p.kind, p.config, priorValue)), PriorPrivate: private,
	})
	r.must(err)
	if p.add(resp.Diagnostics); len(p.errors) > 0 {
		return nil
	}
	p.planned, p.private = r.undynamic(kind, resp.PlannedState), resp.PlannedPrivate
	r.assertPlanValid(p, priorValue)
	var replaces []string
	for _, at := range resp.RequiresReplace {
		name := fmt.Sprint(at.Steps()[0])
		name = strings.TrimSuffix(strings.TrimPrefix(name, "AttributeName(\""), "\")")
		if planned := attributeOf(p.planned, name); prior != nil && (!planned.IsFullyKnown() || !planned.Equal(attributeOf(priorValue, name))) {
			replaces = append(replaces, name)
		}
	}
	return replaces
}

// apply carries a plan out. The new state is nil when nothing is left.
func (r *run) apply(p *plan) (*state, []*tfprotov6.Diagnostic) {
	r.t.Helper()
	if len(p.errors) > 0 {
		r.t.Fatalf("a plan with errors is not applied: %s", show(p.errors))
	}
	if p.action == "" {
		return p.prior, nil
	}
	prior := p.prior
	if p.action == "replace" {
		if left, diags := r.destroy(prior); len(errorsOf(diags)) > 0 {
			return left, diags
		}
		prior = nil
	}
	kind := r.kind(p.kind)
	priorValue := tftypes.NewValue(kind, nil)
	if prior != nil {
		priorValue = prior.value
	}
	resp, err := r.server.ApplyResourceChange(r.ctx, &tfprotov6.ApplyResourceChangeRequest{
		TypeName: p.kind, Config: r.dynamic(kind, p.config), PriorState: r.dynamic(kind, priorValue), PlannedState: r.dynamic(kind, p.planned), PlannedPrivate: p.private,
	})
	r.must(err)
	value := r.undynamic(kind, resp.NewState)
	failed := len(errorsOf(resp.Diagnostics)) > 0
	if !failed {
		r.assertCompatible(p, value)
	}
	if value.IsNull() {
		return nil, resp.Diagnostics
	}
	return &state{kind: p.kind, value: value, private: resp.Private, tainted: failed && prior == nil}, resp.Diagnostics
}

// destroy plans and applies the end of an object.
func (r *run) destroy(prior *state) (*state, []*tfprotov6.Diagnostic) {
	r.t.Helper()
	kind := r.kind(prior.kind)
	null := r.dynamic(kind, tftypes.NewValue(kind, nil))
	planned, err := r.server.PlanResourceChange(r.ctx, &tfprotov6.PlanResourceChangeRequest{TypeName: prior.kind, Config: null, PriorState: r.dynamic(kind, prior.value), ProposedNewState: null})
	r.must(err)
	if len(errorsOf(planned.Diagnostics)) > 0 {
		return prior, planned.Diagnostics
	}
	resp, err := r.server.ApplyResourceChange(r.ctx, &tfprotov6.ApplyResourceChangeRequest{TypeName: prior.kind, Config: null, PriorState: r.dynamic(kind, prior.value), PlannedState: null})
	r.must(err)
	if value := r.undynamic(kind, resp.NewState); !value.IsNull() {
		return &state{kind: prior.kind, value: value, tainted: prior.tainted}, resp.Diagnostics
	}
	return nil, resp.Diagnostics
}

// importState imports and reads an object.
func (r *run) importState(kindName, id string) (*state, []*tfprotov6.Diagnostic) {
	r.t.Helper()
	resp, err := r.server.ImportResourceState(r.ctx, &tfprotov6.ImportResourceStateRequest{TypeName: kindName, ID: id})
	r.must(err)
	if len(errorsOf(resp.Diagnostics)) > 0 {
		return nil, resp.Diagnostics
	}
	imported := resp.ImportedResources[0]
	return r.tryRefresh(&state{kind: kindName, value: r.undynamic(r.kind(kindName), imported.State), private: imported.Private})
}

// data reads a data source.
func (r *run) data(name string, config object) (*state, []*tfprotov6.Diagnostic) {
	r.t.Helper()
	kind := r.schema.DataSourceSchemas[name].ValueType()
	given := r.dynamic(kind, r.value(kind, config))
	valid, err := r.server.ValidateDataResourceConfig(r.ctx, &tfprotov6.ValidateDataResourceConfigRequest{TypeName: name, Config: given})
	r.must(err)
	if len(errorsOf(valid.Diagnostics)) > 0 {
		return nil, valid.Diagnostics
	}
	resp, err := r.server.ReadDataSource(r.ctx, &tfprotov6.ReadDataSourceRequest{TypeName: name, Config: given})
	r.must(err)
	if len(errorsOf(resp.Diagnostics)) > 0 {
		return nil, resp.Diagnostics
	}
	return &state{kind: name, value: r.undynamic(kind, resp.State)}, resp.Diagnostics
}

// made plans and applies, expects no error, and expects the next plan to be
// empty.
func (r *run) made(kindName string, config object, prior *state) *state {
	r.t.Helper()
	next, diags := r.apply(r.planned(kindName, config, prior))
	r.clean(diags)
	if again := r.planned(kindName, config, next); again.action != "" {
		r.t.Fatalf("the second plan is not empty: %s of %v", again.action, differences(again.prior.value, again.planned))
	}
	return next
}

// planned plans and expects no error.
func (r *run) planned(kindName string, config object, prior *state) *plan {
	r.t.Helper()
	p := r.plan(kindName, config, prior)
	if len(p.errors) > 0 {
		r.t.Fatalf("plan: %s", show(p.errors))
	}
	return p
}

func (p *plan) add(diags []*tfprotov6.Diagnostic) {
	for _, d := range diags {
		if d.Severity == tfprotov6.DiagnosticSeverityError {
			p.errors = append(p.errors, d)
		} else {
			p.warnings = append(p.warnings, d)
		}
	}
}

func (r *run) kind(name string) tftypes.Type { return r.schema.ResourceSchemas[name].ValueType() }

func (r *run) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *run) clean(diags []*tfprotov6.Diagnostic) {
	r.t.Helper()
	if found := errorsOf(diags); len(found) > 0 {
		r.t.Fatal(show(found))
	}
}

func errorsOf(diags []*tfprotov6.Diagnostic) []*tfprotov6.Diagnostic {
	return slices.DeleteFunc(slices.Clone(diags), func(d *tfprotov6.Diagnostic) bool { return d.Severity != tfprotov6.DiagnosticSeverityError })
}

// show writes diagnostics as "attribute: summary: detail" lines.
func show(diags []*tfprotov6.Diagnostic) string {
	var b strings.Builder
	for _, d := range diags {
		fmt.Fprintf(&b, "%s: %s: %s\n", d.Attribute, d.Summary, d.Detail)
	}
	return b.String()
}
