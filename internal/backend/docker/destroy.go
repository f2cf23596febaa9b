// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// owned is everything that a sandbox has on the engine, by label.
type owned struct {
	containers, networks, volumes, leases []thing

	snapshots []string // that containers were restored from
}

type thing struct{ kind, ref, name string }

func (t thing) String() string { return t.kind + " " + t.name }

func (o owned) all() []thing { return slices.Concat(o.containers, o.networks, o.volumes, o.leases) }

// ownedBy lists what carries a sandbox's id and fleet. What the labels do not
// name is not ours, whatever it is called.
func (e *Extension) ownedBy(ctx context.Context, eng engine, target sdk.Target) (o owned, err error) {
	filters := labelled(sdk.LabelFleet, target.Fleet, sdk.LabelID, target.ID)
	ours := func(labels map[string]string) bool {
		return labels[sdk.LabelFleet] == target.Fleet && labels[sdk.LabelID] == target.ID
	}
	errs := make([]error, 3)
	var calls sync.WaitGroup
	calls.Go(func() {
		list, err := eng.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
		for _, c := range list.Items {
			if ours(c.Labels) {
				name := c.ID
				if len(c.Names) > 0 {
					name = strings.TrimPrefix(c.Names[0], "/")
				}
				o.containers = append(o.containers, thing{"container", c.ID, name})
				if from := c.Labels[labelSnapshot]; from != "" {
					o.snapshots = append(o.snapshots, from)
				}
			}
		}
		errs[0] = err
	})
	calls.Go(func() {
		list, err := eng.NetworkList(ctx, client.NetworkListOptions{Filters: filters})
		for _, n := range list.Items {
			if ours(n.Labels) {
				o.networks = append(o.networks, thing{"network", n.ID, n.Name})
			}
		}
		errs[1] = err
	})
	calls.Go(func() {
		list, err := eng.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
		for _, v := range list.Items {
			switch {
			case !ours(v.Labels):
			case v.Labels[labelRole] == roleLease:
				o.leases = append(o.leases, thing{"volume", v.Name, v.Name})
			default:
				o.volumes = append(o.volumes, thing{"volume", v.Name, v.Name})
			}
		}
		errs[2] = err
	})
	calls.Wait()
	return o, e.translate(errors.Join(errs...), "list what "+clip(target.ID)+" owns")
}

const (
	// destroyTries bounds how often what is still there is removed again.
	destroyTries = 6
	destroyPause = 100 * time.Millisecond
)

// Destroy implements [sdk.Extension]. The order is: containers, networks,
// volumes, and the lease last, so that a destroy that is cut short leaves a
// record that a sweep continues from.
func (e *Extension) Destroy(ctx context.Context, opts sdk.DestroyOptions) (result sdk.DestroyResult, err error) {
	target := opts.Target
	if target.Fleet, err = e.fleetOf(target.Fleet); err != nil {
		return result, err
	}
	if target.ID == "" {
		return result, sdk.Invalid("id", "no sandbox is named")
	}
	eng, f, err := e.ask(ctx)
	if err != nil {
		return result, err
	}
	if err := e.here(target, f); err != nil {
		return result, err
	}
	removed := map[string]bool{}
	var snapshots []string
	var last map[string]error
	for attempt := range destroyTries {
		if attempt > 0 {
			if err := e.opts.Clock.Sleep(ctx, destroyPause<<attempt); err != nil {
				return result, err
			}
		}
		found, err := e.ownedBy(ctx, eng, target)
		if err != nil {
			return result, err
		}
		result.Leftovers = leftovers(found, last)
		if len(found.all()) == 0 {
			if err := e.absent(ctx, eng, target); err != nil {
				return result, err
			}
			for t := range removed {
				result.Removed = append(result.Removed, t)
			}
			slices.Sort(result.Removed)
			for _, from := range snapshots {
				if err := e.dropLayers(ctx, eng, target.Fleet, from); err != nil {
					return result, err
				}
			}
			return result, nil
		}
		result.Existed, snapshots = true, append(snapshots, found.snapshots...)
		if last, err = e.removeOwned(ctx, eng, found); err != nil {
			return result, err
		}
		for _, t := range found.all() {
			removed[t.String()] = true
		}
	}
	return result, fmt.Errorf("sandbox %s could not be removed: %s", clip(target.ID), strings.Join(result.Leftovers, "; "))
}

func leftovers(found owned, last map[string]error) (left []string) {
	for _, t := range found.all() {
		reason := "it is still there"
		if err := last[t.String()]; err != nil {
			reason = clip(err.Error())
		}
		left = append(left, t.String()+": "+reason)
	}
	return left
}

// removeOwned removes things in order, and goes on to the next kind only when
// the last is gone. Not found is fine in every step; an engine that can't be
// asked is an error.
func (e *Extension) removeOwned(ctx context.Context, eng engine, found owned) (failed map[string]error, err error) {
	steps := []struct {
		things []thing
		remove func(ref string) error
	}{
		{found.containers, func(ref string) error {
			_, err := eng.ContainerRemove(ctx, ref, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		}},
		{found.networks, func(ref string) error {
			_, err := eng.NetworkRemove(ctx, ref, client.NetworkRemoveOptions{})
			return err
		}},
		{slices.Concat(found.volumes), func(ref string) error {
			_, err := eng.VolumeRemove(ctx, ref, client.VolumeRemoveOptions{})
			return err
		}},
		{found.leases, func(ref string) error {
			_, err := eng.VolumeRemove(ctx, ref, client.VolumeRemoveOptions{})
			return err
		}},
	}
	failed = map[string]error{}
	for _, step := range steps {
		errs := make([]error, len(step.things))
		var calls sync.WaitGroup
		for i, t := range step.things {
			calls.Go(func() { errs[i] = step.remove(t.ref) })
		}
		calls.Wait()
		for i, err := range errs {
			if err == nil || errdefs.IsNotFound(err) {
				continue
			}
			if translated := e.translate(err, "remove "+step.things[i].String()); ctx.Err() != nil || errors.Is(translated, sdk.ErrUnreachable) {
				return failed, translated
			}
			failed[step.things[i].String()] = err
		}
		if len(failed) > 0 {
			return failed, nil // what comes later may depend on it
		}
	}
	return failed, nil
}

// absent makes sure that the ref finds nothing either: a container without
// our labels at it would be foreign, and one with them is not gone.
func (e *Extension) absent(ctx context.Context, eng engine, target sdk.Target) error {
	_, containerID := parseRef(target.Ref)
	if containerID == "" {
		return nil
	}
	inspected, err := eng.ContainerInspect(ctx, containerID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return e.translate(err, "look for "+clip(target.ID))
	}
	if c := inspected.Container.Config; c != nil && c.Labels[sdk.LabelID] == target.ID && c.Labels[sdk.LabelFleet] == target.Fleet {
		return fmt.Errorf("sandbox %s: the engine finds container %s and does not list it", clip(target.ID), clip(containerID))
	}
	return nil
}
