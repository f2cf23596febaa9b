// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// verdict holds what a backend said about itself, for the life of the
// process. A probe that failed is asked again.
type verdict struct {
	mu        sync.Mutex
	described *sdk.DescribeResult
	probed    *sdk.ProbeResult
}

func (m *Manager) verdict(backend string) *verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.verdicts[backend]
	if !ok {
		v = &verdict{}
		m.verdicts[backend] = v
	}
	return v
}

func (m *Manager) describe(ctx context.Context, backend string) (sdk.DescribeResult, error) {
	v := m.verdict(backend)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.described != nil {
		return *v.described, nil
	}
	ext, err := m.open(ctx, backend)
	if err != nil {
		return sdk.DescribeResult{}, err
	}
	described, err := ext.Describe(ctx, sdk.DescribeOptions{})
	if err != nil {
		return sdk.DescribeResult{}, fmt.Errorf("describe backend %q: %w", backend, err)
	}
	v.described = &described
	return described, nil
}

func (m *Manager) probe(ctx context.Context, backend string) (sdk.ProbeResult, error) {
	v := m.verdict(backend)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.probed != nil {
		return *v.probed, nil
	}
	ext, err := m.open(ctx, backend)
	if err != nil {
		return sdk.ProbeResult{}, err
	}
	probed, err := ext.Probe(ctx, sdk.ProbeOptions{})
	if err != nil {
		return sdk.ProbeResult{}, fmt.Errorf("probe backend %q: %w", backend, err)
	}
	if probed.Usable {
		v.probed = &probed
	}
	return probed, nil
}

// BackendName returns the backend that a caller who names one, or none, gets.
func (m *Manager) BackendName(name string) (string, error) {
	names := m.backends.Names()
	name = cmp.Or(name, m.backends.Default())
	switch {
	case name == "":
		return "", &sdk.Error{Kind: sdk.ErrInvalid, Path: "backend", Message: "no backend is named and there is no default",
			Advice: "name one of " + strings.Join(names, ", ")}
	case !slices.Contains(names, name):
		return "", noBackend(name, names)
	}
	return name, nil
}

// noBackend is the error for a name that is not configured, in the words of
// package config.
func noBackend(name string, names []string) error {
	return sdk.Invalid("backend", "there is no backend %.80q (configured: %s)", name, cmp.Or(strings.Join(names, ", "), "none"))
}

// BackendNames returns the configured backends.
func (m *Manager) BackendNames() []string { return m.backends.Names() }

// Backend describes a configured backend and, with probe, tells whether it
// is usable from here.
func (m *Manager) Backend(ctx context.Context, name string, probe bool) (BackendInfo, error) {
	name, err := m.BackendName(name)
	if err != nil {
		return BackendInfo{}, err
	}
	described, err := m.describe(ctx, name)
	if err != nil {
		return BackendInfo{}, err
	}
	info := BackendInfo{
		Name: name, Extension: described.Name, Version: described.Version, Default: name == m.backends.Default(),
		Capabilities: described.Capabilities,
	}
	if !probe {
		return info, nil
	}
	probed, err := m.probe(ctx, name)
	if err != nil {
		return BackendInfo{}, err
	}
	info.Usable, info.Reason, info.Advice, info.Details = &probed.Usable, probed.Reason, probed.Advice, probed.Details
	if probed.Usable {
		info.Capabilities = probed.Capabilities
	}
	return info, nil
}

