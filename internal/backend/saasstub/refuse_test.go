// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"errors"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// What the document calls unsupported is refused at its attribute, and what
// an override claims is not.
func TestWhatIsUnsupportedIsRefused(t *testing.T) {
	for name, asks := range map[string]struct {
		path    string
		feature sdk.Feature
		change  func(o *sdk.CreateOptions)
	}{
		"cpus":       {"limits.cpus", sdk.FeatureCPULimit, func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{CPUs: 1} }},
		"memory":     {"limits.memory", sdk.FeatureMemoryLimit, func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Memory: "1GiB"} }},
		"pids":       {"limits.pids", sdk.FeaturePidsLimit, func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Pids: 9} }},
		"disk":       {"limits.disk", sdk.FeatureDiskLimit, func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Disk: "1GiB"} }},
		"open":       {"network.egress", sdk.FeatureEgressOpen, func(o *sdk.CreateOptions) { o.Profile.Network = &sdk.Network{Egress: sdk.EgressOpen} }},
		"a name":     {"network.allow[0]", sdk.FeatureEgressDomain, allowing("*.example:443")},
		"a block":    {"network.allow[0]", sdk.FeatureEgressCIDR, allowing("192.0.2.0/24:443")},
		"an address": {"network.allow[0]", sdk.FeatureEgressCIDR, allowing("[2001:db8::1]:443")},
		"image":      {"image", sdk.FeatureImagePull, func(o *sdk.CreateOptions) { o.Profile.Image = "alpine:3" }},
		"image file": {"image", sdk.FeatureImageFile, func(o *sdk.CreateOptions) { o.Profile.Image = "./image.tar" }},
		"build":      {"build", sdk.FeatureImageBuild, func(o *sdk.CreateOptions) { o.Profile.Build = &sdk.BuildSource{Context: "."} }},
		"compose":    {"compose", sdk.FeatureCompose, func(o *sdk.CreateOptions) { o.Profile.Compose = &sdk.ComposeSpec{Files: []string{"c.yaml"}} }},
		"machine":    {"machine", sdk.FeatureMachine, func(o *sdk.CreateOptions) { o.Profile.Machine = &sdk.MachineSpec{Image: "vm.qcow2"} }},
		"template":   {"template", sdk.FeatureTemplate, func(o *sdk.CreateOptions) { o.Profile.Template = "base" }},
		"runtime":    {"runtime", sdk.FeatureRuntime, func(o *sdk.CreateOptions) { o.Profile.Runtime = "runsc" }},
		"ports":      {"ports", sdk.FeaturePorts, func(o *sdk.CreateOptions) { o.Profile.Ports = map[string]int{"web": 8080} }},
		"host root":  {"image", sdk.FeatureHostRoot, nil},
		"no network": {"network.egress", sdk.FeatureEgressNone, nil},
		"deny":       {"network.egress", sdk.FeatureEgressDeny, allowing()},
		"secrets":    {"secrets", sdk.FeatureSecretFiles, func(o *sdk.CreateOptions) { o.Secrets = map[string]sdk.Secret{"A": "b"} }},
		"snapshot":   {"on_expiry", sdk.FeatureExpirySnapshot, func(o *sdk.CreateOptions) { o.OnExpiry = sdk.OnExpirySnapshot }},
		"pause":      {"on_expiry", sdk.FeatureExpiryPause, func(o *sdk.CreateOptions) { o.OnExpiry = sdk.OnExpiryPause }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			for _, class := range []sdk.Class{sdk.ClassUnsupported, sdk.ClassBestEffort} {
				e := New(Options{Server: c.Server, Capabilities: sdk.Capabilities{asks.feature: {Class: class, Reason: "for a test"}}})
				options := creation(1)
				if asks.change != nil {
					asks.change(&options)
				}
				var said *sdk.Error
				_, err := e.Create(t.Context(), options)
				switch {
				case class != sdk.ClassUnsupported:
					if err != nil {
						t.Errorf("claimed: %v", err)
					}
				case !errors.Is(err, sdk.ErrUnsupported) || !errors.As(err, &said) || said.Path != asks.path || len(c.Boxes()) != 0:
					t.Errorf("%v, and %d boxes", err, len(c.Boxes()))
				}
			}
		})
	}
	for feature, guarantee := range New(Options{}).described.Capabilities {
		if !guarantee.Class.Valid() || guarantee.Reason == "" {
			t.Errorf("%s: %+v", feature, guarantee)
		}
	}
}

func allowing(entries ...string) func(o *sdk.CreateOptions) {
	return func(o *sdk.CreateOptions) {
		o.Profile.Network = &sdk.Network{Egress: sdk.EgressDeny, Allow: entries}
	}
}

// The vendor keeps limits.wall: neither a create nor an extend gets past it.
func TestTheWallIsTheMaximum(t *testing.T) {
	c := newCloud(t)
	for n, wall := range []string{"90m", "30m"} {
		options := creation(n)
		options.Profile.Limits = &sdk.Limits{Wall: wall}
		made, err := c.Create(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		life, _ := time.ParseDuration(wall)
		latest := start.Add(life)
		if lease := made.Sandbox.Lease; !lease.MaxExpiresAt.Equal(latest) || lease.ExpiresAt.After(latest) {
			t.Errorf("%s: %+v", wall, lease)
		}
		target := sdk.Target{ID: options.ID, Fleet: "ci"}
		extended, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: start.Add(2 * time.Hour)})
		if err != nil || !extended.Lease.ExpiresAt.Equal(latest) {
			t.Errorf("%s: extended to %+v, %v", wall, extended.Lease, err)
		}
		if got := c.Boxes()[n].StopAt; !got.Equal(latest) {
			t.Errorf("%s: the vendor stops it at %s", wall, got)
		}
	}
	for _, wall := range []string{"long", "0s", "-1h"} {
		options := creation(9)
		options.Profile.Limits = &sdk.Limits{Wall: wall}
		var said *sdk.Error
		if _, err := c.Create(t.Context(), options); !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &said) || said.Path != "limits.wall" {
			t.Errorf("%s: %v", wall, err)
		}
	}
}
