// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

const (
	// IsolationLife is how long a verdict holds unless its maker says less or
	// more: an image, an engine and a machine change under a profile.
	IsolationLife = 24 * time.Hour
	// MaxIsolationLife is the longest that one may hold.
	MaxIsolationLife = 30 * 24 * time.Hour
)

// isolationVersion is the version of a verdict's form.
const isolationVersion = 1

// About is what a verdict is about: exactly this revision of a profile, made
// by this version of an extension, at this instance of a backend.
type About struct {
	Profile          string `json:"profile"` // its name
	Revision         string `json:"revision"`
	Backend          string `json:"backend"`
	Extension        string `json:"extension"`
	ExtensionVersion string `json:"extension_version"`
	Instance         string `json:"instance"`
}

// Isolation is the verdict on how a profile's sandboxes are shut off from
// credentials.
type Isolation struct {
	Version int `json:"version"`
	About
	At        time.Time     `json:"at"`
	ExpiresAt time.Time     `json:"expires_at"`
	Verdict   sdk.Verdict   `json:"verdict"`
	Checks    []CheckResult `json:"checks"` // every one, in the order of [sdk.IsolationChecks]
}

// CheckResult is what one check comes to, from all its sides together.
type CheckResult struct {
	Check    sdk.IsolationCheck `json:"check"`
	Verdict  sdk.Verdict        `json:"verdict"`
	Findings []sdk.Finding      `json:"findings"`
}

// redacted stands for a line of evidence that must not be told.
const redacted = "[redacted: this line held what looks like a secret]"

// NewIsolation concludes from findings. A check is passed when each of its
// sides says so, and failed when one does; one that a side did not make could
// not be told. A line of evidence that holds the canary's value, or what looks
// like a credential, is left out: nobody who brings findings is trusted to.
func NewIsolation(about About, at time.Time, life time.Duration, findings []sdk.Finding, canary sdk.Secret) Isolation {
	at = at.UTC().Round(0)
	v := Isolation{Version: isolationVersion, About: about, At: at, ExpiresAt: at.Add(life)}
	for _, check := range sdk.IsolationChecks() {
		result := CheckResult{Check: check, Findings: []sdk.Finding{}}
		for _, side := range check.Sides() {
			made := isolation.New(side)
			for _, f := range findings {
				if f.Check == check && f.Side == side {
					note(made, f, canary)
				}
			}
			if len(made.List()) == 0 {
				made.Unknown(check, "it was not made from this side")
			}
			result.Findings = append(result.Findings, made.List()...)
		}
		result.Verdict = worst(result.Findings)
		v.Checks = append(v.Checks, result)
	}
	v.Verdict = v.conclusion()
	return v
}

// note takes a finding over, line by line.
func note(into *isolation.Findings, f sdk.Finding, canary sdk.Secret) {
	lines := f.Evidence
	if len(lines) == 0 {
		lines = []string{"nothing was said of it"}
	}
	for _, line := range lines {
		if _, looks := isolation.LooksSecret(line); looks || canary != "" && strings.Contains(line, string(canary)) {
			line = redacted
		}
		switch f.Verdict {
		case sdk.VerdictPassed:
			into.Passed(f.Check, line)
		case sdk.VerdictFailed:
			into.Failed(f.Check, line)
		default:
			into.Unknown(f.Check, line)
		}
	}
}

// worst is failed before unknown before passed, and unknown of nothing.
func worst(findings []sdk.Finding) sdk.Verdict {
	verdict := sdk.VerdictPassed
	for _, f := range findings {
		switch {
		case f.Verdict == sdk.VerdictFailed:
			return sdk.VerdictFailed
		case f.Verdict != sdk.VerdictPassed:
			verdict = sdk.VerdictUnknown
		}
	}
	if len(findings) == 0 {
		return sdk.VerdictUnknown
	}
	return verdict
}

func (v Isolation) conclusion() sdk.Verdict {
	switch {
	case len(v.Of(sdk.VerdictFailed)) > 0:
		return sdk.VerdictFailed
	case len(v.Of(sdk.VerdictPassed)) == len(sdk.IsolationChecks()):
		return sdk.VerdictPassed
	}
	return sdk.VerdictUnknown
}

// Of returns the checks that came to a verdict.
func (v Isolation) Of(verdict sdk.Verdict) []string {
	var names []string
	for _, c := range v.Checks {
		if c.Verdict == verdict {
			names = append(names, string(c.Check))
		}
	}
	return names
}

// Fresh reports whether a verdict holds at a time. One from the future does
// not: a clock was wrong.
func (v Isolation) Fresh(now time.Time) bool { return !now.Before(v.At) && now.Before(v.ExpiresAt) }

// check refuses a verdict that is not whole or contradicts itself, whoever
// wrote it.
func (v Isolation) check() error {
	if v.Version != isolationVersion {
		return fmt.Errorf("it has the version %d, not %d", v.Version, isolationVersion)
	}
	for _, text := range []string{v.Profile, v.Revision, v.Backend, v.Extension, v.Instance} {
		if text == "" {
			return errors.New("it does not say what it is about")
		}
	}
	if life := v.ExpiresAt.Sub(v.At); v.At.IsZero() || life <= 0 || life > MaxIsolationLife {
		return errors.New("it has no time, or one that is too long")
	}
	checks := sdk.IsolationChecks()
	if len(v.Checks) != len(checks) {
		return fmt.Errorf("it has %d checks, not %d", len(v.Checks), len(checks))
	}
	for i, c := range v.Checks {
		if c.Check != checks[i] {
			return fmt.Errorf("the check %s is missing", checks[i])
		}
		if err := c.check(); err != nil {
			return fmt.Errorf("the check %s: %w", c.Check, err)
		}
	}
	if v.Verdict != v.conclusion() {
		return errors.New("its conclusion is not what its checks give")
	}
	return nil
}

func (c CheckResult) check() error {
	var sides []sdk.Side
	for _, f := range c.Findings {
		if f.Check != c.Check || !f.Verdict.Valid() || len(f.Evidence) == 0 || len(f.Evidence) > isolation.MaxEvidence+1 {
			return errors.New("it has a finding that is none")
		}
		sides = append(sides, f.Side)
	}
	if !slices.Equal(sides, c.Check.Sides()) {
		return errors.New("it was not made from each side")
	}
	if c.Verdict != worst(c.Findings) {
		return errors.New("its verdict is not what its findings give")
	}
	return nil
}
