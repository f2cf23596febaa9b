// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// What a create asks for, held against what can be done. Everything that can
// be refused is refused here, before anything exists.

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The bounds of what a create may carry.
const (
	maxSecrets = 4 << 20
	maxFiles   = 32 << 20
)

// egress returns the profile's egress policy.
func egress(p sdk.Profile) string {
	if p.Network == nil || p.Network.Egress == "" {
		return sdk.EgressNone
	}
	return p.Network.Egress
}

// validate refuses what needs no engine to be refused. What a snapshot was
// first made from does not matter to who restores it.
func validate(opts sdk.CreateOptions, now time.Time, restores bool) error {
	p := opts.Profile
	if err := opts.Check(now); err != nil {
		return err
	}
	switch {
	case restores:
	case p.Compose != nil:
		return sdk.Unsupported("compose", "the docker backend makes one container: use the compose_ssh backend")
	case p.Machine != nil:
		return sdk.Unsupported("machine", "the docker backend runs no machine images")
	case p.Template != "":
		return sdk.Unsupported("template", "the docker backend has no templates")
	case p.Image == "" && p.Build == nil:
		return sdk.Unsupported("image", "the docker backend makes a sandbox from an image, and none is named")
	}
	if opts.OnExpiry != "" && opts.OnExpiry != sdk.OnExpiryDestroy {
		return sdk.Unsupported("on_expiry", "the docker backend can destroy at the deadline, not %q", clip(string(opts.OnExpiry)))
	}
	if opts.IdleTimeout != 0 || p.IdleTimeout != "" {
		return sdk.Unsupported("idle_timeout", "the docker backend has no idle clock")
	}
	return firstError(func() error { return validateNetwork(p) }, func() error { return validateProcess(p) }, func() error { return validateContent(opts) })
}

func firstError(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func validateNetwork(p sdk.Profile) error {
	switch egress(p) {
	case sdk.EgressNone, sdk.EgressOpen, sdk.EgressDeny:
	default:
		return sdk.Invalid("network.egress", "%q is none of deny, open and none", clip(p.Network.Egress))
	}
	if p.Network != nil && len(p.Network.Allow) > 0 {
		return sdk.Unsupported("network.allow", "the docker backend can deny all egress, but has no allow-list")
	}
	switch p.Publish {
	case "", "loopback", "host":
	default:
		return sdk.Invalid("publish", "%q is neither loopback nor host", clip(p.Publish))
	}
	for name, port := range p.Ports {
		if !sdk.IsName(name, 64) {
			return sdk.Invalid("ports", "%q is not a port's name", clip(name))
		}
		if port < 1 || port > 65535 {
			return sdk.Invalid("ports."+name, "%d is not a port", port)
		}
	}
	return nil
}

func validateProcess(p sdk.Profile) error {
	if p.Workdir != "" && !path.IsAbs(p.Workdir) {
		return sdk.Invalid("workdir", "%q is not an absolute path", clip(p.Workdir))
	}
	for i, arg := range p.Command {
		if strings.ContainsRune(arg, 0) || i == 0 && arg == "" {
			return sdk.Invalid(fmt.Sprintf("command[%d]", i), "is empty or holds a zero byte")
		}
	}
	return nil
}

func validateContent(opts sdk.CreateOptions) error {
	for at, env := range map[string]map[string]string{"profile.env": opts.Profile.Env, "env": opts.Env} {
		for name, value := range env {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				return sdk.Invalid(at, "%q is not a variable that a process can have", clip(name))
			}
		}
	}
	size := 0
	for name, value := range opts.Secrets {
		if !sdk.IsName(name, 128) {
			return sdk.Invalid("secrets", "%q is not a secret's name: letters, digits, _ . and - make one", clip(name))
		}
		if len(name)+len(value) > guestwire.MaxSecret-1 {
			return sdk.Invalid("secrets."+name, "%d bytes, and %d is the most", len(value), guestwire.MaxSecret-1-len(name))
		}
		size += len(value)
	}
	if size > maxSecrets {
		return sdk.Invalid("secrets", "%d bytes, and %d is the most", size, maxSecrets)
	}
	size = 0
	for name, file := range opts.Profile.Files {
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || strings.ContainsRune(name, 0) {
			return sdk.Invalid("files", "%q is not a clean absolute path", clip(name))
		}
		if within(name, guestwire.Dir) || within(name, guestwire.Secrets) {
			return sdk.Invalid("files", "%q lies where sandboxer keeps its own", clip(name))
		}
		if _, err := fileMode(file); err != nil {
			return sdk.Invalid("files", "%s: mode %q is not octal", clip(name), clip(file.Mode))
		}
		size += len(file.Content)
	}
	if size > maxFiles {
		return sdk.Invalid("files", "%d bytes, and %d is the most", size, maxFiles)
	}
	return nil
}

