// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package extension is the sdk's face of the embedded backend: it turns calls
// into records, locks and supervisors, and errors into the sdk's.
package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Name is the extension's name.
const Name = "local"

// Extension is the embedded backend.
type Extension struct {
	now     func() time.Time
	version string
	backend string
	fleet   string
	store   store
	// imageCache bounds unpacked images in bytes.
	imageCache int64
	// maxState bounds all of the state directory in bytes; 0 is no bound.
	maxState int64
}

// Options are what an extension depends on.
type Options struct {
	Now func() time.Time // default time.Now
	// Program is the binary that sandboxes are driven by; default this one.
	Program string
	Version string // semver
}

// New returns an extension.
func New(opts Options) *Extension {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Program == "" {
		opts.Program = "/proc/self/exe"
	}
	return &Extension{imageCache: defaultImageCache, now: opts.Now, version: opts.Version, store: store{self: opts.Program}}
}

var (
	_ sdk.Extension = (*Extension)(nil)
	_ sdk.Execer    = (*Extension)(nil)
	_ sdk.Inspector = (*Extension)(nil)

	_ sdk.PortableSnapshotter = (*Extension)(nil)
)

// Describe implements [sdk.Extension].
func (e *Extension) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	return sdk.DescribeResult{
		Name:    Name,
		Version: e.version,
		Summary: "Sandboxes on this Linux machine with nothing installed: gVisor, in this binary",
		ConfigSchema: []sdk.ConfigKey{
			{Name: "image_cache_size", Type: "string", Description: "The most that unpacked images may take of the disk, for example \"20GiB\"; those that no sandbox or snapshot needs are removed, the least recently used first. Default: \"10GiB\"."},
			{Name: "max_state_size", Type: "string", Description: "The most that sandboxes, snapshots and images may take of the disk, for example \"100GiB\"; what would go beyond it is refused before it is begun. A sandbox with limits.disk counts with all of it. Default: no bound."},
			{Name: "state_dir", Type: "string", Description: "Directory that holds records, images and snapshots. Default: SANDBOXER_STATE_DIR, then sandboxer below XDG_STATE_HOME or ~/.local/state."},
		},
		Capabilities: staticCapabilities(),
	}, nil
}

// settings is the configuration of one backend.
type settings struct {
	StateDir       string `json:"state_dir"`
	ImageCacheSize string `json:"image_cache_size"`
	MaxStateSize   string `json:"max_state_size"`
}

// Configure implements [sdk.Extension].
func (e *Extension) Configure(_ context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	var keys map[string]json.RawMessage
	var s settings
	if len(bytes.TrimSpace(opts.Config)) > 0 {
		if err := json.Unmarshal(opts.Config, &keys); err != nil {
			return sdk.ConfigureResult{}, sdk.Invalid("config", "not a JSON object: %v", err)
		}
	}
	fields := map[string]*string{"state_dir": &s.StateDir, "image_cache_size": &s.ImageCacheSize, quotaKey: &s.MaxStateSize}
	for key, value := range keys {
		field, ok := fields[key]
		if !ok {
			return sdk.ConfigureResult{}, sdk.Invalid(key, "the local backend has no such setting; it knows %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if err := json.Unmarshal(value, field); err != nil {
			return sdk.ConfigureResult{}, sdk.Invalid(key, "must be a string")
		}
	}
	imageCache, maxState := int64(defaultImageCache), int64(0)
	for key, size := range map[string]*int64{"image_cache_size": &imageCache, quotaKey: &maxState} {
		if *fields[key] == "" {
			continue
		}
		var err error
		if *size, err = sdk.ParseSize(*fields[key]); err != nil {
			return sdk.ConfigureResult{}, sdk.Invalid(key, "%v", err)
		}
	}
	dir, err := stateDir(s.StateDir)
	if err != nil {
		return sdk.ConfigureResult{}, err
	}
	e.backend, e.fleet, e.imageCache, e.maxState = opts.Backend, opts.Fleet, imageCache, maxState
	e.store.root = filepath.Join(dir, Name)
	return sdk.ConfigureResult{}, nil
}

// stateDir resolves the state directory without making it.
func stateDir(configured string) (string, error) {
	dir := configured
	if dir == "" {
		dir = os.Getenv("SANDBOXER_STATE_DIR")
	}
	if dir == "" {
		base := os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(base) {
			home, err := os.UserHomeDir()
			if err != nil || !filepath.IsAbs(home) {
				return "", &sdk.Error{Kind: sdk.ErrInvalid, Path: "state_dir", Message: "no state directory is configured and this user has no home directory",
					Advice: "set state_dir or SANDBOXER_STATE_DIR"}
			}
			base = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(base, "sandboxer")
	}
	if !filepath.IsAbs(dir) {
		return "", sdk.Invalid("state_dir", "%q is not an absolute path", clip(dir))
	}
	return filepath.Clean(dir), nil
}

// fleetOf returns the fleet that a call is for.
func (e *Extension) fleetOf(fleet string) (string, error) {
	if fleet == "" {
		fleet = e.fleet
	}
	if fleet == "" {
		return "", sdk.Invalid("fleet", "no fleet is named")
	}
	return fleet, nil
}

// clip bounds outside text in a message.
func clip(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func named(id string) string { return fmt.Sprintf("sandbox %s", clip(id)) }
