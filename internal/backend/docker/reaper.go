// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// The reaper container: one per fleet on the engine, so that a deadline holds
// when every client is dead. It is our program in an image of one file, never
// a sandbox; it ends with the fleet's last lease and is made again by the next
// create or extend.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// ReaperSocket is where the reaper finds the engine inside of its container.
const ReaperSocket = "/engine.sock"

// FleetVariable tells the reaper its fleet.
const FleetVariable = "SANDBOXER_FLEET"

// reaperMemory bounds the reaper: it holds one listing of a fleet.
const reaperMemory = 128 << 20

func reaperName(fleet string) string {
	sum := sha256.Sum256([]byte(fleet))
	return "sandboxer-reaper-" + hex.EncodeToString(sum[:6])
}

// guard makes sure that the fleet has a reaper, unless that is somebody
// else's business. It is asked when the lease is there: a reaper ends only
// after it has seen none.
func (e *Extension) guard(ctx context.Context, eng engine, fleet string) error {
	if e.settings.Reaper == reaperExternal {
		return nil
	}
	running, err := e.reapers(ctx, eng, fleet)
	if err != nil || running {
		return err
	}
	// Of many creates at once one starts it, and the others look once more.
	select {
	case e.guarding <- struct{}{}:
		defer func() { <-e.guarding }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if running, err = e.reapers(ctx, eng, fleet); err != nil || running {
		return err
	}
	_, f, err := e.ask(ctx)
	if err != nil {
		return err
	}
	p, err := e.program(reaperProgram + f.arch)
	if err != nil {
		return err
	}
	ref, err := e.programImage(ctx, eng, "reaper", p)
	if err != nil {
		return err
	}
	return e.startReaper(ctx, eng, fleet, ref)
}

// reapers reports whether the fleet's reaper runs. One that has ended is
// removed, so that its name is free.
func (e *Extension) reapers(ctx context.Context, eng engine, fleet string) (running bool, err error) {
	list, err := eng.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: labelled(sdk.LabelFleet, fleet, labelRole, roleReaper)})
	if err != nil {
		return false, e.translate(err, "look for the fleet's reaper")
	}
	for _, c := range list.Items {
		switch c.State {
		case container.StateRunning, container.StateRestarting:
			running = true
		case container.StateExited, container.StateDead:
			_, err := eng.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{})
			if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
				return running, e.translate(err, "remove a reaper that has ended")
			}
		}
	}
	return running, nil
}

const (
	reaperTries = 10
	reaperPause = 200 * time.Millisecond
)

// startReaper makes the reaper. Of many at once one makes it: the name is
// taken once, and the others wait to see it run.
func (e *Extension) startReaper(ctx context.Context, eng engine, fleet, ref string) error {
	for range reaperTries {
		made, err := eng.ContainerCreate(ctx, client.ContainerCreateOptions{
			Name: reaperName(fleet),
			Config: &container.Config{
				Image: ref, Entrypoint: []string{programPath}, Env: []string{FleetVariable + "=" + fleet}, User: "0:0",
				Labels: map[string]string{sdk.LabelFleet: fleet, labelRole: roleReaper},
			},
			HostConfig: hardened(&container.HostConfig{
				NetworkMode: "none", RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyOnFailure},
				Mounts: []mount.Mount{{Type: mount.TypeBind, Source: e.reaperSocket(), Target: ReaperSocket}},
			}, reaperMemory),
		})
		if err == nil {
			_, err = eng.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
			return e.translate(err, "start the fleet's reaper")
		}
		if !errdefs.IsConflict(err) {
			return e.translate(err, "make the fleet's reaper")
		}
		// Somebody else makes it, or the last one is about to go.
		if err := e.opts.Clock.Sleep(ctx, reaperPause); err != nil {
			return err
		}
		if running, err := e.reapers(ctx, eng, fleet); err != nil || running {
			return err
		}
	}
	return sdk.Errorf(sdk.ErrUnreachable, "the reaper of fleet %q could not be started in %d tries: a container %s is in the way", clip(fleet), reaperTries, reaperName(fleet))
}

