// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/volume"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

// Whatever an engine can say of a container that reaches beyond it fails the
// check that is about it, and no other. Among these is what can't be started
// on every machine, as a privileged container.
func TestWhatTheEngineSaysIsJudged(t *testing.T) {
	const value = "leaked-value"
	bind := func(from, to string) func(*container.InspectResponse) {
		return func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: mount.TypeBind, Source: from, Destination: to})
		}
	}
	host := func(change func(h *container.HostConfig)) func(*container.InspectResponse) {
		return func(c *container.InspectResponse) { change(c.HostConfig) }
	}
	for name, c := range map[string]struct {
		want  sdk.IsolationCheck
		spoil func(c *container.InspectResponse)
	}{
		"nothing":     {"", func(*container.InspectResponse) {}},
		"a variable":  {sdk.CheckEnvironment, func(c *container.InspectResponse) { c.Config.Env = append(c.Config.Env, "API_TOKEN="+value) }},
		"an argument": {sdk.CheckArguments, func(c *container.InspectResponse) { c.Args = append(c.Args, "--password="+value) }},
		"a label":     {sdk.CheckArguments, func(c *container.InspectResponse) { c.Config.Labels["ci.password"] = value }},
		"a health check": {sdk.CheckArguments, func(c *container.InspectResponse) {
			c.Config.Healthcheck = &container.HealthConfig{Test: []string{"x", "--token=" + value}}
		}},
		"the canary":                   {sdk.CheckSecrets, func(c *container.InspectResponse) { c.Config.Labels["x"] = "the-canary" }},
		"the engine's socket":          {sdk.CheckEngine, bind("/run/docker.sock", "/x")},
		"the engine's socket by place": {sdk.CheckEngine, bind("/srv/socket", "/var/run/docker.sock")},
		"an agent's socket":            {sdk.CheckAgents, bind("/tmp/ssh-x/agent.1", "/agent")},
		"a token":                      {sdk.CheckTokens, bind("/srv/token", "/var/run/secrets/kubernetes.io/serviceaccount")},
		"the host's root":              {sdk.CheckMounts, bind("/", "/host")},
		"another's volume": {sdk.CheckMounts, func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: mount.TypeVolume, Name: "another", Destination: "/data"})
		}},
		"a volume that is a directory of the host": {sdk.CheckMounts, func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: mount.TypeVolume, Name: "bound", Destination: "/data"})
		}},
		"the volumes of another":   {sdk.CheckMounts, host(func(h *container.HostConfig) { h.VolumesFrom = []string{"another"} })},
		"a device":                 {sdk.CheckDevices, host(func(h *container.HostConfig) { h.Devices = []container.DeviceMapping{{PathOnHost: "/dev/kvm"}} })},
		"a request for devices":    {sdk.CheckDevices, host(func(h *container.HostConfig) { h.DeviceRequests = []container.DeviceRequest{{Driver: "nvidia"}} })},
		"a rule for devices":       {sdk.CheckDevices, host(func(h *container.HostConfig) { h.DeviceCgroupRules = []string{"a *:* rwm"} })},
		"the host's processes":     {sdk.CheckNamespaces, host(func(h *container.HostConfig) { h.PidMode = "host" })},
		"another's processes":      {sdk.CheckNamespaces, host(func(h *container.HostConfig) { h.PidMode = "container:x" })},
		"the host's memory":        {sdk.CheckNamespaces, host(func(h *container.HostConfig) { h.IpcMode = "host" })},
		"the host's name":          {sdk.CheckNamespaces, host(func(h *container.HostConfig) { h.UTSMode = "host" })},
		"the host's users":         {sdk.CheckNamespaces, host(func(h *container.HostConfig) { h.UsernsMode = "host" })},
		"the host's network":       {sdk.CheckNamespaces, host(func(h *container.HostConfig) { h.NetworkMode = "host" })},
		"another network":          {sdk.CheckNamespaces, func(c *container.InspectResponse) { c.NetworkSettings.Networks["shared"] = nil }},
		"networks that are hidden": {sdk.CheckNamespaces, func(c *container.InspectResponse) { c.NetworkSettings = nil }},
		"all rights":               {sdk.CheckPrivileges, host(func(h *container.HostConfig) { h.Privileged = true })},
		"a capability":             {sdk.CheckPrivileges, host(func(h *container.HostConfig) { h.CapAdd = []string{"CAP_SYS_ADMIN"} })},
		"every capability":         {sdk.CheckPrivileges, host(func(h *container.HostConfig) { h.CapAdd = []string{"ALL"} })},
		"a group":                  {sdk.CheckPrivileges, host(func(h *container.HostConfig) { h.GroupAdd = []string{"docker"} })},
		"no seccomp filter":        {sdk.CheckPrivileges, host(func(h *container.HostConfig) { h.SecurityOpt = append(h.SecurityOpt, "seccomp:unconfined") })},
		"new privileges":           {sdk.CheckPrivileges, host(func(h *container.HostConfig) { h.SecurityOpt = nil })},
		"nothing masked":           {sdk.CheckPrivileges, host(func(h *container.HostConfig) { h.MaskedPaths = nil })},
	} {
		t.Run(name, func(t *testing.T) {
			shown := ordinary()
			c.spoil(&shown)
			raw, err := json.Marshal(shown)
			if err != nil {
				t.Fatal(err)
			}
			judged := confinement{
				InspectResponse: shown, Findings: isolation.New(sdk.SideOutside), own: sdk.Sandbox{ID: "sbx-1"},
				volumes: []volume.Volume{{Name: "own", Driver: "local"}, {Name: "bound", Driver: "local", Options: map[string]string{"o": "bind", "device": "/"}}},
			}
			judged.judge(sdk.InspectOptions{Canary: "CANARY", CanaryValue: "the-canary"}, raw)
			var made []sdk.IsolationCheck
			for _, f := range judged.List() {
				made = append(made, f.Check)
				if passed := f.Verdict == sdk.VerdictPassed; passed == (f.Check == c.want) {
					t.Errorf("%s: %s: %q", f.Check, f.Verdict, f.Evidence)
				}
				if strings.Contains(strings.Join(f.Evidence, "\n"), value) {
					t.Errorf("the evidence of %s holds a value: %q", f.Check, f.Evidence)
				}
			}
			for _, check := range sdk.IsolationChecks() {
				if slices.Contains(check.Sides(), sdk.SideOutside) != slices.Contains(made, check) {
					t.Errorf("%s was made: %v", check, slices.Contains(made, check))
				}
			}
			for _, place := range judged.expect(sdk.InspectOptions{}).Mounts {
				if place != "/own" {
					t.Errorf("a mount at %s is expected inside", place)
				}
			}
		})
	}
}

// ordinary is a container as a create makes it.
func ordinary() container.InspectResponse {
	return container.InspectResponse{
		Path: guestwire.Program, Args: []string{guestwire.VerbInit, guestwire.GateSecrets, "sleep", "600"},
		Config: &container.Config{Env: []string{"PATH=/bin", "SANDBOXER_CANARY_FILE=/run/secrets/CANARY"}, Labels: map[string]string{"vendor": "example"}},
		HostConfig: &container.HostConfig{
			NetworkMode: "none", IpcMode: "private", CapAdd: capabilitiesKept, SecurityOpt: []string{"no-new-privileges"},
			MaskedPaths: []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys"},
		},
		Mounts:          []container.MountPoint{{Type: mount.TypeVolume, Name: "own", Destination: "/own"}},
		NetworkSettings: &container.NetworkSettings{Networks: map[string]*network.EndpointSettings{"none": nil}},
	}
}
