// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// typeName begins the name of every resource and data source.
const typeName = "sandboxer"

// Options are what a provider is made with. Only Version is needed.
type Options struct {
	Version  string
	Clock    clock.Clock                     // nil is the machine's
	Getenv   func(string) string             // nil is os.Getenv
	Builtins map[string]func() sdk.Extension // extensions within this program, by name
	Budgets  lifecycle.Budgets               // zero fields are the defaults
	Logger   hclog.Logger                    // gets the extensions' log lines; nil drops them
	// Load reads the configuration that lies under the provider block; nil is
	// [config.Load].
	Load func() (config.Config, error)
}

// Provider is the Terraform provider.
type Provider struct {
	opts Options

	mu       sync.Mutex
	sessions []*session
}

var _ provider.Provider = (*Provider)(nil)

// New returns a provider. It costs nothing and does nothing until Terraform
// calls it.
func New(opts Options) *Provider { return &Provider{opts: opts} }

// Metadata names the provider.
func (p *Provider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = typeName
	resp.Version = p.opts.Version
}

// Schema describes the provider block.
func (p *Provider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = providerSchema()
}

// Configure checks the provider block and keeps it. It makes no connection
// and does no I/O: the configuration is put to work by the first object that
// needs a backend.
func (p *Provider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	block, unknown, diags := decodeBlock(ctx, req.Config)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	s := newSession(p.opts, block, unknown)
	p.mu.Lock()
	p.sessions = append(p.sessions, s)
	p.mu.Unlock()
	resp.ResourceData = s
	resp.DataSourceData = s
}

// Resources lists the resources.
func (p *Provider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{newProfileResource, newSandboxResource, newSnapshotResource}
}

// DataSources lists the data sources.
func (p *Provider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{newSandboxDataSource, newSandboxesDataSource, newProfileDataSource, newBackendDataSource}
}

// Close waits until the calls that change something have ended, as long as
// the context allows, and ends what was started for them.
func (p *Provider) Close(ctx context.Context) error {
	p.mu.Lock()
	sessions := p.sessions
	p.sessions = nil
	p.mu.Unlock()
	var errs []error
	for _, s := range sessions {
		errs = append(errs, s.close(ctx))
	}
	return errors.Join(errs...)
}