// reaperSocket is the engine's socket on the engine's own machine.
func (e *Extension) reaperSocket() string {
	if e.settings.ReaperSocket != "" {
		return e.settings.ReaperSocket
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if u := e.host.url; u != nil && u.Scheme == "unix" && !desktop(u.Path) {
		return u.Path
	}
	if e.remote != nil {
		if w := e.remote.known(); w != nil {
			return w.socket
		}
	}
	return systemSocket
}

// The loop of the reaper.

const (
	// reapLongest is the longest pause between two looks: an expire or a new
	// sandbox is noticed after it.
	reapLongest  = 2 * time.Second
	reapShortest = 100 * time.Millisecond
	// reapIdle is how often in a row no lease is seen before the reaper ends.
	reapIdle = 5
)

// Reap ends the sandboxes of the fleet as they expire, and returns when the
// fleet has had no lease for a while. What goes wrong with one sandbox is
// told to report, by several at once, and tried again.
func (e *Extension) Reap(ctx context.Context, report func(error)) error {
	idle := 0
	for idle < reapIdle {
		list, err := e.List(ctx, sdk.ListOptions{})
		pause := reapLongest
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			report(err)
		case len(list.Sandboxes)+len(list.Unreadable) == 0:
			idle++
		default:
			idle = 0
			pause = e.reapAll(ctx, list.Sandboxes, report)
		}
		if err := e.opts.Clock.Sleep(ctx, max(pause, reapShortest)); err != nil {
			return err
		}
	}
	return nil
}

// reapsAtOnce is how many sandboxes the reaper ends at a time, as many as a
// sweep by a client does.
const reapsAtOnce = 8

// reapAll ends what has expired and returns when to look again. One that
// can't be ended does not keep the others.
func (e *Extension) reapAll(ctx context.Context, all []sdk.Sandbox, report func(error)) time.Duration {
	pause := reapLongest
	_, f, err := e.ask(ctx)
	if err != nil {
		report(err)
		return pause
	}
	var reaping sync.WaitGroup
	defer reaping.Wait()
	places := make(chan struct{}, reapsAtOnce)
	for _, s := range all {
		if s.Status != sdk.StatusExpired && !s.Lease.Claimed {
			pause = min(pause, s.Lease.ExpiresAt.Sub(e.now(f)))
			continue
		}
		places <- struct{}{}
		reaping.Go(func() {
			defer func() { <-places }()
			if err := e.reapOne(ctx, s); err != nil {
				report(err)
			}
		})
	}
	return pause
}

// claimAge is how long after the deadline a claim by somebody else is left
// alone: they are removing it.
const claimAge = 30 * time.Second

func (e *Extension) reapOne(ctx context.Context, s sdk.Sandbox) error {
	_, f, err := e.ask(ctx)
	if err != nil {
		return err
	}
	if s.Lease.Claimed && e.now(f).Before(s.Lease.ExpiresAt.Add(claimAge)) {
		return nil
	}
	target := sdk.Target{ID: s.ID, Fleet: e.fleet}
	if s.Ref != "" {
		target.Ref = s.Ref
	}
	_, err = e.Claim(ctx, sdk.ClaimOptions{Target: target, Generation: s.Lease.Generation, Holder: "reaper container", OnlyExpired: true, Event: s.Lease.Event})
	if err != nil {
		return err
	}
	_, err = e.Destroy(ctx, sdk.DestroyOptions{Target: target})
	return err
}

// RemoveReaper removes the reaper's own container, by which its process ends.
func (e *Extension) RemoveReaper(ctx context.Context) error {
	eng, err := e.connect()
	if err != nil {
		return err
	}
	_, err = eng.ContainerRemove(ctx, reaperName(e.fleet), client.ContainerRemoveOptions{Force: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return e.translate(err, "remove the fleet's reaper")
}
