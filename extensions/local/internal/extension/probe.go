// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Probe boots a throw-away sandbox, because nothing less tells whether one
// can be booted. The verdict is kept for this boot of the machine and this
// binary.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/cgroup"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// verdict is a probe's result with what it is true for.
type verdict struct {
	Boot    string
	Program string
	UID     int
	Result  sdk.ProbeResult
}

// Probe implements [sdk.Extension].
func (e *Extension) Probe(ctx context.Context, _ sdk.ProbeOptions) (sdk.ProbeResult, error) {
	problem, advice := e.store.checkProgram()
	if problem != "" {
		return e.unusable(problem, advice), nil
	}
	if err := e.store.open(); err != nil {
		return e.unusable(err.Error(), "set state_dir to a directory that this user can write"), nil
	}
	program, err := e.store.program()
	if err != nil {
		return e.unusable(err.Error(), "set state_dir to a directory with room for 100 MB"), nil
	}
	want := verdict{Boot: record.BootID(), Program: program.digest, UID: os.Geteuid()}
	defer program.Close()
	path := e.store.path("probe.json")
	if kept, err := readVerdict(path); err == nil && kept.Boot == want.Boot && kept.Boot != "" && kept.Program == want.Program && kept.UID == want.UID && kept.Result.Usable {
		// Groups may have been delegated, or taken away, since.
		maps.Copy(kept.Result.Capabilities, limitGuarantees(cgroup.Find().Proven()))
		kept.Result.Instance = e.store.instance()
		return kept.Result, nil
	}
	want.Result = e.tryBoot(ctx)
	want.Result.Instance = e.store.instance()
	if err := ctx.Err(); err != nil {
		return sdk.ProbeResult{}, err
	}
	whole := want.Result.Usable && want.Result.Capabilities.Of(sdk.FeatureEgressDomain).Class == sdk.ClassEnforced
	if data, err := json.Marshal(want); err == nil && whole {
		// Only good news is kept: what was wrong may be put right at any time.
		_ = record.WriteFile(path, data, 0o600)
	}
	return want.Result, nil
}

func readVerdict(path string) (v verdict, err error) {
	f, err := os.Open(path)
	if err != nil {
		return v, err
	}
	defer f.Close()
	return v, json.NewDecoder(io.LimitReader(f, 1<<20)).Decode(&v)
}

func (e *Extension) unusable(reason, advice string) sdk.ProbeResult {
	return sdk.ProbeResult{Reason: reason, Advice: advice, Capabilities: e.capabilities(false), Details: details()}
}

// maxReason bounds the error in a guarantee's reason.
const maxReason = 400

// tryBoot finds out what can be started here.
func (e *Extension) tryBoot(ctx context.Context) sdk.ProbeResult {
	begun := time.Now()
	if err := e.try(ctx, sdk.Profile{Name: "probe"}); err != nil {
		reason, advice := cause(err)
		return e.unusable(reason, advice)
	}
	took := time.Since(begun).Round(time.Millisecond)
	result := sdk.ProbeResult{Usable: true, Capabilities: e.capabilities(true), Details: details()}
	result.Capabilities[sdk.FeatureEgressCIDR], result.Capabilities[sdk.FeatureEgressDomain] = allowGuarantees(
		e.try(ctx, sdk.Profile{Name: "probe", Network: &sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"probe.invalid:443"}}}))
	result.Details = append(result.Details, sdk.Detail{Name: "boot", Value: took.String()})
	return result
}

// try makes a sandbox in a fleet of its own and throws it away.
func (e *Extension) try(ctx context.Context, profile sdk.Profile) error {
	id := "sbx-" + randomText(20)
	now := e.now()
	const fleet = "sandboxer-probe"
	_, err := e.Create(ctx, sdk.CreateOptions{
		ID: id, Identity: sdk.Identity{ID: id, Fleet: fleet, CreatedAt: now, Actor: "probe"},
		Profile: profile, ExpiresAt: now.Add(time.Minute),
	})
	if err != nil {
		return err
	}
	_, err = e.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: id, Fleet: fleet}})
	return err
}

