// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

// What only a real Terraform shows. The provider runs in this process, on the
// stub and the fake clock; TF_ACC_TERRAFORM_PATH chooses the command line,
// else the terraform or tofu on PATH is used.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/compare"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

// commandLine is the Terraform or OpenTofu of this run.
type commandLine struct {
	path      string
	tofu      bool
	writeOnly bool // it has write-only attributes
}

// findCommandLine finds it and tells the test library about it.
func findCommandLine(t *testing.T) commandLine {
	t.Helper()
	cli := commandLine{path: os.Getenv("TF_ACC_TERRAFORM_PATH")}
	for _, name := range []string{"terraform", "tofu"} {
		if found, err := exec.LookPath(name); cli.path == "" && err == nil {
			cli.path = found
		}
	}
	if cli.path == "" {
		t.Fatal("neither terraform nor tofu is on PATH: name one in TF_ACC_TERRAFORM_PATH")
	}
	// The user's own configuration decides nothing here. A missing file would
	// be a warning, which the test library does not expect in a version.
	rc := filepath.Join(t.TempDir(), "terraform.rc")
	if err := os.WriteFile(rc, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TF_CLI_CONFIG_FILE", rc)
	t.Setenv("CHECKPOINT_DISABLE", "1")
	command := exec.Command(cli.path, "version")
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(Terraform|OpenTofu) v(\d+)\.(\d+)\.`).FindStringSubmatch(string(out))
	if found == nil {
		t.Fatalf("%s has no version: %s", cli.path, out)
	}
	minor, err := strconv.Atoi(found[3])
	if err != nil {
		t.Fatal(err)
	}
	cli.tofu = found[1] == "OpenTofu"
	cli.writeOnly = found[2] != "1" || minor >= 11
	t.Setenv("TF_ACC_TERRAFORM_PATH", cli.path)
	if cli.tofu && os.Getenv("TF_ACC_PROVIDER_HOST") == "" {
		t.Setenv("TF_ACC_PROVIDER_HOST", "registry.opentofu.org")
	}
	return cli
}

// accept runs the steps of a test case.
func accept(t *testing.T, w *world, steps ...resource.TestStep) {
	t.Helper()
	findCommandLine(t)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: map[string]func() (tfprotov6.ProviderServer, error){
			"sandboxer": func() (tfprotov6.ProviderServer, error) {
				return New(w.options()).Server(), nil
			},
		},
		CheckDestroy: func(*terraform.State) error {
			if n := w.alive(); n != 0 {
				return fmt.Errorf("%d boxes are left", n)
			}
			return nil
		},
		Steps: steps,
	})
}

// hcl puts a provider block before a configuration.
func hcl(settings, rest string) string {
	return "provider \"sandboxer\" {\n  backends = { cloud = { extension = \"saas-stub\" } }\n" + settings + "\n}\n" + rest
}

const accProfile = `
resource "sandboxer_profile" "e2e" {
  name  = "e2e"
  setup = [["true"]]
  ttl   = { default = "45m", max = "4h" }
}
`

const accSandbox = "sandboxer_sandbox.ci"

// expect is the plan checks of one step.
func expect(checks ...plancheck.PlanCheck) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: checks, PostApplyPostRefresh: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}
}

func value(address, attribute string, want knownvalue.Check) statecheck.StateCheck {
	return statecheck.ExpectKnownValue(address, tfjsonpath.New(attribute), want)
}

func TestAccSandbox(t *testing.T) {
	w := newWorld(t)
	same := statecheck.CompareValue(compare.ValuesSame())
	another := statecheck.CompareValue(compare.ValuesDiffer())
	id := tfjsonpath.New("id")
	at := func(profile, arguments string) string {
		return hcl("", strings.Replace(accProfile, "setup", profile+"\n  setup", 1)+`
resource "sandboxer_sandbox" "ci" {
  profile = sandboxer_profile.e2e.document
  labels  = { suite = "checkout" }
`+arguments+"\n}\n")
	}
	accept(t, w,
		resource.TestStep{
			Config: at("", `ttl = "30m"`),
			ConfigPlanChecks: expect(
				plancheck.ExpectResourceAction(accSandbox, plancheck.ResourceActionCreate),
				plancheck.ExpectKnownValue(accSandbox, tfjsonpath.New("profile_name"), knownvalue.StringExact("e2e")),
				plancheck.ExpectUnknownValue(accSandbox, id)),
			ConfigStateChecks: []statecheck.StateCheck{
				value(accSandbox, "status", knownvalue.StringExact("ready")),
				value(accSandbox, "expires_at", knownvalue.StringExact("2026-03-01T12:30:00Z")),
				same.AddStateValue(accSandbox, id),
			},
		},
		resource.TestStep{ // raising ttl extends in place
			PreConfig: func() { w.clock.Advance(10 * time.Minute) },
			Config:    at("", `ttl = "1h"`),
			ConfigPlanChecks: expect(
				plancheck.ExpectResourceAction(accSandbox, plancheck.ResourceActionUpdate),
				plancheck.ExpectUnknownValue(accSandbox, tfjsonpath.New("expires_at"))),
			ConfigStateChecks: []statecheck.StateCheck{
				value(accSandbox, "expires_at", knownvalue.StringExact("2026-03-01T13:10:00Z")),
				same.AddStateValue(accSandbox, id), another.AddStateValue(accSandbox, id),
			},
		},
		resource.TestStep{ResourceName: accSandbox, ImportState: true, ImportStateVerify: true, ImportStateVerifyIgnore: []string{"ttl", "timeouts"}},
		resource.TestStep{ResourceName: "sandboxer_profile.e2e", ImportState: true, ImportStateVerify: true},
		resource.TestStep{ // another profile is another sandbox
			Config: at(`user = "app"`, `ttl = "1h"`),
			ConfigPlanChecks: expect(
				plancheck.ExpectResourceAction("sandboxer_profile.e2e", plancheck.ResourceActionDestroyBeforeCreate),
				plancheck.ExpectResourceAction(accSandbox, plancheck.ResourceActionDestroyBeforeCreate)),
			ConfigStateChecks: []statecheck.StateCheck{another.AddStateValue(accSandbox, id)},
		},
		resource.TestStep{ // unless it shall stay
			Config:           at(`user = "other"`, "ttl = \"1h\"\n  on_profile_change = \"keep\""),
			ConfigPlanChecks: expect(plancheck.ExpectResourceAction(accSandbox, plancheck.ResourceActionUpdate)),
		},
	)
}

func TestAccEndIsFollowedByDependants(t *testing.T) {
	w := newWorld(t)
	c := hcl("", `
resource "sandboxer_sandbox" "ci" {
  profile = jsonencode({ name = "e2e" })
  ttl     = "1h"
}
resource "terraform_data" "trigger" {
  lifecycle { replace_triggered_by = [sandboxer_sandbox.ci] }
}
resource "terraform_data" "input" {
  triggers_replace = sandboxer_sandbox.ci.id
}
`)
	replaced := expect(
		plancheck.ExpectResourceAction(accSandbox, plancheck.ResourceActionDestroyBeforeCreate),
		plancheck.ExpectResourceAction("terraform_data.trigger", plancheck.ResourceActionDestroyBeforeCreate),
		plancheck.ExpectResourceAction("terraform_data.input", plancheck.ResourceActionDestroyBeforeCreate))
	var id string
	remember := func(s *terraform.State) error {
		id = s.RootModule().Resources[accSandbox].Primary.ID
		return nil
	}
	accept(t, w,
		resource.TestStep{Config: c, Check: remember},
		resource.TestStep{PreConfig: func() { w.clock.Advance(2 * time.Hour) }, Config: c, ConfigPlanChecks: replaced, Check: remember},
		resource.TestStep{PreConfig: func() {
			if _, err := w.elsewhere().Destroy(context.Background(), id, lifecycle.DestroyOptions{}); err != nil {
				t.Error(err)
			}
		}, Config: c, ConfigPlanChecks: replaced},
	)
}

func TestAccSnapshotAndForks(t *testing.T) {
	w := newWorld(t)
	c := func(user string) string {
		return hcl("", `
resource "sandboxer_sandbox" "ci" {
  profile = jsonencode({ name = "e2e", user = "`+user+`" })
}
resource "sandboxer_snapshot" "seeded" {
  sandbox_id = sandboxer_sandbox.ci.id
  ttl        = "24h"
}
resource "sandboxer_sandbox" "fork" {
  count    = 2
  snapshot = sandboxer_snapshot.seeded.id
}
data "sandboxer_sandboxes" "all" {
  statuses   = ["ready"]
  depends_on = [sandboxer_sandbox.fork]
}
data "sandboxer_backend" "default" {}
output "count" { value = length(data.sandboxer_sandboxes.all.ids) }
output "backend" { value = data.sandboxer_backend.default.name }
`)
	}
	const snapshot = "sandboxer_snapshot.seeded"
	accept(t, w,
		resource.TestStep{Config: c("one"), ConfigStateChecks: []statecheck.StateCheck{
			value(snapshot, "kind", knownvalue.StringExact("filesystem")),
			statecheck.ExpectKnownOutputValue("count", knownvalue.Int64Exact(3)),
			statecheck.ExpectKnownOutputValue("backend", knownvalue.StringExact("cloud")),
		}},
		resource.TestStep{ResourceName: snapshot, ImportState: true, ImportStateVerify: true, ImportStateVerifyIgnore: []string{"ttl", "timeouts"}},
		resource.TestStep{ // the source is replaced, its snapshot and the forks stay
			Config: c("two"),
			ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
				plancheck.ExpectResourceAction(accSandbox, plancheck.ResourceActionDestroyBeforeCreate),
				plancheck.ExpectResourceAction(snapshot, plancheck.ResourceActionNoop),
				plancheck.ExpectResourceAction("sandboxer_sandbox.fork[0]", plancheck.ResourceActionNoop),
			}},
		},
	)
}

// The test library destroys at the end, with the refusal of the last step in
// force: that it can is the test.
func TestAccRefusalsNeverBlockDestroy(t *testing.T) {
	sandbox := func(settings, arguments string) string {
		return hcl(settings, "resource \"sandboxer_sandbox\" \"ci\" {\n  profile = jsonencode({ name = \"e2e\" })\n"+arguments+"\n}\n")
	}
	for name, c := range map[string]struct {
		before, after string
		pass          time.Duration
		says          string
	}{
		"maximum":       {sandbox("", `ttl = "3h"`), sandbox(`max_ttl = "1h"`, `ttl = "3h"`), 0, "max_ttl"},
		"on_expired":    {sandbox("", `on_expired = "fail"`), sandbox("", `on_expired = "fail"`), 2 * time.Hour, "has ended"},
		"min_remaining": {sandbox("", `min_remaining = "20m"`), sandbox("", `min_remaining = "20m"`), 50 * time.Minute, "10m0s left"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			accept(t, w,
				resource.TestStep{Config: c.before},
				resource.TestStep{PreConfig: func() { w.clock.Advance(c.pass) }, Config: c.after, ExpectError: regexp.MustCompile(strings.ReplaceAll(c.says, " ", `\s+`))},
			)
		})
	}
}

func TestAccPlanErrorsNameTheAttribute(t *testing.T) {
	accept(t, newWorld(t), resource.TestStep{
		PlanOnly: true,
		Config: hcl("", `
resource "sandboxer_profile" "big" {
  name     = "big"
  limits   = { memory = "1GiB" }
  backends = ["cloud"]
}
`),
		ExpectError: regexp.MustCompile(`(?s)limits\s+=.*memory_limit\s+is\s+unsupported`),
	})
}

// Secrets are write-only where the command line knows that, and are in no
// plan and no state.
func TestAccSecrets(t *testing.T) {
	w := newWorld(t)
	cli := findCommandLine(t)
	const canary = "canary-acc-51c2"
	secrets := func(version int) string {
		if !cli.writeOnly {
			return ""
		}
		return fmt.Sprintf("secrets_wo = { TOKEN = %q }\n  secrets_wo_version = %d", canary, version)
	}
	c := func(version int) string {
		return hcl("", "resource \"sandboxer_sandbox\" \"ci\" {\n  profile = jsonencode({ name = \"e2e\" })\n  "+secrets(version)+"\n}\n")
	}
	action := plancheck.ResourceActionDestroyBeforeCreate
	if !cli.writeOnly {
		action = plancheck.ResourceActionNoop
	}
	dir := t.TempDir()
	t.Setenv("TF_ACC_TEMP_DIR", dir)
	t.Setenv("TF_ACC_PERSIST_WORKING_DIR", "1")
	accept(t, w,
		resource.TestStep{Config: c(1)},
		resource.TestStep{Config: c(2), ConfigPlanChecks: expect(plancheck.ExpectResourceAction(accSandbox, action))},
	)
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, ".tf") {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), canary) {
			t.Errorf("%s holds the secret", entry.Name())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
