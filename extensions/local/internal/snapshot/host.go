// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package snapshot

// What a snapshot needs to be the same where it is restored. The runtime
// itself refuses another version, but silently accepts changed files below
// the writable layer; so that is checked here, and every difference is named.

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Host is what matters about the machine that a snapshot was made on.
type Host struct {
	GVisor   string   `json:"gvisor"`
	Init     string   `json:"init"`
	Arch     string   `json:"arch"`
	CPU      []string `json:"cpu"`      // features
	System   string   `json:"system"`   // name and version of the distribution
	Packages string   `json:"packages"` // state of the package database
}

// ThisHost describes this machine.
func ThisHost() Host {
	return Host{GVisor: runsc.Version(), Init: initproc.Version, Arch: runtime.GOARCH, CPU: cpuFeatures(), System: system(), Packages: packages()}
}

// Differences names what stands in the way of a restore here.
func (m Manifest) Differences(here Host) []string {
	var diffs []string
	differ := func(what, was, is string) {
		if was != is {
			diffs = append(diffs, fmt.Sprintf("%s was %q and is %q", what, was, is))
		}
	}
	differ("architecture", m.Host.Arch, here.Arch)
	if m.Kind == sdk.SnapshotMemory {
		differ("gVisor", m.Host.GVisor, here.GVisor)
		differ("the sandbox's init", m.Host.Init, here.Init)
		var missing []string
		for _, f := range m.Host.CPU {
			if !slices.Contains(here.CPU, f) {
				missing = append(missing, f)
			}
		}
		if len(missing) > 0 {
			diffs = append(diffs, "the processor lacks "+strings.Join(missing[:min(len(missing), 8)], ", "))
		}
	}
	if m.Image == "" {
		// The host's own root is below the writable layer.
		differ("system", m.Host.System, here.System)
		if m.Kind == sdk.SnapshotMemory && m.Host.Packages != here.Packages {
			diffs = append(diffs, "packages of the system were changed")
		}
	}
	return diffs
}

func cpuFeatures() []string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		name, value, ok := strings.Cut(scan.Text(), ":")
		if name = strings.TrimSpace(name); ok && (name == "flags" || name == "Features") {
			features := strings.Fields(value)
			slices.Sort(features)
			return features
		}
	}
	return nil
}

func system() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "unknown"
	}
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = strings.Trim(value, `"'`)
	}
	return strings.TrimSpace(values["ID"] + " " + values["VERSION_ID"])
}

// packages identifies the state of the package database by the size and
// change time of its files, whichever system's it is.
func packages() string {
	h := sha256.New()
	for _, path := range []string{"/var/lib/dpkg/status", "/lib/apk/db/installed", "/usr/lib/sysimage/rpm/rpmdb.sqlite",
		"/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/Packages", "/var/lib/pacman/local", "/usr/lib/os-release"} {
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintf(h, "%s %d %d\n", path, info.Size(), info.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
