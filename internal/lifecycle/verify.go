// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/evidence"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

const (
	// VerifyTask is the task of the throw-away sandboxes of [Manager.Verify].
	VerifyTask = "profile verify"
	// verifyTTL bounds the life of one whose maker dies.
	verifyTTL = 10 * time.Minute
	// inspectBudget bounds the look at one.
	inspectBudget = 2 * time.Minute
	// canaryName is the secret that must be found nowhere but in its file.
	canaryName = "SANDBOXER_CANARY"
)

// VerifyOptions are the options of [Manager.Verify].
type VerifyOptions struct {
	Backend string // empty is the default
	Profile sdk.Profile
	Life    time.Duration // of the verdict; zero is [evidence.IsolationLife]
	// Created is called with the throw-away sandbox, as in [CreateOptions].
	Created  func(Sandbox)
	Progress func(sdk.Progress)
}

// Verified is the result of [Manager.Verify].
type Verified struct {
	evidence.Isolation
	Sandbox DestroyResult // what became of the throw-away sandbox
}

// Verify finds out how a profile's sandboxes are shut off from credentials. It
// makes one, looks at it from outside and from inside, removes it whatever
// happens, and keeps the verdict until it expires. A verdict is a result; the
// error is about reaching one. A sandbox that could not be removed is one: the
// result then names it, and nothing is kept.
func (m *Manager) Verify(ctx context.Context, opts VerifyOptions) (Verified, error) {
	if opts.Life == 0 {
		opts.Life = evidence.IsolationLife
	}
	if opts.Life < 0 || opts.Life > evidence.MaxIsolationLife {
		return Verified{}, sdk.Invalid("valid_for", "%s is not within 0 and %s", opts.Life, evidence.MaxIsolationLife)
	}
	check, err := m.Check(ctx, CheckOptions{Backend: opts.Backend, Profile: opts.Profile, verifies: true})
	if err != nil {
		return Verified{}, err
	}
	if err := check.Err(); err != nil {
		return Verified{}, err
	}
	about, probed, err := m.about(ctx, opts.Profile, check.Backend)
	if err != nil {
		return Verified{}, err
	}
	create := CreateOptions{
		Profile: opts.Profile, Backend: check.Backend, TTL: min(verifyTTL, check.Life.Max), End: sandbox.End{OnExpiry: sdk.OnExpiryDestroy},
		Attribution: sandbox.Attribution{Task: VerifyTask}, Created: opts.Created, Progress: opts.Progress, verifies: true,
	}
	var canary sdk.Secret
	if probed.Capabilities.Of(sdk.FeatureSecretFiles).Class.Satisfies(sdk.ClassEmulated) {
		canary = sdk.Secret("canary-" + strings.ToLower(rand.Text()))
		create.Secrets = map[string]sdk.Secret{canaryName: canary}
	}
	made, err := m.Create(ctx, create)
	if err != nil {
		return Verified{Sandbox: DestroyResult{ID: made.ID, Backend: check.Backend}}, fmt.Errorf("verify profile %q: %w", opts.Profile.Name, err)
	}
	findings := m.inspect(ctx, made, canary)
	interrupted := ctx.Err()
	removal, cancel := outliving(ctx, m.settings.Budgets.Rollback)
	defer cancel()
	result := Verified{}
	result.Sandbox, err = m.Destroy(removal, made.ID, DestroyOptions{Backend: made.Backend, Ref: made.Ref, Reason: "verified"})
	if err != nil {
		return result, fmt.Errorf("sandbox %s, which profile %q was verified in, could not be removed, and `sandboxer reap` removes it after its deadline: %w", made.ID, opts.Profile.Name, err)
	}
	if interrupted != nil {
		return result, fmt.Errorf("verify profile %q: %w", opts.Profile.Name, interrupted)
	}
	findings = append(findings, documentFindings(opts.Profile)...)
	result.Isolation = evidence.NewIsolation(about, m.clock.Now(), opts.Life, findings, canary)
	return result, m.verdictsAt().Save(result.Isolation)
}

// inspect looks at a sandbox. Where that can't be done, it returns the reason
// for each check instead.
func (m *Manager) inspect(ctx context.Context, made Sandbox, canary sdk.Secret) []sdk.Finding {
	ctx, cancel := context.WithTimeout(ctx, inspectBudget)
	defer cancel()
	found, err := m.ask(ctx, made, canary)
	if err == nil {
		return found
	}
	for _, check := range sdk.IsolationChecks() {
		for _, side := range check.Sides() {
			if side != sdk.SideProfile {
				found = append(found, sdk.Finding{Check: check, Side: side, Verdict: sdk.VerdictUnknown, Evidence: []string{err.Error()}})
			}
		}
	}
	return found
}

func (m *Manager) ask(ctx context.Context, made Sandbox, canary sdk.Secret) ([]sdk.Finding, error) {
	ext, err := m.open(ctx, made.Backend)
	if err != nil {
		return nil, err
	}
	inspector, ok := sdk.As[sdk.Inspector](ext)
	if !ok {
		return nil, lacks(made.Backend, "a look at how its sandboxes are shut off")
	}
	opts := sdk.InspectOptions{Target: sdk.Target{ID: made.ID, Ref: made.Ref, Fleet: m.settings.Fleet}, CanaryValue: canary}
	if canary != "" {
		opts.Canary = canaryName
	}
	result, err := inspector.Inspect(ctx, opts)
	if err != nil {
		return nil, failure("inspect sandbox", made.ID, made.Backend, err)
	}
	// The profile's own document is judged here, and by nobody else.
	return slices.DeleteFunc(result.Findings, func(f sdk.Finding) bool { return f.Side == sdk.SideProfile }), nil
}

