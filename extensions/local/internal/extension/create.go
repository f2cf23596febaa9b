// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/cgroup"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// bootDeadline bounds the start of a sandbox. It takes a tenth of a second on
// an idle machine, and the bound is for one where fifty start at once.
const bootDeadline = 60 * time.Second

const (
	createPlanned  failpoint.Point = "local.create.planned"  // nothing is on disk yet
	createRecorded failpoint.Point = "local.create.recorded" // the record, without the sandbox's name
	createNamed    failpoint.Point = "local.create.named"
	createGrouped  failpoint.Point = "local.create.grouped" // its control groups are there
)

// Create implements [sdk.Extension].
func (e *Extension) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	return e.make(ctx, opts, nil)
}

// make makes a sandbox, from a profile alone or from a snapshot.
func (e *Extension) make(ctx context.Context, opts sdk.CreateOptions, from *origin) (sdk.CreateResult, error) {
	if err := e.validateCreate(opts, from != nil); err != nil {
		return sdk.CreateResult{}, err
	}
	if err := e.store.open(); err != nil {
		return sdk.CreateResult{}, err
	}
	e.tidy(ctx)
	// An id that exists is refused before any work is done for it; the rename
	// below decides when two come at once.
	if err := e.refuseExisting(opts); err != nil {
		return sdk.CreateResult{}, err
	}
	plan, err := e.plan(ctx, opts, from)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	defer plan.close()
	if err := failpoint.Hit(createPlanned); err != nil {
		return sdk.CreateResult{}, err
	}
	release, err := e.admit(ctx, named(opts.ID), max(plan.config.Disk, smallest))
	if err != nil {
		return sdk.CreateResult{}, err
	}
	r := e.newRecord(opts, plan)
	plan.config.End = endOf(r)
	dir, lock, err := e.begin(r)
	release() // from here on it is counted
	if errors.Is(err, os.ErrExist) {
		err = e.refuseExisting(opts)
	}
	if err != nil {
		return sdk.CreateResult{}, err
	}
	defer lock.Close()
	if err := e.launch(ctx, dir, lock, plan); err != nil {
		lock.Close() // the supervisor's copy is gone; ours would look like one
		cleanup := e.abandon(r)
		if ctx.Err() != nil {
			return sdk.CreateResult{}, errors.Join(ctx.Err(), cleanup)
		}
		var attribute *supervisor.AttributeError
		if errors.As(err, &attribute) {
			return sdk.CreateResult{}, errors.Join(sdk.Invalid(attribute.Path, "%s could not be started: %s", named(r.ID), attribute.Message), cleanup)
		}
		return sdk.CreateResult{}, errors.Join(fmt.Errorf("%s could not be started: %w", named(r.ID), err), cleanup)
	}
	e.collect()
	if r, err = record.Read(dir, opts.ID); err != nil {
		return sdk.CreateResult{}, fmt.Errorf("%s: %w", named(opts.ID), err)
	}
	return sdk.CreateResult{Sandbox: e.sandbox(r, dir)}, nil
}

// refuseExisting answers ErrConflict with the present lease when the id is
// taken, whatever fleet has it.
func (e *Extension) refuseExisting(opts sdk.CreateOptions) error {
	r, err := record.Read(e.store.sandbox(opts.ID), opts.ID)
	if errors.Is(err, record.ErrGone) {
		return nil
	}
	if err != nil {
		return &sdk.Error{Kind: sdk.ErrConflict, Message: named(opts.ID) + " exists already", Err: err}
	}
	if r.Identity.Fleet != opts.Identity.Fleet {
		return sdk.Errorf(sdk.ErrConflict, "%s exists already, in another fleet", named(opts.ID))
	}
	return sdk.Conflict(r.Lease, "%s exists already", named(opts.ID))
}

