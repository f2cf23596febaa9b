// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Pause, resume and snapshots. They exclude each other.

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The files of a snapshot's content.
const (
	UpperName      = "upper.tar"
	AttributesName = "attributes.json" // what the archive leaves out of its files
)

// everything is all of what a memory snapshot has to wait for. The runtime
// can't save a process that was started from a host's file, as helpers are,
// and couriers for a moment.
const everything = 1 << 30

// suspend pauses or resumes. Doing it twice is no error.
func (s *supervisor) suspend(ctx context.Context, verb string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := sdk.StatusPaused
	if verb == "resume" {
		to = sdk.StatusReady
	}
	r, err := record.Read(rootfs.PrivateSandbox, s.config.ID)
	if err != nil {
		return err
	}
	if s.ending.Load() {
		return errEnding
	}
	if r.Status == to {
		return nil
	}
	if err := s.runsc.Run(ctx, shortCall, verb, s.config.ID); err != nil {
		return err
	}
	_, err = record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if r.Status == sdk.StatusReady || r.Status == sdk.StatusPaused {
			r.Status, r.Reason, r.EndReason = to, "", ""
		}
		return nil
	})
	if verb == "resume" {
		s.activity.resume()
	}
	s.recheck()
	return err
}

const (
	checkpointBegun failpoint.Point = "supervisor.checkpoint.begun"
	checkpointMade  failpoint.Point = "supervisor.checkpoint.made"
)

// checkpoint writes a snapshot into a directory of the client's and leaves
// the sandbox as it was.
func (s *supervisor) checkpoint(ctx context.Context, kind string, deadline time.Duration, dir *os.File) (answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if err := failpoint.Hit(checkpointBegun); err != nil {
		return answer{}, err
	}
	spec, err := os.ReadFile(rootfs.PrivateBundle + "/config.json")
	if err != nil {
		return answer{}, err
	}
	if err := s.writeContent(ctx, sdk.SnapshotKind(kind), dir); err != nil {
		return answer{}, err
	}
	made := &Made{Spec: spec, Init: initproc.Version, Network: s.config.Network, Process: s.config.Process}
	if s.gateway != nil {
		made.Gateway, made.Names = true, s.gateway.Names()
	}
	return answer{Made: made}, failpoint.Hit(checkpointMade)
}

// writeContent writes what a snapshot of a kind holds into a directory.
func (s *supervisor) writeContent(ctx context.Context, kind sdk.SnapshotKind, dir *os.File) error {
	var args []string
	switch kind {
	case sdk.SnapshotMemory:
		if err := s.unsavable.Acquire(ctx, everything); err != nil {
			return fmt.Errorf("wait for copies and starting commands to end: %w", err)
		}
		defer s.unsavable.Release(everything)
		args = []string{"checkpoint", "-leave-running", "-image-path=" + snapshotFD, s.config.ID}
	case sdk.SnapshotFilesystem:
		args = []string{"tar", "rootfs-upper", "-file", snapshotFD + "/" + UpperName, s.config.ID}
	default:
		return fmt.Errorf("no snapshot kind %q", kind)
	}
	cmd := s.runsc.Command(ctx, args...)
	cmd.ExtraFiles = []*os.File{dir}
	out, err := cmd.CombinedOutput()
	return s.runsc.Explain(ctx, args[0], err, out)
}
