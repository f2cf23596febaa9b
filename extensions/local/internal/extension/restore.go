// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/egress"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/snapshot"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// origin is a snapshot that a sandbox is made from.
type origin struct {
	manifest snapshot.Manifest
	dir      string
}

// Restore implements [sdk.Snapshotter].
func (e *Extension) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	m, dir, err := e.readSnapshot(opts.SnapshotID, opts.Create.Identity.Fleet)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	if !e.now().Before(m.ExpiresAt) {
		return sdk.CreateResult{}, &sdk.Error{Kind: sdk.ErrExpired, Message: fmt.Sprintf("the retention of snapshot %s ended at %s", m.ID, m.ExpiresAt.Format("2006-01-02T15:04:05Z07:00")),
			Advice: "extend it first"}
	}
	if diffs := m.Differences(snapshot.ThisHost()); len(diffs) > 0 {
		advice := "restore it where it was made"
		if m.Kind == sdk.SnapshotMemory {
			advice += ", or use a filesystem snapshot"
		}
		return sdk.CreateResult{}, &sdk.Error{Kind: sdk.ErrUnsupported, Path: "snapshot",
			Message: fmt.Sprintf("%s snapshot %s does not fit this machine: %s", m.Kind, m.ID, strings.Join(diffs, "; ")), Advice: advice}
	}
	if err := m.CheckFiles(dir); err != nil {
		return sdk.CreateResult{}, fmt.Errorf("snapshot %s is damaged: %w", m.ID, err)
	}
	create := opts.Create
	if reflect.ValueOf(create.Profile).IsZero() {
		create.Profile = m.Profile
	}
	return e.make(ctx, create, &origin{manifest: m, dir: dir})
}

// apply turns the plan of a new sandbox into one that begins as the snapshot.
func (o *origin) apply(p *plan) (err error) {
	m := o.manifest
	p.snapshotID = m.ID
	// The profile's files are in the snapshot, as its sandbox left them;
	// secrets are new.
	secrets := p.config.Files[:0]
	for _, f := range p.config.Files {
		if strings.HasPrefix(f.Path, secretsDir+"/") {
			secrets = append(secrets, f)
		}
	}
	p.config.Files = secrets
	if len(m.Files) == 0 {
		return nil // of one that came as an archive, all is in the image
	}
	if p.snapshotDir, err = os.Open(o.dir); err != nil {
		return err
	}
	if m.Kind == sdk.SnapshotFilesystem {
		p.config.Start = supervisor.Origin{Upper: supervisor.UpperName}
		if m.Has(supervisor.AttributesName) {
			p.config.Start.Attributes = supervisor.AttributesName
		}
		return nil
	}
	if p.config.Network != m.Network {
		return sdk.Invalid("network.egress", "memory snapshot %s has network %q and the profile asks for %q: a network can't change under running processes", m.ID, m.Network, p.config.Network)
	}
	if p.config.Pids > 0 && m.Process.Group == "" {
		return sdk.Unsupported("limits.pids", "memory snapshot %s was made of a sandbox without a limit of processes, and can't be given one", m.ID)
	}
	if p.config.Egress != nil && !m.Gateway {
		return sdk.Invalid("network.allow", "memory snapshot %s was made without a way out: a network can't change under running processes", m.ID)
	}
	if m.Gateway {
		// The policy is the profile's, and processes may hold addresses that
		// stand for names.
		p.config.OwnNet = false
		if p.config.Egress == nil {
			p.config.Egress = &egress.Config{}
		}
		p.config.Egress.Names = m.Names
	}
	// Main process and spec are the source's: the runtime refuses others, and
	// the process runs already.
	p.config.Process = m.Process
	p.config.Start = supervisor.Origin{Memory: true, Spec: m.Spec}
	return nil
}