func (e *Extension) newRecord(opts sdk.CreateOptions, p *plan) record.Record {
	maxExpires := opts.MaxExpiresAt
	if maxExpires.IsZero() {
		maxExpires = opts.ExpiresAt
	}
	now := e.now()
	if p.wall > 0 && now.Add(p.wall).Before(maxExpires) {
		maxExpires = now.Add(p.wall)
	}
	expires := opts.ExpiresAt
	if expires.After(maxExpires) {
		expires = maxExpires
	}
	identity := opts.Identity.Clone()
	identity.ID = opts.ID
	if identity.Incarnation == 0 {
		identity.Incarnation = 1
	}
	r := record.Record{
		ID: opts.ID, Identity: identity, Profile: opts.Profile,
		Lease: sdk.Lease{
			ExpiresAt: expires.UTC().Round(0), MaxExpiresAt: maxExpires.UTC().Round(0), Generation: 1, Event: opts.Event,
		},
		OnExpiry: cmp.Or(opts.OnExpiry, sdk.OnExpiryDestroy), IdleTimeout: opts.IdleTimeout,
		ExpirySnapshotTTL: cmp.Or(opts.ExpirySnapshotTTL, sdk.DefaultExpirySnapshotTTL), PausedTTL: cmp.Or(opts.PausedTTL, sdk.DefaultPausedTTL),
		CreatedAt: now.UTC().Round(0), Status: sdk.StatusCreating,
		Env: opts.Env, Home: p.home, Network: egressOf(opts.Profile), Image: p.image, ImageEnv: p.imageEnv,
		UID: e.store.uid(), Cgroups: p.cgroups, Program: p.digest, GVisor: p.gvisor, SnapshotID: p.snapshotID,
	}
	for name := range opts.Secrets {
		r.Secrets = append(r.Secrets, name)
	}
	for i, name := range p.portNames {
		r.Ports = append(r.Ports, record.Port{Name: name, Guest: p.config.Ports[i], Host: p.hostPorts[i]})
	}
	return r
}

// begin puts the record on disk. It is complete before it has its name, and
// the rename fails when the name is taken.
func (e *Extension) begin(r record.Record) (dir string, lock *os.File, err error) {
	// The lock is held without a gap from here to the end of the supervisor's
	// life, which inherits it: "creating" with a free lock is a creation that
	// died.
	temp, lock, err := e.store.begin("sandboxes", record.SupervisorLock)
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(temp)
	unlock, err := record.Lock(temp)
	if err == nil {
		err = record.Write(temp, r)
		unlock()
	}
	dir = e.store.sandbox(r.ID)
	if err == nil {
		err = failpoint.Hit(createRecorded)
	}
	if err == nil {
		err = os.Rename(temp, dir)
	}
	if err == nil {
		_ = failpoint.Hit(createNamed)
		err = record.SyncDir(e.store.path("sandboxes"))
	}
	if err != nil {
		lock.Close()
		return "", nil, err
	}
	return dir, lock, nil
}

// abandon removes a sandbox whose creation failed.
func (e *Extension) abandon(r record.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), killDeadline)
	defer cancel()
	_, err := e.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: r.ID, Fleet: r.Identity.Fleet}})
	if err != nil {
		return fmt.Errorf("and what was made of it could not be removed: %w", err)
	}
	return nil
}

// launch starts the supervisor.
func (e *Extension) launch(ctx context.Context, dir string, lock *os.File, p *plan) error {
	if err := p.groups.Make(p.config.ID, p.hard); err != nil {
		return fmt.Errorf("make control groups: %w", err)
	}
	if err := failpoint.Hit(createGrouped); err != nil {
		return err
	}
	config := p.config
	config.Sandbox = dir
	config.Scratch = e.store.path("mnt")
	config.Deadline = bootDeadline
	ctx, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	return supervisor.Start(ctx, config, supervisor.Launch{
		Lock: lock, Snapshot: p.snapshotDir, Listeners: p.listeners, UID: e.store.uid(), Join: cgroup.Join(p.cgroups),
	})
}

// publish opens one listener in the host's network namespace for each port.
func publish(host string, ports int) (files []*os.File, numbers []int, err error) {
	for range ports {
		listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(host)})
		if err != nil {
			return files, numbers, err
		}
		file, err := listener.File()
		numbers = append(numbers, listener.Addr().(*net.TCPAddr).Port)
		listener.Close()
		if err != nil {
			return files, numbers, err
		}
		files = append(files, file)
	}
	return files, numbers, nil
}
