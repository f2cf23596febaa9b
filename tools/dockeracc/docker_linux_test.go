// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockeracc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/tfrun"
)

func TestMain(m *testing.M) { os.Exit(dockertest.Main(m)) }

// configuration has a sandbox of each kind that an image's defaults could make
// differ from what was asked for.
const configuration = `
terraform {
  required_providers {
    sandboxer = { source = "sand-boxer/sandboxer" }
  }
}

provider "sandboxer" {
  fleet  = "acceptance"
  docker = { host = %q }
}

locals {
  profiles = {
    plain    = { image = %q }
    defaults = { image = %q }
    explicit = { image = %q, user = "1000:1000", workdir = "/tmp", env = { FROM_IMAGE = "no" }, command = ["sleep", "3600"] }
    files    = { image = %q, files = { "/etc/app.conf" = { content = "x = 1\n", mode = "0600" } }, limits = { memory = "128MiB", pids = 64, cpus = 0.5 } }
    web      = { image = %q, ports = { web = 8080 }, command = ["nc", "-ll", "-p", "8080", "-e", "/bin/echo", "hello"], ready = { tcp = { port = 8080 } } }
    open     = { image = %q, network = { egress = "open" } }
  }
}

resource "sandboxer_profile" "p" {
  for_each = local.profiles
  name     = each.key
  image    = each.value.image
  user     = try(each.value.user, null)
  workdir  = try(each.value.workdir, null)
  env      = try(each.value.env, null)
  command  = try(each.value.command, null)
  files    = try(each.value.files, null)
  limits   = try(each.value.limits, null)
  ports    = try(each.value.ports, null)
  ready    = try(each.value.ready, null)
  network  = try(each.value.network, null)
}

resource "sandboxer_sandbox" "s" {
  for_each = local.profiles
  profile  = sandboxer_profile.p[each.key].document
  ttl      = "30m"
}

output "ids" {
  value = { for name, s in sandboxer_sandbox.s : name => s.id }
}

output "status" {
  value = { for name, s in sandboxer_sandbox.s : name => s.status }
}
`

// A second plan is empty for every profile and image; a container that was
// stopped or removed shows as a status and is replaced by the next apply,
// while the plan itself changes nothing on the engine.
func TestDockerTerraform(t *testing.T) {
	engine := dockertest.Start(t)
	engine.Images(t)
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	cli, err := tfrun.FindCLI(t.Context(), root, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	w, err := tfrun.New(cli, filepath.Join(root, "bin"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	images := []any{engine.Host, dockertest.Busybox, dockertest.Defaults, dockertest.Defaults, dockertest.Busybox, dockertest.Busybox, dockertest.Busybox}
	if err := os.WriteFile(filepath.Join(w.Dir, "main.tf"), fmt.Appendf(nil, configuration, images...), 0o600); err != nil {
		t.Fatal(err)
	}
	terraform(t, w, "init")
	t.Cleanup(func() {
		if out, err := w.Terraform(context.WithoutCancel(t.Context()), "destroy", "-auto-approve", "-no-color"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		waitGone(t, engine)
	})
	terraform(t, w, "apply", "-auto-approve")
	if out, changes := plan(t, w); changes {
		t.Fatalf("the second plan is not empty:\n%s", out)
	}
	var ids map[string]string
	if err := json.Unmarshal([]byte(terraform(t, w, "output", "-json", "ids")), &ids); err != nil {
		t.Fatal(err)
	}

	none := 0
	if _, err := engine.Client.ContainerStop(t.Context(), ids["defaults"], client.ContainerStopOptions{Timeout: &none}); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Client.ContainerRemove(t.Context(), ids["plain"], client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	before := everything(t, engine)
	out, changes := plan(t, w)
	if !changes || !strings.Contains(out, "2 to add") {
		t.Errorf("after one was stopped and one removed, the plan is:\n%s", out)
	}
	if after := everything(t, engine); !maps.Equal(before, after) {
		t.Errorf("the plan changed the engine from %v to %v", before, after)
	}
	terraform(t, w, "apply", "-auto-approve")
	if out, changes := plan(t, w); changes {
		t.Errorf("after the replacement the plan is not empty:\n%s", out)
	}
	var statuses map[string]string
	if err := json.Unmarshal([]byte(terraform(t, w, "output", "-json", "status")), &statuses); err != nil {
		t.Fatal(err)
	}
	for name, status := range statuses {
		if status != "ready" {
			t.Errorf("%s is %s", name, status)
		}
	}
}

func terraform(t *testing.T, w *tfrun.Workspace, args ...string) string {
	t.Helper()
	out, err := w.Terraform(t.Context(), append(args, "-no-color")...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// plan plans, and tells whether something would change.
func plan(t *testing.T, w *tfrun.Workspace) (out string, changes bool) {
	t.Helper()
	out, err := w.Terraform(t.Context(), "plan", "-detailed-exitcode", "-no-color")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		return out, true
	}
	if err != nil {
		t.Fatal(err)
	}
	return out, false
}

// everything is what the fleet has on the engine, and in what state.
func everything(t *testing.T, engine *dockertest.Engine) map[string]string {
	t.Helper()
	filters := client.Filters{}.Add("label", "dev.sandboxer/fleet=acceptance")
	ctx := context.WithoutCancel(t.Context())
	containers, err := engine.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	volumes, volumesErr := engine.Client.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	networks, networksErr := engine.Client.NetworkList(ctx, client.NetworkListOptions{Filters: filters})
	if err := errors.Join(err, volumesErr, networksErr); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, c := range containers.Items {
		all[c.ID] = string(c.State)
	}
	for _, v := range volumes.Items {
		all[v.Name] = "volume"
	}
	for _, n := range networks.Items {
		all[n.ID] = "network"
	}
	return all
}

// waitGone waits until the fleet has nothing left; the reaper goes by itself.
func waitGone(t *testing.T, engine *dockertest.Engine) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		left := everything(t, engine)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("a minute after destroy the fleet still has %v", slices.Sorted(maps.Keys(left)))
			return
		}
	}
}
