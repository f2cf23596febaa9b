// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// fill sets the arguments from a profile: the reverse of
// [profileModel.profile], for import. What the profile leaves out is null.
func (m *profileModel) fill(ctx context.Context, p sdk.Profile) diag.Diagnostics {
	var diags diag.Diagnostics
	m.Name, m.Description, m.Image, m.Template = types.StringValue(p.Name), textValue(p.Description), textValue(p.Image), textValue(p.Template)
	m.Workdir, m.User, m.Publish, m.Runtime = textValue(p.Workdir), textValue(p.User), textValue(p.Publish), textValue(p.Runtime)
	m.OnExpiry = textValue(string(p.OnExpiry))
	m.MaxCostPerHour, m.MaxCommitted = moneyValue(p.MaxCostPerHour), moneyValue(p.MaxCommitted)
	m.IdleTimeout, m.ExpirySnapshotTTL, m.PausedTTL = textValue(p.IdleTimeout), textValue(p.ExpirySnapshotTTL), textValue(p.PausedTTL)
	kinds := profileArguments()
	list := func(name string, set bool, from any) types.List {
		kind, _ := kinds[name].GetType().(attr.TypeWithElementType)
		if !set {
			return types.ListNull(kind.ElementType())
		}
		value, found := types.ListValueFrom(ctx, kind.ElementType(), from)
		diags.Append(found...)
		return value
	}
	dict := func(name string, set bool, from any) types.Map {
		kind, _ := kinds[name].GetType().(attr.TypeWithElementType)
		if !set {
			return types.MapNull(kind.ElementType())
		}
		value, found := types.MapValueFrom(ctx, kind.ElementType(), from)
		diags.Append(found...)
		return value
	}
	object := func(name string, set bool, from func() any) types.Object {
		kind, _ := kinds[name].GetType().(attr.TypeWithAttributeTypes)
		if !set {
			return types.ObjectNull(kind.AttributeTypes())
		}
		value, found := types.ObjectValueFrom(ctx, kind.AttributeTypes(), from())
		diags.Append(found...)
		return value
	}
	m.Command = list("command", p.Command != nil, p.Command)
	m.Setup = list("setup", p.Setup != nil, p.Setup)
	m.Env = dict("env", p.Env != nil, p.Env)
	m.Labels = dict("labels", p.Labels != nil, p.Labels)
	m.Ports = dict("ports", p.Ports != nil, ints(p.Ports))
	m.Requires = dict("requires", p.Requires != nil, texts(p.Requires))
	files := make(map[string]fileModel, len(p.Files))
	for name, file := range p.Files {
		files[name] = fileModel{Content: file.Content, Mode: ref(file.Mode)}
	}
	m.Files = dict("files", p.Files != nil, files)
	m.Build = object("build", p.Build != nil, func() any {
		return buildModel{Context: p.Build.Context, Dockerfile: ref(p.Build.Dockerfile), Args: p.Build.Args, Target: ref(p.Build.Target)}
	})
	m.Compose = object("compose", p.Compose != nil, func() any {
		return composeModel{Files: p.Compose.Files, Profiles: p.Compose.Profiles, Services: p.Compose.Services}
	})
	m.Machine = object("machine", p.Machine != nil, func() any {
		return machineModel{Image: p.Machine.Image, Format: ref(p.Machine.Format)}
	})
	m.Limits = object("limits", p.Limits != nil, func() any {
		return limitsModel{CPUs: ref(p.Limits.CPUs), Memory: ref(p.Limits.Memory), Pids: ref(p.Limits.Pids), Disk: ref(p.Limits.Disk), Wall: ref(p.Limits.Wall)}
	})
	m.Network = object("network", p.Network != nil, func() any {
		return networkModel{Egress: ref(p.Network.Egress), Allow: p.Network.Allow}
	})
	m.Ready = object("ready", p.Ready != nil, func() any {
		ready := readyModel{Exec: p.Ready.Exec, Log: ref(p.Ready.Log), Timeout: ref(p.Ready.Timeout)}
		if p.Ready.HTTP != nil {
			ready.HTTP = &httpModel{Port: int64(p.Ready.HTTP.Port), Path: ref(p.Ready.HTTP.Path)}
		}
		if p.Ready.TCP != nil {
			ready.TCP = &tcpModel{Port: int64(p.Ready.TCP.Port)}
		}
		return ready
	})
	m.TTL = object("ttl", p.TTL != nil, func() any {
		return ttlModel{Default: ref(p.TTL.Default), Max: ref(p.TTL.Max), Exempt: ref(p.TTL.Exempt)}
	})
	return diags
}

// ref returns nil for what a profile leaves out.
func ref[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func ints(from map[string]int) map[string]int64 {
	into := make(map[string]int64, len(from))
	for key, value := range from {
		into[key] = int64(value)
	}
	return into
}

func texts(from map[sdk.Feature]sdk.Class) map[string]string {
	into := make(map[string]string, len(from))
	for key, value := range from {
		into[string(key)] = string(value)
	}
	return into
}
