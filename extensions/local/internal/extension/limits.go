// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Limits: which of them a control group of the host holds, which the sandbox
// itself does, and which are measured.

import (
	"crypto/rand"
	"encoding/base32"
	"runtime"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/cgroup"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// limits refuses a limit that can't be held here, and prepares the others.
func (p *plan) limits(opts sdk.CreateOptions) error {
	l := opts.Profile.Limits
	if l == nil {
		return nil
	}
	p.groups = cgroup.Find().Proven()
	if err := requiredLimits(opts.Profile, limitGuarantees(p.groups)); err != nil {
		return err
	}
	if l.Wall != "" {
		wall, err := time.ParseDuration(l.Wall)
		if err != nil || wall <= 0 {
			return sdk.Invalid("limits.wall", "%q is not a duration longer than zero", clip(l.Wall))
		}
		p.wall = wall
	}
	if l.Disk != "" {
		size, err := sdk.ParseSize(l.Disk)
		if err != nil {
			return sdk.Invalid("limits.disk", "%v", err)
		}
		p.config.Disk = size
	}
	if l.Memory != "" {
		size, err := sdk.ParseSize(l.Memory)
		if err != nil {
			return sdk.Invalid("limits.memory", "%v", err)
		}
		if size < minMemory {
			return sdk.Invalid("limits.memory", "%s is less than the %d MiB that the sandbox itself needs", clip(l.Memory), minMemory>>20)
		}
		if p.groups.Can(cgroup.Memory) {
			p.hard.Memory = size
		} else {
			p.config.SoftMemory = size
		}
	}
	if l.CPUs != 0 {
		if l.CPUs < 0.01 || l.CPUs > 4096 {
			return sdk.Invalid("limits.cpus", "%v is not between 0.01 and 4096", l.CPUs)
		}
		if !p.groups.Can(cgroup.CPU) {
			return &sdk.Error{Kind: sdk.ErrUnsupported, Path: "limits.cpus", Message: "this user can't make control groups on this machine, so the limit can't be held",
				Advice: "run as root, have the cgroup delegated, or remove the limit"}
		}
		p.hard.CPUs = l.CPUs
	}
	if l.Pids < 0 {
		return sdk.Invalid("limits.pids", "%d is less than 1", l.Pids)
	}
	if l.Pids > 0 {
		p.config.Pids = l.Pids
		if p.groups.Can(cgroup.Pids) {
			p.hard.Pids = hostTasks(l.Pids)
		}
	}
	p.cgroups = p.groups.Paths(opts.ID, p.hard)
	if p.config.Pids > 0 || p.config.SoftMemory > 0 {
		p.config.Process.Group = opts.ID
	}
	return nil
}

// minMemory is what runtime and supervisor need before the first process.
const minMemory = 96 << 20

// hostTasks is how many tasks of the host a sandbox with so many processes may
// have: two for each and one more for each processor, with what the runtime
// itself and its pool of spare ones take. It never stops a sandbox that keeps
// to its limit, and is what stops one that has got round it.
func hostTasks(pids int64) int64 { return pids*int64(2+runtime.NumCPU()) + 512 }

// limitGuarantees is what can be promised of each limit with the groups that
// can be made.
func limitGuarantees(groups cgroup.Groups) sdk.Capabilities {
	by := "control group (" + groups.Version() + ")"
	c := sdk.Capabilities{
		sdk.FeatureCPULimit: {Class: sdk.ClassUnsupported, Reason: "this user can't make control groups here"},
		sdk.FeatureMemoryLimit: {Class: sdk.ClassBestEffort,
			Reason: "this user can't make control groups here: measured each second, without the runtime's own 40 MB, and the sandbox is ended"},
		sdk.FeaturePidsLimit: {Class: sdk.ClassBestEffort,
			Reason: "the sandbox's own kernel starts no more; root in there can get round that, and is ended within a second"},
	}
	if groups.Can(cgroup.CPU) {
		c[sdk.FeatureCPULimit] = sdk.Guarantee{Class: sdk.ClassEnforced, Reason: by}
	}
	if groups.Can(cgroup.Memory) {
		c[sdk.FeatureMemoryLimit] = sdk.Guarantee{Class: sdk.ClassEnforced, Reason: by + "; about 40 MB are the runtime's own, and exceeding it ends the whole sandbox"}
	}
	return c
}

// requiredLimits holds what a profile requires of its limits against what this
// process can do now: a probe may have been another user's.
func requiredLimits(p sdk.Profile, found sdk.Capabilities) error {
	for feature, guarantee := range found {
		if need, ok := p.Requires[feature]; ok && !guarantee.Class.Satisfies(need) {
			return sdk.Unsupported("requires."+string(feature), "%s is %s here, %s is needed (%s)", feature, guarantee.Class, need, guarantee.Reason)
		}
	}
	return nil
}

// exceeded says which limit ended a sandbox, where one did: the supervisor
// wrote it down, or the kernel counts it for as long as the groups are there.
func exceeded(r record.Record) string {
	l := r.Profile.Limits
	if l == nil || r.Exceeded != "" {
		return r.Exceeded
	}
	out, ok := cgroup.OutOf(cgroup.Find().Of(r.ID, r.Cgroups))
	if !ok {
		return ""
	}
	switch out.Controller {
	case cgroup.Memory:
		limit, _ := sdk.ParseSize(l.Memory)
		return supervisor.MemoryExceeded(limit, out.Peak)
	default:
		return supervisor.PidsExceeded(l.Pids, 0)
	}
}

func randomText(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").EncodeToString(b)[:n]
}
