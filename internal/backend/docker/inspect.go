// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// How a sandbox is shut off from credentials: what the engine says of its
// container, and what our program sees inside.

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

// Inspect implements [sdk.Inspector].
func (e *Extension) Inspect(ctx context.Context, opts sdk.InspectOptions) (sdk.InspectResult, error) {
	eng, f, o, s, err := e.awake(ctx, opts.Target)
	if err != nil {
		return sdk.InspectResult{}, err
	}
	found, err := eng.ContainerInspect(ctx, o.main.ID, client.ContainerInspectOptions{})
	if err != nil {
		return sdk.InspectResult{}, e.translate(err, "inspect "+s.ID)
	}
	volumes, err := eng.VolumeList(ctx, client.VolumeListOptions{Filters: labelled(sdk.LabelFleet, s.Identity.Fleet, sdk.LabelID, s.ID, labelRole, roleData)})
	if err != nil {
		return sdk.InspectResult{}, e.translate(err, "list the volumes of "+s.ID)
	}
	c := confinement{InspectResponse: found.Container, Findings: isolation.New(sdk.SideOutside), own: s, volumes: volumes.Items, runtime: f.runtime}
	if c.HostConfig == nil || c.Config == nil {
		return sdk.InspectResult{}, fmt.Errorf("the engine at %s does not say how %s is confined", e.host, s.ID)
	}
	if c.HostConfig.Runtime != "" {
		c.runtime = c.HostConfig.Runtime
	}
	c.judge(opts, found.Raw)
	report, err := e.lookInside(ctx, eng, o, c.expect(opts))
	if err != nil {
		return sdk.InspectResult{}, err
	}
	return sdk.InspectResult{Findings: append(c.List(), report...)}, nil
}

// lookInside runs our program's look as the sandbox's own user.
func (e *Extension) lookInside(ctx context.Context, eng engine, o *object, expect isolation.Expect) ([]sdk.Finding, error) {
	var out, errs bounded
	code, err := e.call(ctx, eng, call{
		id: o.id, container: o.main.ID, command: append([]string{guestwire.Program, guestwire.VerbLook}, expect.Args()...), stdout: &out, stderr: &errs,
	})
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("the look inside of %s failed (exit code %d): %s", o.id, code, clip(isolation.Line(errs.String())))
	}
	findings, err := isolation.ReadReport(&out.Buffer)
	if err != nil {
		return nil, fmt.Errorf("the look inside of %s: %w", o.id, err)
	}
	return findings, nil
}

// bounded keeps one byte more than a report may have, so that one that is too
// long is seen to be.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := isolation.MaxReport + 1 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// confinement is a container as the engine shows it.
type confinement struct {
	container.InspectResponse
	*isolation.Findings
	own     sdk.Sandbox
	volumes []volume.Volume // that are the sandbox's own
	runtime string
}

// expect is what our program has to find inside.
func (c confinement) expect(opts sdk.InspectOptions) isolation.Expect {
	expect := isolation.Expect{
		Canary: opts.Canary, First: guestwire.Program, OwnKernel: ownKernel(c.runtime),
		Offline: c.HostConfig.NetworkMode == "none",
	}
	if opts.Canary != "" {
		expect.Mounts = append(expect.Mounts, guestwire.Secrets)
	}
	for _, m := range c.Mounts {
		// What is not the sandbox's own has failed already, and is seen from
		// inside as well.
		if c.isOwn(m) {
			expect.Mounts = append(expect.Mounts, m.Destination)
		}
	}
	return expect
}

// isOwn tells a volume that was made with the sandbox, of which nobody else
// holds anything, from everything else that can be mounted.
func (c confinement) isOwn(m container.MountPoint) bool {
	return m.Type == mount.TypeVolume && slices.ContainsFunc(c.volumes, func(v volume.Volume) bool {
		// A volume of the local driver with options can be any directory of the host.
		return v.Name == m.Name && v.Driver == "local" && len(v.Options) == 0
	})
}

// judge holds what the engine says against what a sandbox may have.
func (c confinement) judge(opts sdk.InspectOptions, raw []byte) {
	c.environment()
	c.arguments()
	c.canary(opts, raw)
	c.mounted()
	c.devices()
	c.namespaces()
	c.privileges()
}

func (c confinement) environment() {
	for _, pair := range c.Config.Env {
		name, value, _ := strings.Cut(pair, "=")
		if why, is := isolation.Variable(name, value); is {
			c.Failed(sdk.CheckEnvironment, "the container's variable "+isolation.Quote(name)+" "+why)
		}
	}
	c.Passed(sdk.CheckEnvironment, fmt.Sprintf("none of %d variables of the container, its image's among them, holds a credential", len(c.Config.Env)))
}

func (c confinement) arguments() {
	command := append([]string{c.Path}, c.Args...)
	if i, why, is := isolation.Arguments(command); is {
		c.Failed(sdk.CheckArguments, fmt.Sprintf("argument %d of the container's command %s", i, why))
	}
	if check := c.Config.Healthcheck; check != nil {
		if i, why, is := isolation.Arguments(check.Test); is {
			c.Failed(sdk.CheckArguments, fmt.Sprintf("argument %d of the container's health check %s", i, why))
		}
	}
	labels := map[string]string{}
	for name, value := range c.Config.Labels {
		// Ours hold the profile's document, which is judged by itself.
		if !strings.HasPrefix(name, sdk.LabelPrefix) {
			labels[name] = value
		}
	}
	maps.Copy(labels, c.own.Identity.Labels)
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if why, is := isolation.Variable(name, labels[name]); is {
			c.Failed(sdk.CheckArguments, "the label "+isolation.Quote(name)+" "+why)
		}
	}
	c.Passed(sdk.CheckArguments, fmt.Sprintf("no argument of the container's command and none of %d labels is a credential", len(labels)))
}

