// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// DefaultTTL is how long a sandbox lives when neither the caller, nor the
// profile, nor the provider says.
const DefaultTTL = time.Hour

// DefaultMaxTTL is the longest life when neither the profile nor the provider
// says. No sandbox is endless.
const DefaultMaxTTL = 24 * time.Hour

// Life is how long a sandbox may live, counted from its creation.
type Life struct {
	TTL time.Duration
	Max time.Duration
}

// ResolveLife returns the life of a sandbox: what was asked for (zero when
// nothing was), then the profile's, then the provider's, then the built-in
// default. The strictest maximum holds, unless the profile names an exemption
// with its reason. A ttl over the maximum is an error on the attribute ttl.
func ResolveLife(asked time.Duration, p sdk.Profile, provider Life) (Life, error) {
	life := Life{TTL: asked, Max: provider.Max}
	if life.Max == 0 {
		life.Max = DefaultMaxTTL
	}
	from := "the provider's max_ttl"
	if provider.Max == 0 {
		from = "the built-in maximum"
	}
	var profileDefault, profileMax, wall time.Duration
	// A validated profile's durations parse.
	if p.TTL != nil {
		profileDefault, _ = parseOptional(p.TTL.Default)
		profileMax, _ = parseOptional(p.TTL.Max)
	}
	if p.Limits != nil {
		wall, _ = parseOptional(p.Limits.Wall)
	}
	exempt := p.TTL != nil && p.TTL.Exempt != ""
	// A built-in maximum is a default, not a policy: a profile may raise it.
	if profileMax > 0 && (profileMax < life.Max || exempt || provider.Max == 0) {
		life.Max, from = profileMax, "the profile's ttl.max"
	}
	if wall > 0 && wall < life.Max {
		life.Max, from = wall, "the profile's limits.wall"
	}
	for _, fallback := range []time.Duration{profileDefault, provider.TTL, DefaultTTL} {
		if life.TTL == 0 {
			life.TTL = min(fallback, life.Max)
		}
	}
	if life.TTL > life.Max {
		return life, sdk.Invalid("ttl", "%s is longer than %s of %s", life.TTL, from, life.Max)
	}
	return life, nil
}

func parseOptional(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	return ParseDuration(s)
}
