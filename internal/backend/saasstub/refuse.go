// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// What a create asks for, held against the document. sandboxer does so at
// plan; an extension does so again, since what it makes must never be less
// than what it was asked for.

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// need is a feature that an attribute asks for.
type need struct {
	asked   bool
	path    string
	feature sdk.Feature
}

// refuse returns the first thing that is asked for and unsupported.
func (e *Extension) refuse(opts sdk.CreateOptions) error {
	p := opts.Profile
	var limits sdk.Limits
	if p.Limits != nil {
		limits = *p.Limits
	}
	file := path.IsAbs(p.Image) || strings.HasPrefix(p.Image, "./") || strings.HasPrefix(p.Image, "../")
	needs := []need{
		{file, "image", sdk.FeatureImageFile},
		{p.Image != "" && !file, "image", sdk.FeatureImagePull},
		{p.Build != nil, "build", sdk.FeatureImageBuild},
		{p.Compose != nil, "compose", sdk.FeatureCompose},
		{p.Machine != nil, "machine", sdk.FeatureMachine},
		{p.Template != "", "template", sdk.FeatureTemplate},
		{p.Image == "" && p.Build == nil && p.Compose == nil && p.Machine == nil && p.Template == "", "image", sdk.FeatureHostRoot},
		{p.Runtime != "", "runtime", sdk.FeatureRuntime},
		{limits.CPUs != 0, "limits.cpus", sdk.FeatureCPULimit},
		{limits.Memory != "", "limits.memory", sdk.FeatureMemoryLimit},
		{limits.Pids != 0, "limits.pids", sdk.FeaturePidsLimit},
		{limits.Disk != "", "limits.disk", sdk.FeatureDiskLimit},
		{len(p.Ports) > 0, "ports", sdk.FeaturePorts},
		{len(opts.Secrets) > 0, "secrets", sdk.FeatureSecretFiles},
		{opts.IdleTimeout > 0, "idle_timeout", sdk.FeatureIdleTimeout},
		{opts.OnExpiry == sdk.OnExpirySnapshot, "on_expiry", sdk.FeatureExpirySnapshot},
		{opts.OnExpiry == sdk.OnExpiryPause, "on_expiry", sdk.FeatureExpiryPause},
	}
	for _, need := range append(needs, networkNeeds(p.Network)...) {
		if found := e.described.Capabilities.Of(need.feature); need.asked && found.Class == sdk.ClassUnsupported {
			return sdk.Unsupported(need.path, "%s is unsupported: %s", need.feature, found.Reason)
		}
	}
	return nil
}

func networkNeeds(network *sdk.Network) []need {
	var n sdk.Network
	if network != nil {
		n = *network
	}
	needs := []need{
		{n.Egress == "" || n.Egress == sdk.EgressNone, "network.egress", sdk.FeatureEgressNone},
		{n.Egress == sdk.EgressDeny, "network.egress", sdk.FeatureEgressDeny},
		{n.Egress == sdk.EgressOpen, "network.egress", sdk.FeatureEgressOpen},
	}
	for i, entry := range n.Allow {
		feature := sdk.FeatureEgressDomain
		if allow, err := sdk.ParseAllow(entry); err == nil && allow.IsAddress() {
			feature = sdk.FeatureEgressCIDR
		}
		needs = append(needs, need{true, fmt.Sprintf("network.allow[%d]", i), feature})
	}
	return needs
}

// wall is how long a box may live at most, whatever it is extended to; zero is
// no bound. The vendor keeps it, by its own clock.
func wall(limits *sdk.Limits) (time.Duration, error) {
	if limits == nil || limits.Wall == "" {
		return 0, nil
	}
	life, err := time.ParseDuration(limits.Wall)
	if err != nil || life <= 0 {
		return 0, sdk.Invalid("limits.wall", "%.40q is no length of time", limits.Wall)
	}
	return life, nil
}