// allowGuarantees are what is promised about an allow-list, once one has been
// tried: a kernel without veth, or a user who may not make network namespaces,
// has none.
func allowGuarantees(tried error) (cidr, domain sdk.Guarantee) {
	if tried != nil {
		no := sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: "a sandbox with an allow-list can't be started here: " + clipAt(tried.Error(), maxReason)}
		return no, no
	}
	cidr = sdk.Guarantee{Class: sdk.ClassEnforced, Reason: "TCP alone, decided and carried by the supervisor; nothing else leaves"}
	domain = sdk.Guarantee{Class: sdk.ClassEnforced, Reason: "TCP alone, to names that the sandbox's own name server answers for, so DNS is covered; what a server behind an allowed name forwards to is not seen"}
	return cidr, domain
}

// cause names what stands in the way, as far as it shows.
func cause(err error) (reason, advice string) {
	reason = err.Error()
	text := strings.ToLower(reason)
	denied := strings.Contains(text, "operation not permitted") || strings.Contains(text, "permission denied")
	switch {
	case zero("/proc/sys/user/max_user_namespaces"):
		return "user namespaces are switched off (user.max_user_namespaces is 0): " + reason, "set the sysctl user.max_user_namespaces, or configure another backend"
	case os.Geteuid() != 0 && zero("/proc/sys/kernel/unprivileged_userns_clone"):
		return "user namespaces are switched off for users (kernel.unprivileged_userns_clone is 0): " + reason, "set that sysctl to 1, or configure another backend"
	case denied && os.Geteuid() != 0 && !zeroOrMissing("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"):
		return "AppArmor forbids user namespaces to unprivileged programs: " + reason,
			"give this binary an AppArmor profile with userns, set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0, run as root, or configure another backend"
	case denied && inContainer():
		return "this is a container whose seccomp filter forbids namespaces: " + reason, "start the container with --security-opt seccomp=unconfined, or configure another backend"
	case strings.Contains(text, "no space left") && strings.Contains(text, "namespace"):
		return "the limit on namespaces is reached: " + reason, "raise the sysctls below /proc/sys/user"
	}
	return reason, "configure another backend, or see the reason"
}

func zero(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(data)) == "0"
}

func zeroOrMissing(path string) bool {
	_, err := os.Stat(path)
	return err != nil || zero(path)
}

func inContainer() bool {
	for _, path := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	data, _ := os.ReadFile("/proc/1/cgroup")
	return strings.Contains(string(data), "docker") || strings.Contains(string(data), "kubepods")
}

// capabilities is the document for this machine.
func (e *Extension) capabilities(usable bool) sdk.Capabilities {
	c := staticCapabilities()
	c[sdk.FeatureEgressCIDR], c[sdk.FeatureEgressDomain] = allowGuarantees(errors.New("no sandbox can be"))
	// The machine was looked at; the rest is each profile's own.
	isolation := c[sdk.FeatureCredentialIsolation]
	isolation.DependsOnMachine = false
	c[sdk.FeatureCredentialIsolation] = isolation
	if usable {
		maps.Copy(c, limitGuarantees(cgroup.Find().Proven()))
		c[sdk.FeatureHostRoot] = sdk.Guarantee{Class: sdk.ClassEnforced, Reason: "this machine's programs and libraries, by allow-list"}
	}
	return c
}

func details() []sdk.Detail {
	d := []sdk.Detail{
		{Name: "gvisor", Value: runsc.Version()},
		{Name: "arch", Value: runtime.GOARCH},
		{Name: "user", Value: fmt.Sprint(os.Geteuid())},
		{Name: "cgroups", Value: cgroup.Find().Version()},
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil {
		d = append(d, sdk.Detail{Name: "kernel", Value: unix.ByteSliceToString(uts.Release[:])})
	}
	if exe, err := os.Executable(); err == nil {
		d = append(d, sdk.Detail{Name: "program", Value: filepath.Clean(exe)})
	}
	return d
}
