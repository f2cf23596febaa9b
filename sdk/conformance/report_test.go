// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance_test

import (
	"context"
	"encoding/json"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
)

// quick are rules that need no waiting.
var quick = []string{"describe/static", "create/identity", "exec/signal", "ports/endpoint", "destroy/ready"}

func runQuick(t *testing.T, change func(s *conformance.Suite), wrap func(e careful) sdk.Extension) conformance.Report {
	t.Helper()
	s := suite(saasstub.NewServer(saasstub.ServerOptions{}), wrap)
	s.Only = quick
	if change != nil {
		change(&s)
	}
	report, err := conformance.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func honest(e careful) sdk.Extension { return e }

func TestAReportIsBoundToItsDocument(t *testing.T) {
	one, two := runQuick(t, nil, honest), runQuick(t, nil, honest)
	if one.Digest != two.Digest || !strings.HasPrefix(one.Digest, "sha256:") {
		t.Errorf("digests of one document: %q and %q", one.Digest, two.Digest)
	}
	other := runQuick(t, nil, func(e careful) sdk.Extension {
		e.claims = sdk.Capabilities{sdk.FeaturePause: {Class: sdk.ClassBestEffort, Reason: "another class"}}
		return e
	})
	if other.Digest == one.Digest {
		t.Error("another document has the same digest")
	}
	if one.Extension != saasstub.Name || one.Version == "" || one.Document.Of(sdk.FeatureExec).Class != sdk.ClassEnforced {
		t.Errorf("%+v", one)
	}
	unseen := slices.ContainsFunc(one.Unseen, func(c conformance.Claim) bool { return c.Feature == sdk.FeatureFork })
	if !unseen {
		t.Errorf("fork was claimed and not looked at, and is not among %v", one.Unseen)
	}
}

func TestAReportIsInOrderAndSurvivesJSON(t *testing.T) {
	report := runQuick(t, nil, honest)
	var got []string
	for _, row := range report.Rows {
		got = append(got, row.ID+" "+string(row.Outcome))
	}
	want := []string{
		"describe/static passed", "create/identity passed", "destroy/ready passed", "exec/signal suite_excluded", "ports/endpoint not_applicable",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	encoded, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var decoded conformance.Report
	if err := json.Unmarshal(encoded, &decoded); err != nil || !reflect.DeepEqual(report, decoded) {
		t.Errorf("%v\n%+v\n%+v", err, report, decoded)
	}
	for _, part := range []string{"saas-stub 0.1.0 conforms", report.Digest, "no command signal: none", "3 passed  0 failed  0 error  1 not_applicable  1 suite_excluded"} {
		if !strings.Contains(text(t, report), part) {
			t.Errorf("%q is not in\n%s", part, text(t, report))
		}
	}
}

func TestAPanicIsAnErrorOfItsRule(t *testing.T) {
	report := runQuick(t, nil, func(e careful) sdk.Extension {
		return broken{careful: e, get: func(context.Context, sdk.GetOptions) (sdk.GetResult, error) { panic("a bug") }}
	})
	row, _ := report.Row("create/identity")
	if row.Outcome != conformance.Errored || !strings.Contains(row.Reason, "a bug") || !report.Failed() {
		t.Errorf("%+v", row)
	}
}

func TestWhatTheBudgetLeavesNoTimeForIsNoPass(t *testing.T) {
	report := runQuick(t, func(s *conformance.Suite) { s.Timing.Budget = time.Nanosecond }, honest)
	if report.Counts[conformance.Passed] != 0 || report.Counts[conformance.Errored] != 3 || !report.Failed() {
		t.Errorf("%+v", report.Counts)
	}
}

func TestAnUnusableBackendIsNoReport(t *testing.T) {
	server := saasstub.NewServer(saasstub.ServerOptions{})
	server.Inject(saasstub.Fault{Call: saasstub.CallListBoxes, Lie: saasstub.Broken})
	if _, err := conformance.Run(t.Context(), suite(server, honest)); err == nil || !strings.Contains(err.Error(), "not usable") {
		t.Errorf("%v", err)
	}
}

func TestASuiteLeavesNothingOutSilently(t *testing.T) {
	for name, change := range map[string]func(s *conformance.Suite){
		"no factory":         func(s *conformance.Suite) { s.New = nil },
		"unknown excluded":   func(s *conformance.Suite) { s.Exclude = map[string]string{"create/idempotant": "a slip"} },
		"no reason":          func(s *conformance.Suite) { s.Exclude = map[string]string{"create/idempotent": ""} },
		"unknown only":       func(s *conformance.Suite) { s.Only = []string{"create"} },
		"unknown command":    func(s *conformance.Suite) { s.Commands.Lacks = map[conformance.Command]string{"cats": "a slip"} },
		"no reason to lack":  func(s *conformance.Suite) { s.Commands.Lacks = map[conformance.Command]string{"cat": ""} },
		"unknown fault hook": func(s *conformance.Suite) { s.Faults = map[conformance.Fault]func() func(){"rain": nil} },
	} {
		s := suite(saasstub.NewServer(saasstub.ServerOptions{}), honest)
		change(&s)
		if _, err := conformance.Run(t.Context(), s); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

func TestRulesAreNamedOnce(t *testing.T) {
	id := regexp.MustCompile(`^[a-z]+/[a-z_]+$`)
	seen := map[string]bool{}
	for _, rule := range conformance.Rules() {
		if seen[rule.ID] || !id.MatchString(rule.ID) || rule.Title == "" {
			t.Errorf("%q %q", rule.ID, rule.Title)
		}
		seen[rule.ID] = true
	}
}

// Other modules use the kit: it needs package sdk, that of portable snapshots
// and the standard library, and leaves package testing to conformancetest.
func TestTheKitImportsTheSDKOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			const ours = "github.com/sand-boxer/terraform-provider-sandboxer/sdk"
			own := path == ours || path == ours+"/portable"
			if !own && strings.Contains(path, ".") || path == "testing" {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}
