// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// What a profile may ask for: where the document claims it, it holds; where it
// does not, the create is refused and never silently weaker.

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func policyRules() []Rule {
	egress := func(name string, feature sdk.Feature, network sdk.Network) Rule {
		return Rule{
			ID: "network/" + name, Title: "network." + describe(network) + " is accepted where it is claimed, and refused where not", about: []sdk.Feature{feature},
			try: func(c *check) { c.accepted(feature, "network", func(p *sdk.Profile) { p.Network = &network }) },
		}
	}
	return []Rule{
		egress("none", sdk.FeatureEgressNone, sdk.Network{Egress: sdk.EgressNone}),
		egress("deny", sdk.FeatureEgressDeny, sdk.Network{Egress: sdk.EgressDeny}),
		egress("allow_cidr", sdk.FeatureEgressCIDR, sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"192.0.2.0/24:443"}}),
		egress("allow_domain", sdk.FeatureEgressDomain, sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"allowed.example:443"}}),
		egress("open", sdk.FeatureEgressOpen, sdk.Network{Egress: sdk.EgressOpen}),
		{ID: "image/reference", Title: "an image by reference is refused where it is not claimed", about: []sdk.Feature{sdk.FeatureImagePull}, try: imageReference},
		{ID: "image/file", Title: "an image by path is taken where it is claimed, and refused where not", about: []sdk.Feature{sdk.FeatureImageFile}, try: imageFile},
		{ID: "image/host_root", Title: "a sandbox is made without an image where that is claimed, and refused where not", about: []sdk.Feature{sdk.FeatureHostRoot}, try: imageHostRoot},
		{ID: "ports/refused", Title: "ports are refused where they are not claimed", about: []sdk.Feature{sdk.FeaturePorts}, try: portsRefused},
		{ID: "ports/endpoint", Title: "a port of the profile answers at its endpoint", Features: []sdk.Feature{sdk.FeaturePorts}, commands: []Command{CommandServe}, try: portsEndpoint},
	}
}

func describe(n sdk.Network) string {
	if len(n.Allow) > 0 {
		return fmt.Sprintf("allow = %q", n.Allow)
	}
	return "egress = " + n.Egress
}

// accepted makes a sandbox with a change of the profile where its feature is
// claimed, and otherwise fails unless that is refused.
func (c *check) accepted(feature sdk.Feature, path string, change func(p *sdk.Profile)) (target sdk.Target, made bool) {
	opts := c.creation(change)
	if !c.claims(feature) {
		c.refused(opts, feature, path)
		return target, false
	}
	c.destroyLater(c.kit.a, opts)
	s, err := c.kit.a.Create(c.ctx, opts)
	c.failIf(err != nil, "%s is claimed as %s, and a create that asks for it is refused: %v", feature, c.kit.report.Probed.Of(feature).Class, err)
	target = targetOf(s.Sandbox, opts)
	c.awaitReady(c.kit.a, s.Sandbox, target)
	return target, true
}

func (c *check) leaveOut(format string, args ...any) {
	c.row.Reason = clip(fmt.Sprintf(format, args...))
	panic(ended{SuiteExcluded})
}

func imageReference(c *check) {
	if c.claims(sdk.FeatureImagePull) {
		c.leaveOut("the kit pulls no image")
	}
	c.refused(c.creation(func(p *sdk.Profile) { p.Image, p.Command = "registry.invalid/conformance:1", nil }), sdk.FeatureImagePull, "image")
}

func imageFile(c *check) {
	if !c.claims(sdk.FeatureImageFile) {
		c.refused(c.creation(func(p *sdk.Profile) { p.Image, p.Command = "/conformance/image.tar", nil }), sdk.FeatureImageFile, "image")
		return
	}
	if c.kit.suite.ImageFile == "" {
		c.leaveOut("the suite names no image")
	}
	c.accepted(sdk.FeatureImageFile, "image", func(p *sdk.Profile) { p.Image = c.kit.suite.ImageFile })
}

func imageHostRoot(c *check) {
	c.accepted(sdk.FeatureHostRoot, "image", func(p *sdk.Profile) {
		p.Image, p.Build, p.Compose, p.Machine, p.Template = "", nil, nil, nil, ""
	})
}

func portsRefused(c *check) {
	if c.claims(sdk.FeaturePorts) {
		c.note("they are claimed: see ports/endpoint")
		return
	}
	c.refused(c.creation(func(p *sdk.Profile) { p.Ports = map[string]int{"web": 8080} }), sdk.FeaturePorts, "ports")
}

func portsEndpoint(c *check) {
	const port = 8080
	s, target := c.ready(c.creation(func(p *sdk.Profile) {
		p.Ports, p.Command = map[string]int{"web": port}, c.commands().Serve(port)
	}))
	for name, seen := range map[string]sdk.Sandbox{"the instance": s, "another instance": c.get(c.kit.b, target)} {
		endpoint := seen.Endpoints["web"]
		c.failIf(endpoint == "", "%s names no endpoint: %v", name, seen.Endpoints)
		var last error
		c.failIf(!c.soon(func() bool { last = answers(c.ctx, endpoint); return last == nil }), "%s: %v", endpoint, last)
		c.note("%s answers", endpoint)
	}
}

// answers talks to a serving command.
func answers(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	said, err := io.ReadAll(io.LimitReader(conn, 4096))
	if err == nil && !strings.Contains(string(said), "conformance") {
		err = fmt.Errorf("it said %.80q", said)
	}
	return err
}

