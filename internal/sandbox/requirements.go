// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Requirement is one feature that a profile needs of a backend.
type Requirement struct {
	Path    string // the attribute that asks for it
	Feature sdk.Feature
	Class   sdk.Class // the weakest that will do
}

// Requirements returns what a profile needs, in a stable order: what it is
// made from, what it names in `requires`, and what it sets. A limit or policy
// that is set must at least be best_effort; a stronger need is named in
// `requires`.
func Requirements(p sdk.Profile) []Requirement {
	return append(sourceRequirements(p), RestoreRequirements(p)...)
}

func sourceRequirements(p sdk.Profile) []Requirement {
	need := func(path string, feature sdk.Feature) []Requirement {
		return []Requirement{{Path: path, Feature: feature, Class: sdk.ClassEmulated}}
	}
	switch {
	case p.Image != "" && IsImagePath(p.Image):
		return need("image", sdk.FeatureImageFile)
	case p.Image != "":
		return need("image", sdk.FeatureImagePull)
	case p.Build != nil:
		return need("build", sdk.FeatureImageBuild)
	case p.Compose != nil:
		return need("compose", sdk.FeatureCompose)
	case p.Machine != nil:
		return need("machine", sdk.FeatureMachine)
	case p.Template != "":
		return need("template", sdk.FeatureTemplate)
	}
	return need("image", sdk.FeatureHostRoot)
}

// RestoreRequirements returns what a sandbox of a profile needs that is made
// from a snapshot, whatever the snapshot's own sandbox was made from.
func RestoreRequirements(p sdk.Profile) []Requirement {
	var needs []Requirement
	need := func(path string, feature sdk.Feature) {
		needs = append(needs, Requirement{Path: path, Feature: feature, Class: sdk.ClassEmulated})
	}
	if p.Runtime != "" {
		need("runtime", sdk.FeatureRuntime)
	}
	if l := p.Limits; l != nil {
		if l.CPUs > 0 {
			need("limits.cpus", sdk.FeatureCPULimit)
		}
		if l.Memory != "" {
			need("limits.memory", sdk.FeatureMemoryLimit)
		}
		if l.Pids > 0 {
			need("limits.pids", sdk.FeaturePidsLimit)
		}
		if l.Disk != "" {
			need("limits.disk", sdk.FeatureDiskLimit)
		}
	}
	needs = append(needs, networkRequirements(p.Network)...)
	if len(p.Ports) > 0 {
		need("ports", sdk.FeaturePorts)
	}
	if len(p.Files) > 0 {
		need("files", sdk.FeatureFiles)
	}
	if len(p.Setup) > 0 {
		need("setup", sdk.FeatureExec)
	}
	if p.Ready != nil && len(p.Ready.Exec) > 0 {
		need("ready.exec", sdk.FeatureExec)
	}
	if p.Ready != nil && p.Ready.Log != "" {
		need("ready.log", sdk.FeatureLogs)
	}
	needs = append(needs, OnExpiryRequirements("on_expiry", p.OnExpiry)...)
	if p.IdleTimeout != "" {
		need("idle_timeout", sdk.FeatureIdleTimeout)
	}
	for _, feature := range slices.Sorted(maps.Keys(p.Requires)) {
		needs = append(needs, Requirement{Path: "requires." + string(feature), Feature: feature, Class: p.Requires[feature]})
	}
	return needs
}

// OnExpiryRequirements returns what a choice for the deadline needs.
func OnExpiryRequirements(at string, choice sdk.OnExpiry) []Requirement {
	switch choice {
	case sdk.OnExpirySnapshot:
		return []Requirement{{Path: at, Feature: sdk.FeatureExpirySnapshot, Class: sdk.ClassEmulated}}
	case sdk.OnExpiryPause:
		return []Requirement{{Path: at, Feature: sdk.FeatureExpiryPause, Class: sdk.ClassEmulated}}
	}
	return nil
}

func networkRequirements(n *sdk.Network) []Requirement {
	egress := sdk.EgressNone
	if n != nil && n.Egress != "" {
		egress = n.Egress
	}
	feature := map[string]sdk.Feature{
		sdk.EgressNone: sdk.FeatureEgressNone, sdk.EgressOpen: sdk.FeatureEgressOpen, sdk.EgressDeny: sdk.FeatureEgressDeny,
	}[egress]
	needs := []Requirement{{Path: "network.egress", Feature: feature, Class: sdk.ClassBestEffort}}
	if n == nil {
		return needs
	}
	for i, entry := range n.Allow {
		need := Requirement{Path: fmt.Sprintf("network.allow[%d]", i), Feature: sdk.FeatureEgressDomain, Class: sdk.ClassBestEffort}
		if allow, err := sdk.ParseAllow(entry); err == nil && allow.IsAddress() {
			need.Feature = sdk.FeatureEgressCIDR
		}
		needs = append(needs, need)
	}
	return needs
}

// IsImagePath reports whether an image names a file or directory: it is
// absolute or begins with a dot.
func IsImagePath(image string) bool {
	return filepath.IsAbs(image) || strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}

// Mismatch is a requirement that a backend does not meet.
type Mismatch struct {
	Requirement
	Found sdk.Guarantee
}

// Error says which feature is missing, what was found and what is needed.
func (m Mismatch) Error() string {
	text := fmt.Sprintf("%s: the feature %s is %s on this backend, %s is needed", m.Path, m.Feature, m.Found.Class, m.Class)
	if m.Found.Reason != "" {
		text += " (" + m.Found.Reason + ")"
	}
	return text
}

// CheckRequirements holds requirements against a capability document.
// Mismatches are certain; undecided are those that only a probe of the
// machine can tell.
func CheckRequirements(needs []Requirement, capabilities sdk.Capabilities) (mismatches, undecided []Mismatch) {
	for _, need := range needs {
		found := capabilities.Of(need.Feature)
		switch {
		case found.Class.Satisfies(need.Class):
		case found.DependsOnMachine:
			undecided = append(undecided, Mismatch{Requirement: need, Found: found})
		default:
			mismatches = append(mismatches, Mismatch{Requirement: need, Found: found})
		}
	}
	return mismatches, undecided
}
