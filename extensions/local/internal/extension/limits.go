// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import (
	"crypto/rand"
	"encoding/base32"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// limits refuses a limit that can't be held here, and prepares the others.
func (p *plan) limits(opts sdk.CreateOptions) error {
	l := opts.Profile.Limits
	if l == nil {
		return nil
	}
	if l.Wall != "" {
		wall, err := time.ParseDuration(l.Wall)
		if err != nil || wall <= 0 {
			return sdk.Invalid("limits.wall", "%q is not a duration longer than zero", clip(l.Wall))
		}
		p.wall = wall
	}
	if l.Disk != "" {
		size, err := parseSize(l.Disk)
		if err != nil {
			return sdk.Invalid("limits.disk", "%v", err)
		}
		p.config.Disk = size
	}
	if l.Pids != 0 {
		return sdk.Unsupported("limits.pids", "gVisor has no bound on the number of processes in a sandbox")
	}
	groups := findCgroups()
	if l.Memory != "" {
		size, err := parseSize(l.Memory)
		if err != nil {
			return sdk.Invalid("limits.memory", "%v", err)
		}
		if size < minMemory {
			return sdk.Invalid("limits.memory", "%s is less than the %d MiB that the sandbox itself needs", clip(l.Memory), minMemory>>20)
		}
		if !groups.can("memory") {
			return noCgroup("limits.memory")
		}
		p.memory = size
	}
	if l.CPUs != 0 {
		if l.CPUs < 0.01 || l.CPUs > 4096 {
			return sdk.Invalid("limits.cpus", "%v is not between 0.01 and 4096", l.CPUs)
		}
		if !groups.can("cpu") {
			return noCgroup("limits.cpus")
		}
		p.cpus = l.CPUs
	}
	if p.memory > 0 || p.cpus > 0 {
		p.groups = groups
		p.cgroups = groups.paths(opts.ID, p.memory > 0, p.cpus > 0)
	}
	return nil
}

// minMemory is what runtime and supervisor need before the first process.
const minMemory = 96 << 20

func noCgroup(path string) error {
	return &sdk.Error{Kind: sdk.ErrUnsupported, Path: path, Message: "this user can't make control groups on this machine, so the limit can't be held",
		Advice: "run as root, have the cgroup delegated, or remove the limit"}
}

func randomText(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").EncodeToString(b)[:n]
}
