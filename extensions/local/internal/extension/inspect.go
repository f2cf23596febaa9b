// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// How a sandbox is shut off from credentials: what its record and its
// directory say, and what our helper sees inside as the sandbox's own user.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

// Inspect implements [sdk.Inspector].
func (e *Extension) Inspect(ctx context.Context, opts sdk.InspectOptions) (sdk.InspectResult, error) {
	r, dir, err := e.awake(opts.Target)
	if err != nil {
		return sdk.InspectResult{}, err
	}
	outside := isolation.New(sdk.SideOutside)
	inspectRecord(r, outside)
	inspectDirectory(dir, opts, outside)
	expect := isolation.Expect{
		Canary: opts.Canary, First: initproc.Path, OwnKernel: true, Offline: r.Network == sdk.EgressNone && len(r.Ports) == 0,
		Mounts: []string{secretsDir, rootfs.OwnDir, "/proc/sys/kernel/random/boot_id"},
	}
	var out report
	if err := e.helper(ctx, opts.Target, "inspect", nil, &out, append([]string{"look"}, expect.Args()...)...); err != nil {
		return sdk.InspectResult{}, err
	}
	inside, err := isolation.ReadReport(&out.Buffer)
	if err != nil {
		return sdk.InspectResult{}, fmt.Errorf("%s: inspect: %w", named(r.ID), err)
	}
	return sdk.InspectResult{Findings: append(outside.List(), inside...)}, nil
}

// report keeps one byte more than a report may have, so that one that is too
// long is seen to be.
type report struct{ bytes.Buffer }

func (r *report) Write(p []byte) (int, error) {
	if room := isolation.MaxReport + 1 - r.Len(); room > 0 {
		r.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// inspectRecord judges what a sandbox was made from.
func inspectRecord(r record.Record, f *isolation.Findings) {
	env := baseEnv(r)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if why, is := isolation.Variable(name, env[name]); is {
			f.Failed(sdk.CheckEnvironment, "the sandbox's variable "+isolation.Quote(name)+" "+why)
		}
	}
	f.Passed(sdk.CheckEnvironment, fmt.Sprintf("none of %d variables of the sandbox, its image's among them, holds a credential", len(env)))
	if i, why, is := isolation.Arguments(r.Profile.Command); is {
		f.Failed(sdk.CheckArguments, fmt.Sprintf("argument %d of the main process %s", i, why))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Identity.Labels)) {
		if why, is := isolation.Variable(name, r.Identity.Labels[name]); is {
			f.Failed(sdk.CheckArguments, "the label "+isolation.Quote(name)+" "+why)
		}
	}
	f.Passed(sdk.CheckArguments, fmt.Sprintf("no argument of the main process and none of %d labels is a credential", len(r.Identity.Labels)))
	if r.Network == sdk.EgressOpen {
		f.Failed(sdk.CheckNamespaces, "its network is the host's own, loopback included")
	}
	f.Passed(sdk.CheckNamespaces, "its kernel, and with it processes, memory and network, is its own")
	mounts := "nothing of the host is mounted but two files that the supervisor made for it"
	if r.Image == "" {
		mounts = "of the host, programs and libraries are mounted by allow-list and read-only, without home directories, /run, /var and keys"
	}
	f.Passed(sdk.CheckMounts, mounts)
	f.Passed(sdk.CheckEngine, "no socket of the host is mounted")
	f.Passed(sdk.CheckAgents, "no socket of the host is mounted")
	f.Passed(sdk.CheckTokens, "no token is mounted")
	f.Passed(sdk.CheckDevices, "no device of the host is given to it")
	f.Passed(sdk.CheckPrivileges, "its kernel is its own (gVisor): what a command may do there, it may do there alone")
}

// The bounds of a search for the canary: what is larger is the sandbox's own
// files, in which it may lie.
const (
	maxSearched   = 4 << 20 // of one file, in bytes
	maxSearchable = 1000
)

// inspectDirectory looks for the canary in what is kept of a sandbox.
func inspectDirectory(dir string, opts sdk.InspectOptions, f *isolation.Findings) {
	const check = sdk.CheckSecrets
	if opts.Canary == "" || opts.CanaryValue == "" {
		f.Unknown(check, "the sandbox has no secret to look for")
		return
	}
	searched := 0
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was there for a moment
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if searched++; searched > maxSearchable {
			return fmt.Errorf("there are more than %d files in it", maxSearchable)
		}
		held, err := holds(name, string(opts.CanaryValue))
		if held {
			f.Failed(check, "the secret's value is in the file "+isolation.Quote(entry.Name())+" of the sandbox's directory")
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		f.Unknown(check, "the sandbox's directory can't be searched: "+err.Error())
	}
	f.Passed(check, fmt.Sprintf("the secret's value is in none of %d files in the sandbox's directory", searched))
}

// holds tells whether a file holds a text.
func holds(name, text string) (bool, error) {
	file, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() > maxSearched {
		return false, err
	}
	content, err := io.ReadAll(io.LimitReader(file, maxSearched))
	return bytes.Contains(content, []byte(text)), err
}
