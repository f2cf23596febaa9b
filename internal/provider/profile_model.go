// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// profileModel is sandboxer_profile. Nested values stay Terraform's, since
// any of them may be unknown at plan.
type profileModel struct {
	Name              types.String  `tfsdk:"name"`
	Description       types.String  `tfsdk:"description"`
	Image             types.String  `tfsdk:"image"`
	Build             types.Object  `tfsdk:"build"`
	Compose           types.Object  `tfsdk:"compose"`
	Machine           types.Object  `tfsdk:"machine"`
	Template          types.String  `tfsdk:"template"`
	Command           types.List    `tfsdk:"command"`
	Workdir           types.String  `tfsdk:"workdir"`
	User              types.String  `tfsdk:"user"`
	Env               types.Map     `tfsdk:"env"`
	Files             types.Map     `tfsdk:"files"`
	Setup             types.List    `tfsdk:"setup"`
	Ports             types.Map     `tfsdk:"ports"`
	Publish           types.String  `tfsdk:"publish"`
	Runtime           types.String  `tfsdk:"runtime"`
	Limits            types.Object  `tfsdk:"limits"`
	Network           types.Object  `tfsdk:"network"`
	Ready             types.Object  `tfsdk:"ready"`
	TTL               types.Object  `tfsdk:"ttl"`
	OnExpiry          types.String  `tfsdk:"on_expiry"`
	IdleTimeout       types.String  `tfsdk:"idle_timeout"`
	ExpirySnapshotTTL types.String  `tfsdk:"expiry_snapshot_ttl"`
	PausedTTL         types.String  `tfsdk:"paused_ttl"`
	MaxCostPerHour    types.Float64 `tfsdk:"max_cost_per_hour"`
	MaxCommitted      types.Float64 `tfsdk:"max_committed"`
	Requires          types.Map     `tfsdk:"requires"`
	Labels            types.Map     `tfsdk:"labels"`

	Backends types.List     `tfsdk:"backends"`
	Prepare  types.Bool     `tfsdk:"prepare"`
	Timeouts timeouts.Value `tfsdk:"timeouts"`

	ID       types.String `tfsdk:"id"`
	Revision types.String `tfsdk:"revision"`
	Document types.String `tfsdk:"document"`
}

// The nested objects, for when they are known.
type (
	buildModel struct {
		Context    string            `tfsdk:"context"`
		Dockerfile *string           `tfsdk:"dockerfile"`
		Args       map[string]string `tfsdk:"args"`
		Target     *string           `tfsdk:"target"`
	}
	composeModel struct {
		Files    []string `tfsdk:"files"`
		Profiles []string `tfsdk:"profiles"`
		Services []string `tfsdk:"services"`
	}
	machineModel struct {
		Image  string  `tfsdk:"image"`
		Format *string `tfsdk:"format"`
	}
	fileModel struct {
		Content string  `tfsdk:"content"`
		Mode    *string `tfsdk:"mode"`
	}
	limitsModel struct {
		CPUs   *float64 `tfsdk:"cpus"`
		Memory *string  `tfsdk:"memory"`
		Pids   *int64   `tfsdk:"pids"`
		Disk   *string  `tfsdk:"disk"`
		Wall   *string  `tfsdk:"wall"`
	}
	networkModel struct {
		Egress *string  `tfsdk:"egress"`
		Allow  []string `tfsdk:"allow"`
	}
	httpModel struct {
		Port int64   `tfsdk:"port"`
		Path *string `tfsdk:"path"`
	}
	tcpModel struct {
		Port int64 `tfsdk:"port"`
	}
	readyModel struct {
		HTTP    *httpModel `tfsdk:"http"`
		TCP     *tcpModel  `tfsdk:"tcp"`
		Exec    []string   `tfsdk:"exec"`
		Log     *string    `tfsdk:"log"`
		Timeout *string    `tfsdk:"timeout"`
	}
	ttlModel struct {
		Default *string `tfsdk:"default"`
		Max     *string `tfsdk:"max"`
		Exempt  *string `tfsdk:"exempt"`
	}
)

// profile returns the profile that the arguments mean. They must be wholly
// known.
func (m profileModel) profile(ctx context.Context) (sdk.Profile, diag.Diagnostics) {
	var diags diag.Diagnostics
	p := sdk.Profile{
		Name: m.Name.ValueString(), Description: m.Description.ValueString(), Image: m.Image.ValueString(), Template: m.Template.ValueString(),
		Workdir: m.Workdir.ValueString(), User: m.User.ValueString(), Publish: m.Publish.ValueString(), Runtime: m.Runtime.ValueString(),
		OnExpiry: sdk.OnExpiry(m.OnExpiry.ValueString()), IdleTimeout: m.IdleTimeout.ValueString(),
		ExpirySnapshotTTL: m.ExpirySnapshotTTL.ValueString(), PausedTTL: m.PausedTTL.ValueString(),
		MaxCostPerHour: m.MaxCostPerHour.ValueFloat64(), MaxCommitted: m.MaxCommitted.ValueFloat64(),
	}
	elements := func(value interface {
		ElementsAs(context.Context, any, bool) diag.Diagnostics
	}, into any) {
		diags.Append(value.ElementsAs(ctx, into, false)...)
	}
	elements(m.Command, &p.Command)
	elements(m.Setup, &p.Setup)
	elements(m.Env, &p.Env)
	elements(m.Labels, &p.Labels)
	ports := map[string]int64{}
	elements(m.Ports, &ports)
	for name, port := range ports {
		if p.Ports == nil {
			p.Ports = map[string]int{}
		}
		p.Ports[name] = int(port)
	}
	requires := map[string]string{}
	elements(m.Requires, &requires)
	for feature, class := range requires {
		if p.Requires == nil {
			p.Requires = map[sdk.Feature]sdk.Class{}
		}
		p.Requires[sdk.Feature(feature)] = sdk.Class(class)
	}
	files := map[string]fileModel{}
	elements(m.Files, &files)
	for name, file := range files {
		if p.Files == nil {
			p.Files = map[string]sdk.File{}
		}
		p.Files[name] = sdk.File{Content: file.Content, Mode: deref(file.Mode)}
	}
	diags.Append(m.nested(ctx, &p)...)
	return p, diags
}