func (c confinement) canary(opts sdk.InspectOptions, raw []byte) {
	if opts.Canary == "" || opts.CanaryValue == "" {
		c.Unknown(sdk.CheckSecrets, "the sandbox has no secret to look for")
		return
	}
	if len(raw) == 0 {
		c.Unknown(sdk.CheckSecrets, "what the engine says of the container could not be searched")
		return
	}
	if bytes.Contains(raw, []byte(string(opts.CanaryValue))) {
		c.Failed(sdk.CheckSecrets, "the secret's value is in what the engine says of the container")
	}
	c.Passed(sdk.CheckSecrets, "the secret's value is nowhere in what the engine says of the container")
}

func (c confinement) mounted() {
	for _, m := range c.Mounts {
		if c.isOwn(m) || m.Type == mount.TypeTmpfs {
			continue
		}
		what := "the host's " + isolation.Quote(m.Source)
		if m.Type != mount.TypeBind {
			what = "the " + string(m.Type) + " " + isolation.Quote(m.Name) + ", which was not made with the sandbox,"
		}
		may := "read"
		if m.RW {
			may = "written"
		}
		check := isolation.Place(m.Source)
		if check == sdk.CheckMounts {
			check = isolation.Place(m.Destination)
		}
		c.Failed(check, fmt.Sprintf("%s is mounted at %s and may be %s", what, isolation.Quote(m.Destination), may))
	}
	for _, from := range c.HostConfig.VolumesFrom {
		c.Failed(sdk.CheckMounts, "it has the volumes of the container "+isolation.Quote(from))
	}
	c.Passed(sdk.CheckMounts, fmt.Sprintf("%d mounts, none of the host or of others", len(c.Mounts)))
	c.Passed(sdk.CheckEngine, "no socket of a container engine is mounted")
	c.Passed(sdk.CheckAgents, "no socket of an agent is mounted")
	c.Passed(sdk.CheckTokens, "no token is mounted")
}

func (c confinement) devices() {
	const check = sdk.CheckDevices
	for _, d := range c.HostConfig.Devices {
		c.Failed(check, "the host's device "+isolation.Quote(d.PathOnHost)+" is "+isolation.Quote(d.PathInContainer))
	}
	for _, r := range c.HostConfig.DeviceRequests {
		c.Failed(check, "devices of the driver "+isolation.Quote(r.Driver)+" are asked for")
	}
	for _, rule := range c.HostConfig.DeviceCgroupRules {
		c.Failed(check, "devices are let through by the rule "+isolation.Quote(rule))
	}
	c.Passed(check, "no device of the host is given to it")
}

func (c confinement) namespaces() {
	const check = sdk.CheckNamespaces
	h := c.HostConfig
	for kind, mode := range map[string]string{
		"process": string(h.PidMode), "IPC": string(h.IpcMode), "host name": string(h.UTSMode), "network": string(h.NetworkMode),
	} {
		if mode == "host" || strings.HasPrefix(mode, "container:") || strings.HasPrefix(mode, "ns:") {
			c.Failed(check, fmt.Sprintf("its %s namespace is that of %s", kind, isolation.Quote(mode)))
		}
	}
	if h.UsernsMode == "host" {
		c.Failed(check, "its users are the host's, although the engine keeps them apart")
	}
	if c.NetworkSettings == nil {
		c.Unknown(check, "the engine does not say which networks it is on")
	} else {
		for _, name := range slices.Sorted(maps.Keys(c.NetworkSettings.Networks)) {
			if !slices.Contains([]string{"none", "bridge", "podman", networkName(c.own.ID)}, name) {
				c.Failed(check, "it is on the network "+isolation.Quote(name)+", which was not made with it")
			}
		}
	}
	c.Passed(check, "its processes, memory, host name and network are its own")
}

// loosened are the security options that take a protection away. Old engines
// write a colon where newer ones have an equals sign.
var loosened = []string{"seccomp=unconfined", "apparmor=unconfined", "label=disable", "systempaths=unconfined"}

func (c confinement) privileges() {
	const check = sdk.CheckPrivileges
	h := c.HostConfig
	if h.Privileged {
		c.Failed(check, "it is privileged")
	}
	for _, name := range h.CapAdd {
		name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
		if !slices.Contains(isolation.HarmlessCapabilities, name) {
			c.Failed(check, "it has the capability "+isolation.Quote(name))
		}
	}
	for _, group := range h.GroupAdd {
		c.Failed(check, "its processes belong to the further group "+isolation.Quote(group))
	}
	tight := false
	for _, option := range h.SecurityOpt {
		option = strings.Replace(option, ":", "=", 1)
		if slices.Contains(loosened, option) {
			c.Failed(check, "it has the security option "+isolation.Quote(option))
		}
		tight = tight || option == "no-new-privileges" || option == "no-new-privileges=true"
	}
	if !tight {
		c.Failed(check, "a set-user-id program gives more rights: it has no no-new-privileges")
	}
	if len(h.MaskedPaths) == 0 || len(h.ReadonlyPaths) == 0 {
		c.Failed(check, "no path of /proc and /sys is masked")
	}
	c.Passed(check, "it is not privileged, has no capability beyond an engine's default set, and gives no new privileges")
}
