// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// A profile that requires credential isolation is refused at plan, on the
// attribute and with the command to run, until it is verified; what exists is
// read and destroyed when its verdict has expired, and not made again.
func TestAccCredentialIsolation(t *testing.T) {
	w := newWorld(t)
	sandbox := func(arguments string) string {
		return hcl("", `
resource "sandboxer_profile" "strict" {
  name     = "strict"
  requires = { credential_isolation = "enforced" }
}

resource "sandboxer_sandbox" "ci" {
  profile = sandboxer_profile.strict.document
  `+arguments+`
}
`)
	}
	verify := func() {
		options := w.options()
		runtime, err := config.Open(config.Config{
			Fleet: "ci", StateDir: w.dir, Backend: "cloud", Backends: map[string]config.Backend{"cloud": {Extension: "saas-stub"}},
		}, config.Options{Clock: w.clock, Getenv: options.Getenv, Builtins: options.Builtins})
		if err != nil {
			t.Fatal(err)
		}
		defer runtime.Close()
		verified, err := runtime.Manager.Verify(t.Context(), lifecycle.VerifyOptions{
			Profile: sdk.Profile{Name: "strict", Requires: map[sdk.Feature]sdk.Class{sdk.FeatureCredentialIsolation: sdk.ClassEnforced}},
			Life:    time.Hour,
		})
		if err != nil || verified.Verdict != sdk.VerdictPassed {
			t.Fatalf("%+v, %v", verified, err)
		}
	}
	refused := regexp.MustCompile(`(?s)credential_isolation.*sandboxer\s+profile\s+verify\s+strict`)
	accept(t, w,
		resource.TestStep{Config: sandbox(`ttl = "12h"`), PlanOnly: true, ExpectError: refused},
		resource.TestStep{PreConfig: verify, Config: sandbox(`ttl = "12h"`)},
		resource.TestStep{PreConfig: func() { w.clock.Advance(2 * time.Hour) }, Config: sandbox(`ttl = "12h"`), PlanOnly: true},
	)
}
