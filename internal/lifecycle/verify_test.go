// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// inspected is a backend whose look at a sandbox can be replaced.
type inspected struct {
	*saasstub.Extension
	instance string
	look     func(ctx context.Context, honest sdk.InspectResult) (sdk.InspectResult, error)
}

func (e *inspected) Probe(ctx context.Context, opts sdk.ProbeOptions) (sdk.ProbeResult, error) {
	result, err := e.Extension.Probe(ctx, opts)
	result.Instance = e.instance
	return result, err
}

func (e *inspected) Inspect(ctx context.Context, opts sdk.InspectOptions) (sdk.InspectResult, error) {
	result, err := e.Extension.Inspect(ctx, opts)
	if err != nil || e.look == nil {
		return result, err
	}
	return e.look(ctx, result)
}

// probeHouse is a house whose backend can be looked at.
func probeHouse(t *testing.T) (house, *inspected) {
	t.Helper()
	c := clock.NewFake(start)
	c.Auto = true
	server := saasstub.NewServer(saasstub.ServerOptions{Clock: c})
	ext := &inspected{Extension: saasstub.New(saasstub.Options{Server: server}), instance: "account-1"}
	if _, err := ext.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: "ci"}); err != nil {
		t.Fatal(err)
	}
	l := ledger.New(t.TempDir(), c)
	return house{Manager: New(l, backends{"cloud": ext}, c, Settings{Fleet: "ci", Verdicts: t.TempDir()}), clock: c, server: server, ledger: l}, ext
}

// restart returns the verbs of another process over the same places.
func (h house) restart(ext sdk.Extension) house {
	h.Manager = New(h.ledger, backends{"cloud": ext}, h.clock, h.settings)
	return h
}

func isolated() sdk.Profile {
	return sdk.Profile{Name: "agent", Requires: map[sdk.Feature]sdk.Class{sdk.FeatureCredentialIsolation: sdk.ClassEnforced}}
}

// refusal fails unless a create is refused on the attribute, and returns why.
func (h house) refusal(t *testing.T, p sdk.Profile) string {
	t.Helper()
	_, err := h.Create(t.Context(), CreateOptions{Profile: p})
	var said *sdk.Error
	if !errors.As(err, &said) || said.Path != "requires.credential_isolation" || said.Kind != sdk.ErrUnsupported {
		t.Fatalf("it is not refused on the attribute: %v", err)
	}
	if boxes := h.server.Boxes(); len(boxes) > 0 {
		t.Fatalf("something was made: %v", boxes)
	}
	return err.Error()
}

func TestIsolationIsRequiredUntilItIsVerifiedAndNoLonger(t *testing.T) {
	h, ext := probeHouse(t)
	if why := h.refusal(t, isolated()); !strings.Contains(why, "`sandboxer profile verify agent --backend cloud`") {
		t.Errorf("what to do is not said: %s", why)
	}
	var made Sandbox
	got, err := h.Verify(t.Context(), VerifyOptions{Profile: isolated(), Life: time.Hour, Created: func(s Sandbox) { made = s }})
	if err != nil || got.Verdict != sdk.VerdictPassed {
		t.Fatalf("%+v, %v", got, err)
	}
	if made.Task != VerifyTask || made.ExpiresAt.Sub(start) > verifyTTL+time.Minute || len(h.server.Boxes()) != 0 || len(h.open(t)) != 0 {
		t.Errorf("the throw-away sandbox %+v, boxes %v, open logs %v", made, h.server.Boxes(), h.open(t))
	}
	kept := h.create(t, CreateOptions{Profile: isolated()})
	if _, err := h.Destroy(t.Context(), kept.ID, DestroyOptions{}); err != nil {
		t.Fatal(err)
	}
	// Another revision, another account, another time.
	other := isolated()
	other.Description = "another revision"
	h.refusal(t, other)
	ext.instance = "account-2"
	h.restart(ext).refusal(t, isolated())
	ext.instance = "account-1"
	h.clock.Advance(2 * time.Hour)
	if why := h.refusal(t, isolated()); !strings.Contains(why, "that held until 2026-03-01T13:0") {
		t.Errorf("after it has expired: %s", why)
	}
}

