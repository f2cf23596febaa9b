// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

var (
	aboutIt = About{Profile: "agent", Revision: "sha256:1", Backend: "docker", Extension: "docker", ExtensionVersion: "1.2.3", Instance: "engine-1"}
	noon    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// allPassed are the findings of a profile that nothing speaks against.
func allPassed() []sdk.Finding {
	var findings []sdk.Finding
	for _, check := range sdk.IsolationChecks() {
		for _, side := range check.Sides() {
			findings = append(findings, sdk.Finding{Check: check, Side: side, Verdict: sdk.VerdictPassed, Evidence: []string{"looked"}})
		}
	}
	return findings
}

// A verdict is passed only when each check was passed from each of its sides:
// leaving any one out, or not knowing it, is enough that it is not.
func TestNothingIsPassedThatWasNotLookedAt(t *testing.T) {
	if v := NewIsolation(aboutIt, noon, time.Hour, allPassed(), ""); v.Verdict != sdk.VerdictPassed {
		t.Fatalf("%s: %+v", v.Verdict, v.Checks)
	}
	if v := NewIsolation(aboutIt, noon, time.Hour, nil, ""); v.Verdict != sdk.VerdictUnknown || len(v.Of(sdk.VerdictPassed)) > 0 {
		t.Errorf("of nothing: %s", v.Verdict)
	}
	for i := range allPassed() {
		for verdict, want := range map[sdk.Verdict]sdk.Verdict{
			"": sdk.VerdictUnknown, sdk.VerdictUnknown: sdk.VerdictUnknown, "odd": sdk.VerdictUnknown, sdk.VerdictFailed: sdk.VerdictFailed,
		} {
			findings := allPassed()
			check := findings[i].Check
			if findings[i].Verdict = verdict; verdict == "" {
				findings = append(findings[:i], findings[i+1:]...)
			}
			v := NewIsolation(aboutIt, noon, time.Hour, findings, "")
			if got := v.Of(want); v.Verdict != want || len(got) != 1 || got[0] != string(check) {
				t.Errorf("%s is %q: the verdict is %s, %s are %q", check, verdict, v.Verdict, want, got)
			}
			// Saying the opposite as well changes nothing.
			if verdict == sdk.VerdictFailed {
				if v := NewIsolation(aboutIt, noon, time.Hour, append(findings, allPassed()...), ""); v.Verdict != sdk.VerdictFailed {
					t.Errorf("%s failed and passed: %s", check, v.Verdict)
				}
			}
		}
	}
}

func TestEvidenceHoldsNoSecret(t *testing.T) {
	token := "ghp" + "_" + strings.Repeat("a1B2", 9)
	findings := append(allPassed(),
		sdk.Finding{Check: sdk.CheckMounts, Side: sdk.SideInside, Verdict: sdk.VerdictFailed, Evidence: []string{"the value is sings-a-song", "and " + token, "a place"}},
		sdk.Finding{Check: sdk.CheckAgents, Side: sdk.SideInside, Verdict: sdk.VerdictUnknown, Evidence: []string{"\x1b[31m\n" + strings.Repeat("x", 1<<20)}})
	encoded, err := json.Marshal(NewIsolation(aboutIt, noon, time.Hour, findings, "sings-a-song"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"sings-a-song", token, `\u001b`} {
		if strings.Contains(string(encoded), secret) {
			t.Errorf("%q is in it", secret)
		}
	}
	if !strings.Contains(string(encoded), "a place") || len(encoded) > 1<<15 {
		t.Errorf("%d bytes: %s", len(encoded), encoded)
	}
}

func TestVerdictsAreKeptForExactlyWhatTheyAreAbout(t *testing.T) {
	store := Verdicts{Dir: filepath.Join(t.TempDir(), "verdicts")}
	if _, err := store.Load(aboutIt); !errors.Is(err, ErrNoVerdict) {
		t.Errorf("before there is one: %v", err)
	}
	kept := NewIsolation(aboutIt, noon, time.Hour, allPassed(), "")
	if err := store.Save(kept); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Load(aboutIt); err != nil || !reflect.DeepEqual(got, kept) {
		t.Errorf("%+v, %v", got, err)
	}
	file := store.file(aboutIt)
	if info, err := os.Stat(file); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for _, change := range []func(a *About){
		func(a *About) { a.Profile = "other" }, func(a *About) { a.Revision = "sha256:2" }, func(a *About) { a.Backend = "other" },
		func(a *About) { a.Extension = "other" }, func(a *About) { a.ExtensionVersion = "1.2.4" }, func(a *About) { a.Instance = "engine-2" },
	} {
		other := aboutIt
		change(&other)
		if _, err := store.Load(other); !errors.Is(err, ErrNoVerdict) {
			t.Errorf("about %+v: %v", other, err)
		}
		// Nor does a file help that was moved there.
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(store.file(other), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Load(other); err == nil || errors.Is(err, ErrNoVerdict) {
			t.Errorf("a moved file about %+v: %v", other, err)
		}
	}
	// The next one removes what has expired, and only that.
	later := NewIsolation(About{Profile: "x", Revision: "r", Backend: "b", Extension: "e", Instance: "i"}, noon.Add(2*time.Hour), time.Hour, nil, "")
	if err := store.Save(later); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(aboutIt); !errors.Is(err, ErrNoVerdict) {
		t.Errorf("after it has expired: %v", err)
	}
	if _, err := store.Load(later.About); err != nil {
		t.Error(err)
	}
}

func TestHowLongAVerdictHolds(t *testing.T) {
	v := NewIsolation(aboutIt, noon, time.Hour, allPassed(), "")
	for after, want := range map[time.Duration]bool{0: true, time.Hour - 1: true, time.Hour: false, -1: false} {
		if v.Fresh(noon.Add(after)) != want {
			t.Errorf("after %s: %v", after, !want)
		}
	}
}

// What is at rest is believed only when it is whole and gives the conclusion
// that it claims.
func TestADamagedVerdictIsNone(t *testing.T) {
	for name, spoil := range map[string]func(v *Isolation){
		"a conclusion that it does not give": func(v *Isolation) {
			v.Checks[3].Findings[0].Verdict, v.Checks[3].Verdict = sdk.VerdictFailed, sdk.VerdictFailed
		},
		"a check that it does not give": func(v *Isolation) { v.Checks[3].Findings[0].Verdict = sdk.VerdictFailed },
		"a check that is missing":       func(v *Isolation) { v.Checks = v.Checks[1:] },
		"a side that is missing":        func(v *Isolation) { v.Checks[0].Findings = v.Checks[0].Findings[1:] },
		"a side that sees nothing":      func(v *Isolation) { v.Checks[0].Findings[0].Side = "above" },
		"no evidence":                   func(v *Isolation) { v.Checks[0].Findings[0].Evidence = nil },
		"another version":               func(v *Isolation) { v.Version = 2 },
		"a life without end":            func(v *Isolation) { v.ExpiresAt = v.At.Add(MaxIsolationLife + 1) },
		"no life":                       func(v *Isolation) { v.ExpiresAt = v.At },
		"no time":                       func(v *Isolation) { v.At = time.Time{} },
		"nothing that it is about":      func(v *Isolation) { v.Instance = "" },
	} {
		t.Run(name, func(t *testing.T) {
			v := NewIsolation(aboutIt, noon, time.Hour, allPassed(), "")
			spoil(&v)
			encoded, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := decodeVerdict(encoded); err == nil {
				t.Errorf("it was believed: %+v", got)
			}
			if (Verdicts{Dir: t.TempDir()}).Save(v) == nil {
				t.Error("it was kept")
			}
		})
	}
}

// FuzzVerdict holds the reader of verdicts at rest to its contract: what it
// takes says "passed" only when every check does, from each side.
func FuzzVerdict(f *testing.F) {
	for _, findings := range [][]sdk.Finding{nil, allPassed(), allPassed()[1:]} {
		encoded, err := json.Marshal(NewIsolation(aboutIt, noon, time.Hour, findings, ""))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
		f.Add(append(encoded, '{'))
		f.Add(encoded[:len(encoded)/2])
	}
	f.Add([]byte(`{"version":1,"verdict":"passed","checks":[]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		v, err := decodeVerdict(content)
		if err != nil {
			return
		}
		if v.Verdict == sdk.VerdictPassed {
			for _, c := range v.Checks {
				for _, finding := range c.Findings {
					if finding.Verdict != sdk.VerdictPassed {
						t.Errorf("passed, although %s is %s from %s", c.Check, finding.Verdict, finding.Side)
					}
				}
			}
		}
		if len(v.Checks) != len(sdk.IsolationChecks()) || v.ExpiresAt.Sub(v.At) > MaxIsolationLife {
			t.Errorf("accepted %+v", v)
		}
	})
}

// A receipt's verdict is about its scope, and decides with it.
func TestAReceiptCarriesAVerdict(t *testing.T) {
	public, key := newKey(t)
	receipt := func(findings []sdk.Finding) *Receipt {
		r := New(Scope{Verb: VerbVerify, Fleet: "ci", Kinds: []string{KindSandbox}, Backend: "docker", Profile: "agent"}, []string{"docker"})
		v := NewIsolation(aboutIt, noon, time.Hour, findings, "")
		r.Isolation = &v
		r.Close(noon)
		return r
	}
	for _, c := range []struct {
		receipt *Receipt
		good    bool
	}{{receipt(allPassed()), true}, {receipt(nil), false}} {
		sealed, err := Sign(c.receipt.Statement(), key)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := Verify(sealed, public)
		if err != nil || got.Predicate.Good() != c.good || !reflect.DeepEqual(got.Predicate.Isolation, c.receipt.Isolation) {
			t.Errorf("%+v, %v", got.Predicate, err)
		}
	}
	for name, spoil := range map[string]func(r *Receipt){
		"of another profile": func(r *Receipt) { r.Isolation.Profile = "other" },
		"of another backend": func(r *Receipt) { r.Isolation.Backend = "other" },
		"of another verb":    func(r *Receipt) { r.Scope.Verb = VerbReap },
		"that is made up":    func(r *Receipt) { r.Isolation.Checks[0].Verdict = sdk.VerdictFailed },
	} {
		r := receipt(allPassed())
		spoil(r)
		if _, err := Sign(r.Statement(), key); err == nil {
			t.Errorf("a verdict %s was signed", name)
		}
	}
}
