// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
)

// careful is an extension that does what it says: the stub, with a document
// that names every feature and with what that calls unsupported refused.
type careful struct {
	*saasstub.Extension
	claims sdk.Capabilities // instead of the document's
}

func newCareful(server *saasstub.Server) careful {
	return careful{Extension: saasstub.New(saasstub.Options{Server: server})}
}

func (e careful) document(given sdk.Capabilities) sdk.Capabilities {
	document := maps.Clone(given)
	for _, feature := range sdk.Features() {
		if _, ok := document[feature]; !ok {
			document[feature] = sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: "a box has nothing of the kind"}
		}
	}
	maps.Copy(document, e.claims)
	return document
}

func (e careful) Describe(ctx context.Context, opts sdk.DescribeOptions) (sdk.DescribeResult, error) {
	described, err := e.Extension.Describe(ctx, opts)
	described.Capabilities = e.document(described.Capabilities)
	return described, err
}

func (e careful) Probe(ctx context.Context, opts sdk.ProbeOptions) (sdk.ProbeResult, error) {
	probed, err := e.Extension.Probe(ctx, opts)
	probed.Capabilities = e.document(probed.Capabilities)
	return probed, err
}

func (e careful) Configure(ctx context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(opts.Config, &keys) == nil {
		for key := range keys {
			if key != "file" {
				return sdk.ConfigureResult{}, sdk.Invalid(key, "there is no such key")
			}
		}
	}
	return e.Extension.Configure(ctx, opts)
}

func (e careful) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	if err := e.refuse(ctx, opts); err != nil {
		return sdk.CreateResult{}, err
	}
	if limits := opts.Profile.Limits; limits != nil && limits.Wall != "" {
		wall, err := time.ParseDuration(limits.Wall)
		if err != nil {
			return sdk.CreateResult{}, sdk.Invalid("limits.wall", "%s", err)
		}
		if latest := time.Now().Add(wall); latest.Before(opts.MaxExpiresAt) {
			opts.MaxExpiresAt = latest
		}
	}
	return e.Extension.Create(ctx, opts)
}

// refuse finds what a create asks for that the document calls unsupported.
func (e careful) refuse(ctx context.Context, opts sdk.CreateOptions) error {
	described, err := e.Describe(ctx, sdk.DescribeOptions{})
	if err != nil {
		return err
	}
	p := opts.Profile
	limits, network := p.Limits, p.Network
	if limits == nil {
		limits = &sdk.Limits{}
	}
	if network == nil {
		network = &sdk.Network{}
	}
	named := func(want bool) bool {
		return slices.ContainsFunc(network.Allow, func(to string) bool { return strings.Contains(to, "/") != want })
	}
	for _, need := range []struct {
		asked   bool
		feature sdk.Feature
		path    string
	}{
		{limits.CPUs != 0, sdk.FeatureCPULimit, "limits.cpus"},
		{limits.Memory != "", sdk.FeatureMemoryLimit, "limits.memory"},
		{limits.Pids != 0, sdk.FeaturePidsLimit, "limits.pids"},
		{limits.Disk != "", sdk.FeatureDiskLimit, "limits.disk"},
		{network.Egress == sdk.EgressOpen, sdk.FeatureEgressOpen, "network.egress"},
		{named(false), sdk.FeatureEgressCIDR, "network.allow"},
		{named(true), sdk.FeatureEgressDomain, "network.allow"},
		{strings.HasPrefix(p.Image, "/"), sdk.FeatureImageFile, "image"},
		{p.Image != "" && !strings.HasPrefix(p.Image, "/"), sdk.FeatureImagePull, "image"},
		{len(p.Ports) > 0, sdk.FeaturePorts, "ports"},
		{len(opts.Secrets) > 0, sdk.FeatureSecretFiles, "secrets"},
	} {
		if need.asked && described.Capabilities.Of(need.feature).Class == sdk.ClassUnsupported {
			return sdk.Unsupported(need.path, "%s is unsupported", need.feature)
		}
	}
	return nil
}

// suite is what the stub is checked with.
func suite(server *saasstub.Server, wrap func(e careful) sdk.Extension) conformance.Suite {
	lie := func(call saasstub.Call, lie saasstub.Lie, on int) func() func() {
		return func() func() {
			server.Inject(saasstub.Fault{Call: call, Lie: lie, On: on})
			return server.Heal
		}
	}
	return conformance.Suite{
		New: func(context.Context) (sdk.Extension, func(), error) {
			return wrap(newCareful(server)), nil, nil
		},
		Commands: conformance.Commands{
			Print: func(out, errs string) []string {
				return []string{"sh", "-c", "echo " + out + "; cat /no/" + errs}
			},
			Bytes: func(n int) []string { return []string{"echo", "-n", strings.Repeat("x", n)} },
			Write: func(path, content string) []string {
				return []string{"sh", "-c", "echo -n " + content + " > " + path}
			},
			Sleep: func(d time.Duration) []string { return []string{"sleep", d.String()} },
			Lines: func(int) []string {
				return []string{"sh", "-c", "echo line-1; echo line-2; echo line-3; echo line-4; echo line-5"}
			},
			Serve: func(int) []string { return []string{"true"} },
			Lacks: map[conformance.Command]string{
				conformance.CommandSignal: "none", conformance.CommandOrphan: "none", conformance.CommandTicks: "none", conformance.CommandCounter: "none",
			},
		},
		Faults: map[conformance.Fault]func() func(){
			conformance.FaultLostCreate:       lie(saasstub.CallCreateBox, saasstub.LoseAnswer, 1),
			conformance.FaultPretendedDestroy: lie(saasstub.CallDeleteBox, saasstub.Pretend, 0),
			conformance.FaultFalseNotFound:    lie(saasstub.CallGetBox, saasstub.NotFound, 0),
			conformance.FaultUnreachable: func() func() {
				for _, call := range []saasstub.Call{saasstub.CallCreateBox, saasstub.CallGetBox, saasstub.CallListBoxes, saasstub.CallUpdateBox, saasstub.CallDeleteBox} {
					server.Inject(saasstub.Fault{Call: call, Lie: saasstub.Broken})
				}
				return server.Heal
			},
			conformance.FaultDiedEarly: lie(saasstub.CallCreateBox, saasstub.DieEarly, 1),
		},
		Exclude: map[string]string{
			"deadline/ends_commands": "a command of the stub ends when its sleep does",
			"files/directories":      "a box has no directories",
		},
		Timing:   conformance.Timing{Short: time.Second, Poll: 10 * time.Millisecond, Grace: 5 * time.Second},
		Parallel: 40,
	}
}