// nested fills the parts of a profile that are objects.
func (m profileModel) nested(ctx context.Context, p *sdk.Profile) diag.Diagnostics {
	var diags diag.Diagnostics
	as := func(object types.Object, into any) bool {
		if object.IsNull() {
			return false
		}
		found := object.As(ctx, into, basetypes.ObjectAsOptions{})
		diags.Append(found...)
		return !found.HasError()
	}
	var build buildModel
	if as(m.Build, &build) {
		p.Build = &sdk.BuildSource{Context: build.Context, Dockerfile: deref(build.Dockerfile), Args: build.Args, Target: deref(build.Target)}
	}
	var compose composeModel
	if as(m.Compose, &compose) {
		p.Compose = &sdk.ComposeSpec{Files: compose.Files, Profiles: compose.Profiles, Services: compose.Services}
	}
	var machine machineModel
	if as(m.Machine, &machine) {
		p.Machine = &sdk.MachineSpec{Image: machine.Image, Format: deref(machine.Format)}
	}
	var limits limitsModel
	if as(m.Limits, &limits) {
		p.Limits = &sdk.Limits{CPUs: deref(limits.CPUs), Memory: deref(limits.Memory), Pids: deref(limits.Pids), Disk: deref(limits.Disk), Wall: deref(limits.Wall)}
	}
	var network networkModel
	if as(m.Network, &network) {
		p.Network = &sdk.Network{Egress: deref(network.Egress), Allow: network.Allow}
	}
	var ready readyModel
	if as(m.Ready, &ready) {
		p.Ready = &sdk.Ready{Exec: ready.Exec, Log: deref(ready.Log), Timeout: deref(ready.Timeout)}
		if ready.HTTP != nil {
			p.Ready.HTTP = &sdk.HTTPCheck{Port: int(ready.HTTP.Port), Path: deref(ready.HTTP.Path)}
		}
		if ready.TCP != nil {
			p.Ready.TCP = &sdk.TCPCheck{Port: int(ready.TCP.Port)}
		}
	}
	var ttl ttlModel
	if as(m.TTL, &ttl) {
		p.TTL = &sdk.TTL{Default: deref(ttl.Default), Max: deref(ttl.Max), Exempt: deref(ttl.Exempt)}
	}
	return diags
}

// flatten sets the computed attributes of a profile.
func (m *profileModel) flatten(p sdk.Profile) {
	m.ID = types.StringValue(sandbox.ProfileID(p))
	m.Revision = types.StringValue(sandbox.Revision(p))
	m.Document = types.StringValue(sandbox.Document(p))
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// profileMaps are the attributes of a profile whose keys are free, and may
// hold dots and slashes.
var profileMaps = map[string]bool{"env": true, "files": true, "ports": true, "requires": true, "labels": true}

// profileBlame finds the attribute that a profile's path stands for:
// "limits.memory", "env.NAME", "setup[1]", "files./etc/x.mode".
//
// It stops at the first level below the root. Terraform finds the line of an
// attribute, or of its key or index, and no deeper: with "limits.memory" it
// shows the first line of the resource instead (seen with 1.11.4). The text
// of the diagnostic has the whole path.
func profileBlame(at string) (path.Path, bool) {
	head, rest := cutStep(at)
	if head == "" {
		return path.Empty(), false
	}
	found := path.Root(head)
	if profileMaps[head] && len(rest) > 1 && rest[0] == '.' {
		key := rest[1:]
		if head == "files" {
			key = strings.TrimSuffix(key, ".mode")
		}
		return found.AtMapKey(key), true
	}
	if index, _, ok := cutIndex(rest); ok {
		return found.AtListIndex(index), true
	}
	return found, true
}

// cutStep cuts a path before its first dot or bracket.
func cutStep(at string) (head, rest string) {
	if i := strings.IndexAny(at, ".["); i >= 0 {
		return at[:i], at[i:]
	}
	return at, ""
}

// cutIndex cuts "[n]" off the front of a path.
func cutIndex(at string) (index int, rest string, ok bool) {
	if !strings.HasPrefix(at, "[") {
		return 0, at, false
	}
	digits, rest, found := strings.Cut(at[1:], "]")
	if !found || digits == "" || len(digits) > 6 {
		return 0, at, false
	}
	for _, r := range digits {
		if r < '0' || r > '9' {
			return 0, at, false
		}
		index = index*10 + int(r-'0')
	}
	return index, rest, true
}
