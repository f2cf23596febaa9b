// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// How a box is shut off from credentials. A box is its files, its variables
// and an interpreter of a few words; most of what can leak elsewhere is not
// there, which is the vendor's promise and said as such.

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

// absent are the checks that are about what a box does not have.
var absent = map[sdk.IsolationCheck]string{
	sdk.CheckAgents:     "the interpreter has no sockets",
	sdk.CheckEngine:     "the interpreter has no sockets",
	sdk.CheckMetadata:   "the interpreter has no network",
	sdk.CheckMounts:     "nothing can be mounted in a box",
	sdk.CheckDevices:    "a box has no devices",
	sdk.CheckNamespaces: "a box has no processes but its own commands",
	sdk.CheckPrivileges: "the interpreter has no rights to give",
}

// Inspect implements [sdk.Inspector].
func (e *Extension) Inspect(ctx context.Context, opts sdk.InspectOptions) (sdk.InspectResult, error) {
	b, _, err := e.usable(ctx, opts.Target)
	if err != nil {
		return sdk.InspectResult{}, err
	}
	outside, inside := isolation.New(sdk.SideOutside), isolation.New(sdk.SideInside)
	for check, why := range absent {
		for _, f := range []*isolation.Findings{outside, inside} {
			f.Passed(check, why)
		}
	}
	e.inspectBox(b, opts, outside)
	if err := e.inspectVariables(ctx, opts, inside); err != nil {
		return sdk.InspectResult{}, err
	}
	if err := e.inspectFiles(ctx, opts, inside); err != nil {
		return sdk.InspectResult{}, err
	}
	inside.Passed(sdk.CheckArguments, "no process of a box outlives its command")
	// A side has no say in what is not to be seen from it.
	return sdk.InspectResult{Findings: slices.DeleteFunc(slices.Concat(outside.List(), inside.List()), func(f sdk.Finding) bool {
		return !slices.Contains(f.Check.Sides(), f.Side)
	})}, nil
}

// inspectBox judges what the vendor shows of a box.
func (e *Extension) inspectBox(b Box, opts sdk.InspectOptions, f *isolation.Findings) {
	f.Passed(sdk.CheckEnvironment, "the vendor shows no variables")
	f.Passed(sdk.CheckTokens, "the vendor mounts no tokens")
	held := opts.CanaryValue != "" && slices.ContainsFunc(slices.Collect(maps.Values(b.Tags)), func(tag string) bool {
		return strings.Contains(tag, string(opts.CanaryValue))
	})
	switch {
	case opts.Canary == "":
		f.Unknown(sdk.CheckSecrets, "the box has no secret to look for")
	case held:
		f.Failed(sdk.CheckSecrets, "the secret's value is in a tag")
	}
	f.Passed(sdk.CheckSecrets, "the secret's value is in no tag")
	for name, value := range b.Tags {
		if why, is := isolation.Variable(name, value); is && name != tagProfile { // whose document is judged by itself
			f.Failed(sdk.CheckArguments, "the tag "+isolation.Quote(name)+" "+why)
		}
	}
	f.Passed(sdk.CheckArguments, fmt.Sprintf("none of %d tags holds a credential", len(b.Tags)))
}

// inspectVariables judges the environment of a command.
func (e *Extension) inspectVariables(ctx context.Context, opts sdk.InspectOptions, f *isolation.Findings) error {
	var out bytes.Buffer
	if _, err := e.Exec(ctx, sdk.ExecOptions{Target: opts.Target, Command: []string{"printenv"}, Stdout: &out}); err != nil {
		return err
	}
	count := 0
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if why, is := isolation.Variable(name, value); is {
			f.Failed(sdk.CheckEnvironment, "the variable "+isolation.Quote(name)+" "+why)
		}
		if opts.CanaryValue != "" && strings.Contains(value, string(opts.CanaryValue)) {
			f.Failed(sdk.CheckSecrets, "the secret's value is in the variable "+isolation.Quote(name))
		}
		count++
	}
	f.Passed(sdk.CheckEnvironment, fmt.Sprintf("none of %d variables of a command holds a credential", count))
	return nil
}

// inspectFiles judges the files of a box, and where the secret lies.
func (e *Extension) inspectFiles(ctx context.Context, opts sdk.InspectOptions, f *isolation.Findings) error {
	var out bytes.Buffer
	if opts.Canary != "" {
		if _, err := e.Exec(ctx, sdk.ExecOptions{Target: opts.Target, Command: []string{"cat", path.Join(secretsDir, opts.Canary)}, Stdout: &out}); err != nil {
			return err
		}
	}
	if opts.Canary == "" || out.String() != string(opts.CanaryValue) {
		f.Unknown(sdk.CheckSecrets, "the secret is not in its file")
	}
	var archive bytes.Buffer
	if _, err := e.CopyOut(ctx, sdk.CopyOutOptions{Target: opts.Target, Path: "/", Archive: &archive}); err != nil {
		return err
	}
	files, count := tar.NewReader(&archive), 0
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		name := path.Join("/", header.Name)
		if opts.Canary != "" && name == path.Join(secretsDir, opts.Canary) {
			continue
		}
		if isolation.HomeFile(name, content) {
			f.Failed(sdk.CheckFiles, isolation.Quote(name)+" is a file that credentials are kept in")
		}
		if isolation.Place(name) == sdk.CheckTokens && len(content) > 0 {
			f.Failed(sdk.CheckTokens, isolation.Quote(name)+" lies where tokens are mounted")
		}
		if opts.CanaryValue != "" && bytes.Contains(content, []byte(string(opts.CanaryValue))) {
			f.Failed(sdk.CheckSecrets, "the secret's value is in the file "+isolation.Quote(name))
		}
		count++
	}
	f.Passed(sdk.CheckFiles, fmt.Sprintf("none of %d files is one that credentials are kept in", count))
	f.Passed(sdk.CheckTokens, "nothing lies where tokens are mounted")
	f.Passed(sdk.CheckSecrets, "the secret is in its file, and in no other file and no variable")
	return nil
}