// Check tells whether a sandbox of a profile would be possible on a backend.
// What only the machine can tell is asked of a probe; when that can't be
// had, it is left undecided. An error is about the question itself: an
// unknown backend, a ttl over the maximum.
func (m *Manager) Check(ctx context.Context, opts CheckOptions) (CheckResult, error) {
	backend, err := m.BackendName(opts.Backend)
	if err != nil {
		return CheckResult{}, err
	}
	result := CheckResult{Backend: backend}
	if result.Life, err = sandbox.ResolveLife(opts.TTL, opts.Profile, m.settings.Life); err != nil {
		return result, err
	}
	needsOf := sandbox.Requirements
	if opts.Restores {
		needsOf = sandbox.RestoreRequirements
	}
	needs := append(needsOf(opts.End.Over(opts.Profile)), opts.Needs...)
	isolates := func(need sandbox.Requirement) bool { return need.Feature == sdk.FeatureCredentialIsolation }
	if opts.verifies {
		needs = slices.DeleteFunc(needs, isolates)
	}
	described, err := m.describe(ctx, backend)
	if err != nil {
		return result, err
	}
	result.Guarded = described.Capabilities.Of(sdk.FeatureDeadline).Class != sdk.ClassUnsupported
	result.Mismatches, result.Undecided = sandbox.CheckRequirements(needs, described.Capabilities)
	if len(result.Undecided) == 0 {
		return result, nil
	}
	probed, err := m.probe(ctx, backend)
	switch {
	case err != nil:
		result.Unreachable = err.Error()
	case !probed.Usable:
		result.Unreachable = probed.Reason
		if probed.Advice != "" {
			result.Unreachable += " (" + probed.Advice + ")"
		}
	default:
		open := make([]sandbox.Requirement, 0, len(result.Undecided))
		for _, need := range result.Undecided {
			open = append(open, need.Requirement)
		}
		capabilities := probed.Capabilities
		if slices.ContainsFunc(open, isolates) {
			capabilities = maps.Clone(capabilities)
			capabilities[sdk.FeatureCredentialIsolation] = m.isolation(ctx, opts.Profile, backend)
		}
		failed, undecided := sandbox.CheckRequirements(open, capabilities)
		// A probe decides: what it leaves open is not there.
		result.Mismatches = append(result.Mismatches, append(failed, undecided...)...)
		result.Undecided = nil
	}
	return result, nil
}

// Err returns the refusal that a check comes to, nil when there is none.
// Undecided requirements are refused too: nothing is made on a hope.
func (r CheckResult) Err() error {
	var errs []error
	for _, mismatch := range r.Mismatches {
		errs = append(errs, &sdk.Error{Kind: sdk.ErrUnsupported, Path: mismatch.Path,
			Message: fmt.Sprintf("the feature %s is %s on backend %q, %s is needed%s",
				mismatch.Feature, mismatch.Found.Class, r.Backend, mismatch.Class, because(mismatch.Found.Reason))})
	}
	for _, open := range r.Undecided {
		errs = append(errs, &sdk.Error{Kind: sdk.ErrUnreachable, Path: open.Path,
			Message: fmt.Sprintf("whether backend %q has the feature %s can't be told: %s", r.Backend, open.Feature, r.Unreachable)})
	}
	return errors.Join(errs...)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// PrepareOptions are the options of [Manager.Prepare].
type PrepareOptions struct {
	Backend  string
	Profile  sdk.Profile
	Progress func(sdk.Progress)
}

// Prepare does the work of a profile ahead of the first create, where the
// backend has such work.
func (m *Manager) Prepare(ctx context.Context, opts PrepareOptions) (sdk.PrepareResult, error) {
	check, err := m.Check(ctx, CheckOptions{Backend: opts.Backend, Profile: opts.Profile})
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	if err := check.Err(); err != nil {
		return sdk.PrepareResult{}, err
	}
	ext, err := m.open(ctx, check.Backend)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	preparer, ok := sdk.As[sdk.Preparer](ext)
	if !ok {
		return sdk.PrepareResult{}, nil
	}
	result, err := preparer.Prepare(ctx, sdk.PrepareOptions{Profile: opts.Profile, Progress: opts.Progress})
	if err != nil {
		return sdk.PrepareResult{}, fmt.Errorf("prepare profile %q on backend %q: %w", opts.Profile.Name, check.Backend, err)
	}
	return result, nil
}
