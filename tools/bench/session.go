// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// session drives the embedded backend as the provider does within one run of
// Terraform: the verbs of lifecycle, over one extension process.
type session struct {
	runtime *config.Runtime
	profile sdk.Profile
}

func newSession(extension, dir string, profile sdk.Profile) (*session, error) {
	runtime, err := config.Open(config.Config{
		Fleet: "bench", StateDir: filepath.Join(dir, "state"), Backend: config.ExtensionLocal,
		Backends: map[string]config.Backend{config.ExtensionLocal: {Extension: config.ExtensionLocal, Path: extension}},
	}, config.Options{})
	if err != nil {
		return nil, err
	}
	return &session{runtime: runtime, profile: profile}, nil
}

func (s *session) close() error { return s.runtime.Close() }

func (s *session) create(ctx context.Context) (string, error) {
	made, err := s.runtime.Manager.Create(ctx, lifecycle.CreateOptions{Profile: s.profile, TTL: 20 * time.Minute})
	return made.ID, err
}

func (s *session) exec(ctx context.Context, id string) error {
	result, err := s.runtime.Manager.Exec(ctx, id, lifecycle.ExecOptions{Command: []string{"/guest", "true"}})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("exec in %s: exit code %d", id, result.ExitCode)
	}
	return err
}

func (s *session) snapshot(ctx context.Context, id string) (string, error) {
	made, err := s.runtime.Manager.Snapshot(ctx, id, lifecycle.SnapshotOptions{Kind: sdk.SnapshotMemory})
	return made.ID, err
}

func (s *session) restore(ctx context.Context, snapshotID string) (string, error) {
	made, err := s.runtime.Manager.Create(ctx, lifecycle.CreateOptions{Snapshot: snapshotID, TTL: 20 * time.Minute})
	return made.ID, err
}

func (s *session) destroy(ctx context.Context, id string) error {
	_, err := s.runtime.Manager.Destroy(ctx, id, lifecycle.DestroyOptions{})
	return err
}

func (s *session) deleteSnapshot(ctx context.Context, snapshotID string) error {
	_, err := s.runtime.Manager.DeleteSnapshot(ctx, snapshotID, lifecycle.DeleteSnapshotOptions{})
	return err
}