// What speaks against a profile, or could not be told, is kept in place of
// what was found before, and named.
func TestAVerdictThatIsNotPassedIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		look func(ctx context.Context, honest sdk.InspectResult) (sdk.InspectResult, error)
		want sdk.Verdict
		say  string
	}{
		"a check fails": {func(_ context.Context, r sdk.InspectResult) (sdk.InspectResult, error) {
			r.Findings = append(r.Findings, sdk.Finding{Check: sdk.CheckEngine, Side: sdk.SideInside, Verdict: sdk.VerdictFailed, Evidence: []string{"a socket"}})
			return r, nil
		}, sdk.VerdictFailed, "these checks failed: engine"},
		"a check can't be made": {func(_ context.Context, r sdk.InspectResult) (sdk.InspectResult, error) {
			r.Findings = append(r.Findings, sdk.Finding{Check: sdk.CheckMetadata, Side: sdk.SideInside, Verdict: sdk.VerdictUnknown, Evidence: []string{"no network"}})
			return r, nil
		}, sdk.VerdictUnknown, "could not be told: metadata"},
		"nothing is said": {func(context.Context, sdk.InspectResult) (sdk.InspectResult, error) {
			return sdk.InspectResult{}, nil
		}, sdk.VerdictUnknown, "could not be told: environment, arguments"},
		"the look fails": {func(context.Context, sdk.InspectResult) (sdk.InspectResult, error) {
			return sdk.InspectResult{}, sdk.Errorf(sdk.ErrUnreachable, "the vendor is away")
		}, sdk.VerdictUnknown, "could not be told"},
		"a backend judges the profile for itself": {func(_ context.Context, r sdk.InspectResult) (sdk.InspectResult, error) {
			return sdk.InspectResult{Findings: []sdk.Finding{{Check: sdk.CheckFiles, Side: sdk.SideProfile, Verdict: sdk.VerdictFailed, Evidence: []string{"made up"}}}}, nil
		}, sdk.VerdictUnknown, "could not be told"},
	} {
		t.Run(name, func(t *testing.T) {
			h, ext := probeHouse(t)
			if _, err := h.Verify(t.Context(), VerifyOptions{Profile: isolated()}); err != nil {
				t.Fatal(err)
			}
			ext.look = c.look
			got, err := h.Verify(t.Context(), VerifyOptions{Profile: isolated()})
			if err != nil || got.Verdict != c.want || len(h.server.Boxes()) != 0 {
				t.Fatalf("%s, %v, boxes %v", got.Verdict, err, h.server.Boxes())
			}
			if why := h.refusal(t, isolated()); !strings.Contains(why, c.say) {
				t.Errorf("%s", why)
			}
		})
	}
}

// The throw-away sandbox goes also when the caller has gone, and then there
// is no verdict.
func TestAnInterruptedVerificationLeavesNothing(t *testing.T) {
	h, ext := probeHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	ext.look = func(context.Context, sdk.InspectResult) (sdk.InspectResult, error) {
		cancel()
		return sdk.InspectResult{}, ctx.Err()
	}
	got, err := h.Verify(ctx, VerifyOptions{Profile: isolated()})
	if !errors.Is(err, context.Canceled) || got.Verdict != "" || len(h.server.Boxes()) != 0 || len(h.open(t)) != 0 {
		t.Errorf("%+v, %v, boxes %v", got, err, h.server.Boxes())
	}
	if why := h.refusal(t, isolated()); !strings.Contains(why, "nobody has verified") {
		t.Errorf("%s", why)
	}
}

// A backend that does not say which one it is can't be verified: a verdict
// would count elsewhere too.
func TestAVerdictIsAboutAKnownInstance(t *testing.T) {
	h, ext := probeHouse(t)
	ext.instance = ""
	if _, err := h.Verify(t.Context(), VerifyOptions{Profile: isolated()}); !errors.Is(err, sdk.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	h.refusal(t, isolated())
}

// What a profile's document says is judged here: it is in every sandbox of it.
func TestADocumentThatHoldsACredentialFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *sdk.Profile)
		want   sdk.IsolationCheck
	}{
		"a variable":      {func(p *sdk.Profile) { p.Env = map[string]string{"API_TOKEN": "leaked"} }, sdk.CheckEnvironment},
		"a command":       {func(p *sdk.Profile) { p.Command = []string{"x", "--password", "leaked"} }, sdk.CheckArguments},
		"a step of setup": {func(p *sdk.Profile) { p.Setup = [][]string{{"x"}, {"x", "--token=leaked"}} }, sdk.CheckArguments},
		"a label":         {func(p *sdk.Profile) { p.Labels = map[string]string{"password": "leaked"} }, sdk.CheckArguments},
		"a build's argument": {func(p *sdk.Profile) {
			p.Build = &sdk.BuildSource{Context: ".", Args: map[string]string{"NPM_TOKEN": "leaked"}}
		}, sdk.CheckArguments},
		"a file by its place": {func(p *sdk.Profile) { p.Files = map[string]sdk.File{"/root/.vault-token": {Content: "leaked"}} }, sdk.CheckFiles},
		"a file by its content": {func(p *sdk.Profile) {
			p.Files = map[string]sdk.File{"/srv/key": {Content: "-----BEGIN " + "PRIVATE KEY-----\nleaked"}}
		}, sdk.CheckFiles},
	} {
		p := isolated()
		c.change(&p)
		for _, f := range documentFindings(p) {
			if failed := f.Verdict == sdk.VerdictFailed; failed != (f.Check == c.want) || strings.Contains(strings.Join(f.Evidence, ""), "leaked") {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}