func limitRules() []Rule {
	rule := func(name string, feature sdk.Feature, limit func(l Limits) sdk.Limits, beyond func(c *check, target sdk.Target), commands ...Command) Rule {
		return Rule{
			ID: "limits/" + name, Title: "limits." + name + " holds where it is claimed, and is refused where not", about: []sdk.Feature{feature},
			try: func(c *check) {
				limits := limit(c.kit.suite.Limits)
				target, made := c.accepted(feature, "limits."+name, func(p *sdk.Profile) { p.Limits = &limits })
				if !made {
					return
				}
				for _, command := range commands {
					if reason, lacks := c.commands().Lacks[command]; lacks {
						c.leaveOut("it is accepted, and what goes beyond it can't be tried: no command %s: %s", command, reason)
					}
				}
				if !c.claims(sdk.FeatureExec) {
					c.leaveOut("it is accepted, and what goes beyond it can't be tried: exec is unsupported")
				}
				beyond(c, target)
			},
		}
	}
	return []Rule{
		rule("cpus", sdk.FeatureCPULimit, func(l Limits) sdk.Limits { return sdk.Limits{CPUs: l.CPUs} }, limitCPUs, CommandSpin),
		rule("memory", sdk.FeatureMemoryLimit, func(l Limits) sdk.Limits { return sdk.Limits{Memory: mebibytes(l.Memory)} }, limitMemory, CommandHog),
		rule("pids", sdk.FeaturePidsLimit, func(l Limits) sdk.Limits { return sdk.Limits{Pids: l.Pids} }, limitPids, CommandForks),
		rule("disk", sdk.FeatureDiskLimit, func(l Limits) sdk.Limits { return sdk.Limits{Disk: mebibytes(l.Disk)} }, limitDisk, CommandFill),
		{ID: "limits/wall", Title: "limits.wall bounds the life, whatever is extended", Features: []sdk.Feature{sdk.FeatureDeadline, sdk.FeatureExtend}, try: limitWall},
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%dMiB", n>>20) }

// busy is how long the processor's work takes in a sandbox.
func (c *check) busy(target sdk.Target, work int) time.Duration {
	began := c.now()
	c.exec(target, c.commands().Spin(work))
	return c.now().Sub(began)
}

func limitCPUs(c *check, target sdk.Target) {
	_, free := c.ready(c.creation())
	work, unlimited := 100, time.Duration(0)
	// Enough work that starting a command is little beside it, which takes
	// long by itself on a backend that is far or busy.
	nothing := c.busy(free, 1)
	for range 16 {
		unlimited = min(c.busy(free, work), c.busy(free, work))
		nothing = min(nothing, c.busy(free, 1))
		if unlimited > 500*time.Millisecond && unlimited > 4*nothing {
			break
		}
		work *= 2
	}
	// Both have to share with whatever else the machine does, so one that is
	// busy makes the limit hard to see. Twice as long, once, is seeing it.
	const tries = 5
	for range tries {
		bound := c.busy(target, work)
		c.note("the same work took %s, and %s with %g processors", unlimited, bound, c.kit.suite.Limits.CPUs)
		if bound > 2*unlimited {
			return
		}
		unlimited = min(unlimited, c.busy(free, work))
	}
	c.fail("with %g processors work never took twice as long, in %d tries", c.kit.suite.Limits.CPUs, tries)
}

func limitMemory(c *check, target sdk.Target) {
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Hog(3 * c.kit.suite.Limits.Memory), Timeout: c.kit.suite.Timing.Grace})
	c.failIf(err == nil && got.ExitCode == 0 && !got.TimedOut, "a command that held %s ended well, and the limit is %s", mebibytes(3*c.kit.suite.Limits.Memory), mebibytes(c.kit.suite.Limits.Memory))
	c.note("holding %s: %s, %v", mebibytes(3*c.kit.suite.Limits.Memory), got, err)
}

func limitPids(c *check, target sdk.Target) {
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Forks(2 * c.kit.suite.Limits.Pids), Timeout: c.kit.suite.Timing.Grace})
	c.failIf(err == nil && got.ExitCode == 0 && !got.TimedOut, "%d processes were started, and the limit is %d", 2*c.kit.suite.Limits.Pids, c.kit.suite.Limits.Pids)
	c.note("starting %d processes: %s, %v", 2*c.kit.suite.Limits.Pids, got, err)
}

func limitDisk(c *check, target sdk.Target) {
	// In a directory that is on no tmpfs, whose files would count as memory.
	const name = "/srv/conformance-fill"
	fill := func(bytes int64) (output, error) {
		return c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Fill(name, bytes)})
	}
	got, err := fill(c.kit.suite.Limits.Disk / 4)
	c.failIf(err != nil || got.ExitCode != 0, "writing a quarter of the limit: %s, %v", got, err)
	got, err = fill(2 * c.kit.suite.Limits.Disk)
	c.failIf(err == nil && got.ExitCode == 0, "%s were written, and the limit is %s", mebibytes(2*c.kit.suite.Limits.Disk), mebibytes(c.kit.suite.Limits.Disk))
	c.note("writing %s: %s, %v", mebibytes(2*c.kit.suite.Limits.Disk), got, err)
}

func limitWall(c *check) {
	opts := c.creation(func(p *sdk.Profile) { p.Limits = &sdk.Limits{Wall: "30m"} })
	s, target := c.create(opts)
	latest := c.now().Add(30 * time.Minute)
	_, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, opts.MaxExpiresAt))
	after := c.get(c.kit.b, target).Lease
	c.failIf(after.ExpiresAt.After(latest.Add(time.Second)), "with limits.wall = 30m it was extended to %s, %s from now (%v)", after.ExpiresAt, after.ExpiresAt.Sub(c.now()).Round(time.Second), err)
}