func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

func fileMode(f sdk.File) (int64, error) {
	if f.Mode == "" {
		return 0o644, nil
	}
	mode, err := strconv.ParseInt(f.Mode, 8, 32)
	if err != nil || mode < 0 || mode > 0o777 {
		return 0, fmt.Errorf("mode %q", f.Mode)
	}
	return mode, nil
}

// limits are a profile's limits in numbers.
type limits struct {
	nanoCPUs, memory, pids int64
	disk                   string
	wall                   time.Duration
}

// minMemory is what the engine itself asks for.
const minMemory = 6 << 20

// limitsOf refuses a limit that this engine can't hold.
func limitsOf(p sdk.Profile, here sdk.Capabilities) (l limits, err error) {
	if p.Limits == nil {
		return l, nil
	}
	asked := map[sdk.Feature]string{}
	if p.Limits.CPUs != 0 {
		asked[sdk.FeatureCPULimit] = "limits.cpus"
		if math.IsNaN(p.Limits.CPUs) || p.Limits.CPUs < 0.01 || p.Limits.CPUs > 1024 {
			return l, sdk.Invalid("limits.cpus", "%g is not between 0.01 and 1024", p.Limits.CPUs)
		}
		l.nanoCPUs = int64(p.Limits.CPUs * 1e9)
	}
	if p.Limits.Memory != "" {
		asked[sdk.FeatureMemoryLimit] = "limits.memory"
		if l.memory, err = sdk.ParseSize(p.Limits.Memory); err != nil {
			return l, sdk.Invalid("limits.memory", "%v", err)
		}
		if l.memory < minMemory {
			return l, sdk.Invalid("limits.memory", "%s is less than the %d MiB that a container needs", clip(p.Limits.Memory), minMemory>>20)
		}
	}
	if p.Limits.Pids != 0 {
		asked[sdk.FeaturePidsLimit] = "limits.pids"
		if l.pids = p.Limits.Pids; l.pids < 0 {
			return l, sdk.Invalid("limits.pids", "%d is not more than zero", l.pids)
		}
	}
	if p.Limits.Disk != "" {
		asked[sdk.FeatureDiskLimit] = "limits.disk"
		bytes, err := sdk.ParseSize(p.Limits.Disk)
		if err != nil {
			return l, sdk.Invalid("limits.disk", "%v", err)
		}
		l.disk = strconv.FormatInt(bytes, 10)
	}
	if p.Limits.Wall != "" {
		if l.wall, err = time.ParseDuration(p.Limits.Wall); err != nil || l.wall <= 0 {
			return l, sdk.Invalid("limits.wall", "%q is not a duration longer than zero", clip(p.Limits.Wall))
		}
	}
	for _, feature := range slices.Sorted(maps.Keys(asked)) {
		if found := here.Of(feature); found.Class == sdk.ClassUnsupported {
			return l, sdk.Unsupported(asked[feature], "%s is unsupported on this engine: %s", feature, found.Reason)
		}
	}
	return l, nil
}