// documentFindings judges a profile's own document: what it says is in every
// sandbox of it.
func documentFindings(p sdk.Profile) []sdk.Finding {
	f := isolation.New(sdk.SideProfile)
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		if why, is := isolation.Variable(name, p.Env[name]); is {
			f.Failed(sdk.CheckEnvironment, "the variable env."+name+" "+why)
		}
	}
	f.Passed(sdk.CheckEnvironment, fmt.Sprintf("none of %d variables of the profile holds a credential", len(p.Env)))
	arguments := func(where string, args []string) {
		if i, why, is := isolation.Arguments(args); is {
			f.Failed(sdk.CheckArguments, fmt.Sprintf("%s[%d] %s", where, i, why))
		}
	}
	arguments("command", p.Command)
	for i, step := range p.Setup {
		arguments(fmt.Sprintf("setup[%d]", i), step)
	}
	if p.Ready != nil {
		arguments("ready.exec", p.Ready.Exec)
	}
	pairs := func(where string, of map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if why, is := isolation.Variable(name, of[name]); is {
				f.Failed(sdk.CheckArguments, where+"."+isolation.Quote(name)+" "+why)
			}
		}
	}
	pairs("labels", p.Labels)
	if p.Build != nil {
		pairs("build.args", p.Build.Args) // they are in the image's history
	}
	f.Passed(sdk.CheckArguments, "no argument, label or build argument of the profile is a credential")
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		content := p.Files[name].Content
		if kind, looks := isolation.LooksSecret(content); looks {
			f.Failed(sdk.CheckFiles, "the file "+isolation.Quote(name)+" of the profile looks like "+kind)
		} else if isolation.HomeFile(path.Clean(name), []byte(content)) {
			f.Failed(sdk.CheckFiles, "the file "+isolation.Quote(name)+" of the profile is one that credentials are kept in")
		}
	}
	f.Passed(sdk.CheckFiles, fmt.Sprintf("none of %d files of the profile holds a credential", len(p.Files)))
	return f.List()
}

// about says what a verdict on a profile at a backend is about.
func (m *Manager) about(ctx context.Context, p sdk.Profile, backend string) (evidence.About, sdk.ProbeResult, error) {
	described, err := m.describe(ctx, backend)
	if err != nil {
		return evidence.About{}, sdk.ProbeResult{}, err
	}
	probed, err := m.probe(ctx, backend)
	if err != nil {
		return evidence.About{}, probed, err
	}
	if probed.Instance == "" {
		return evidence.About{}, probed, sdk.Unsupported("backend", "backend %q does not tell which machine or account it is: a verdict would not be about anything", backend)
	}
	return evidence.About{
		Profile: p.Name, Revision: sandbox.Revision(p), Backend: backend,
		Extension: described.Name, ExtensionVersion: described.Version, Instance: probed.Instance,
	}, probed, nil
}

func (m *Manager) verdictsAt() evidence.Verdicts { return evidence.Verdicts{Dir: m.settings.Verdicts} }

// isolation is how far a backend's word on credential isolation goes for a
// profile: as far as the last verdict. What is said of it tells what to do.
func (m *Manager) isolation(ctx context.Context, p sdk.Profile, backend string) sdk.Guarantee {
	run := fmt.Sprintf("run `sandboxer profile verify %s --backend %s`", p.Name, backend)
	unverified := func(format string, args ...any) sdk.Guarantee {
		return sdk.Guarantee{Class: sdk.ClassUnverifiable, Reason: fmt.Sprintf(format, args...)}
	}
	about, _, err := m.about(ctx, p, backend)
	if err != nil {
		return unverified("%v", err)
	}
	verdict, err := m.verdictsAt().Load(about)
	at := verdict.At.Format(time.RFC3339)
	switch {
	case errors.Is(err, evidence.ErrNoVerdict):
		return unverified("nobody has verified this revision of the profile there; %s", run)
	case err != nil:
		return unverified("%v; %s", err, run)
	case !verdict.Fresh(m.clock.Now()):
		return unverified("it was verified at %s, and that held until %s; %s", at, verdict.ExpiresAt.Format(time.RFC3339), run)
	case verdict.Verdict == sdk.VerdictFailed:
		return sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: fmt.Sprintf("at %s these checks failed: %s; mend what they name and %s", at, strings.Join(verdict.Of(sdk.VerdictFailed), ", "), run)}
	case verdict.Verdict != sdk.VerdictPassed:
		return unverified("at %s these checks could not be told: %s; %s to see why", at, strings.Join(verdict.Of(sdk.VerdictUnknown), ", "), run)
	}
	return sdk.Guarantee{Class: sdk.ClassEnforced, Reason: fmt.Sprintf("verified at %s, holds until %s", at, verdict.ExpiresAt.Format(time.RFC3339))}
}

// addedCredentials refuses variables of a create that look like credentials
// where its profile requires that there are none: no verdict is about them.
func addedCredentials(p sdk.Profile, env map[string]string) error {
	if class, asked := p.Requires[sdk.FeatureCredentialIsolation]; !asked || sdk.ClassUnverifiable.Satisfies(class) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if why, is := isolation.Variable(name, env[name]); is {
			return &sdk.Error{
				Kind: sdk.ErrInvalid, Path: "env." + name, Advice: "give it as a secret",
				Message: fmt.Sprintf("it %s, and profile %q requires credential isolation", why, p.Name),
			}
		}
	}
	return nil
}
