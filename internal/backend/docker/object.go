// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// From what an engine lists to sandboxes.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// object is everything that is listed of one sandbox.
type object struct {
	id       string
	main     *container.Summary // nil when the container is gone
	ports    *container.Summary // carries connections in; mostly nil
	identity sdk.Identity
	records  []record // of the lease, oldest first
	made     bool     // the container was there
	faults   []string // labels that can't be read
}

// lookup lists the objects of a fleet, or of one sandbox of it: two calls
// however many there are, and a third where somebody wants to know of one
// sandbox that is there whether it is guarded.
func (e *Extension) lookup(ctx context.Context, eng engine, fleet, id string, guards bool) (objects map[string]*object, guarded bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filters := labelled(sdk.LabelFleet, fleet)
	volumes := labelled(sdk.LabelFleet, fleet)
	if id != "" {
		filters.Add("label", sdk.LabelID+"="+id)
		volumes.Add("label", sdk.LabelID+"="+id)
	}
	var containers, reapers client.ContainerListResult
	var leases client.VolumeListResult
	errs := make([]error, 3)
	var calls sync.WaitGroup
	calls.Go(func() {
		containers, errs[0] = eng.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	})
	calls.Go(func() { leases, errs[1] = eng.VolumeList(ctx, client.VolumeListOptions{Filters: volumes}) })
	calls.Wait()
	if len(containers.Items) > 0 && id != "" && guards {
		reapers, errs[2] = eng.ContainerList(ctx, client.ContainerListOptions{Filters: labelled(sdk.LabelFleet, fleet, labelRole, roleReaper)})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, false, e.translate(err, "list sandboxes")
	}
	objects = map[string]*object{}
	for _, c := range slices.Concat(containers.Items, reapers.Items) {
		if c.Labels[labelRole] == roleReaper {
			guarded = guarded || c.State == container.StateRunning
			continue
		}
		addContainer(objects, fleet, &c)
	}
	for _, v := range leases.Items {
		switch v.Labels[labelRole] {
		case roleLease:
			addRecord(objects, fleet, v.Labels, v.Name)
		case roleMade:
			if o := of(objects, fleet, v.Labels); o != nil {
				o.made = true
			}
		}
	}
	for _, o := range objects {
		slices.SortFunc(o.records, func(a, b record) int { return int(a.generation - b.generation) })
	}
	return objects, guarded, nil
}

// of returns the object that labels belong to; nil for what is not of the
// fleet, whatever the engine's filter let through.
func of(objects map[string]*object, fleet string, labels map[string]string) *object {
	id := labels[sdk.LabelID]
	if id == "" || labels[sdk.LabelFleet] != fleet {
		return nil
	}
	o := objects[id]
	if o == nil {
		o = &object{id: id, identity: sdk.Identity{ID: id, Fleet: fleet}}
		objects[id] = o
	}
	return o
}

func addContainer(objects map[string]*object, fleet string, c *container.Summary) {
	role := c.Labels[labelRole]
	if role != roleSandbox && role != rolePorts {
		return
	}
	o := of(objects, fleet, c.Labels)
	switch {
	case o == nil:
	case role == rolePorts:
		o.ports = c
	default:
		o.main = c
		o.identify(c.Labels)
	}
}

func (o *object) identify(labels map[string]string) {
	identity, _, err := sdk.IdentityFromLabels(labels)
	if err != nil {
		o.faults = append(o.faults, err.Error())
		return
	}
	o.identity = identity
}

func addRecord(objects map[string]*object, fleet string, labels map[string]string, name string) {
	o := of(objects, fleet, labels)
	if o == nil {
		return
	}
	r, err := readRecord(o.id, name, labels)
	if err != nil {
		o.faults = append(o.faults, err.Error())
		return
	}
	if o.identity.ID == "" {
		o.identify(labels)
	}
	o.records = append(o.records, r)
}

// creationDeadline is how long a container may lack after its lease, or a
// start after its container, before the creation counts as dead.
const creationDeadline = 10 * time.Minute

// sandbox is what the sdk sees of an object.
func (e *Extension) sandbox(o *object, f facts, guarded bool) (sdk.Sandbox, error) {
	if len(o.faults) > 0 {
		return sdk.Sandbox{}, fmt.Errorf("sandbox %s: labels can't be read: %s", clip(o.id), clip(strings.Join(o.faults, "; ")))
	}
	now := e.now(f)
	s := sdk.Sandbox{
		ID: o.id, Identity: o.identity, Incarnation: max(o.identity.Incarnation, 1), CreatedAt: o.identity.CreatedAt,
		OnExpiry: sdk.OnExpiryDestroy,
	}
	lease, _, recordNote := o.lease(now)
	s.Lease = lease
	if o.main != nil {
		s.Ref = refOf(f, o.main.ID)
		labels := o.main.Labels
		if choice := labels[labelOnExpiry]; choice != "" {
			s.OnExpiry = sdk.OnExpiry(choice)
		}
		profile, err := decodeDocument(labels[labelDocument])
		if err != nil {
			return s, fmt.Errorf("sandbox %s: label %s can't be read: %w", clip(o.id), labelDocument, err)
		}
		s.Profile = profile
		s.Endpoints = o.endpoints(e.host)
	}
	s.Status, s.Reason = o.status(lease, now)
	if s.Reason == "" {
		s.Reason = recordNote
	}
	if s.Status == sdk.StatusExpired {
		s.EndReason = sdk.EndDeadline
	}
	if guarded && (s.Status == sdk.StatusCreating || s.Status == sdk.StatusReady || s.Status == sdk.StatusPaused) {
		s.Guards = []sdk.Guard{sdk.GuardReaperContainer}
	}
	return s, nil
}

// status is derived from facts: the lease, the engine's clock, and the state
// of the container.
func (o *object) status(lease sdk.Lease, now time.Time) (sdk.Status, string) {
	if lease.Expired(now) {
		return sdk.StatusExpired, "the deadline passed"
	}
	if lease.Claimed {
		return sdk.StatusDestroying, "claimed by " + clip(lease.ClaimHolder)
	}
	young := now.Sub(o.identity.CreatedAt) < creationDeadline
	if o.main == nil {
		if young && !o.made {
			return sdk.StatusCreating, "its container is not there yet"
		}
		return sdk.StatusLost, "its container was removed, and not by us"
	}
	switch o.main.State {
	case container.StateRunning:
		return sdk.StatusReady, ""
	case container.StatePaused:
		return sdk.StatusPaused, ""
	case container.StateCreated:
		if young {
			return sdk.StatusCreating, ""
		}
		return sdk.StatusLost, "its creation was interrupted"
	case container.StateRestarting:
		return sdk.StatusCreating, "the engine restarts it"
	case container.StateRemoving:
		return sdk.StatusDestroying, "the engine removes it"
	}
	return sdk.StatusLost, "its container has stopped" + exitNote(o.main.Status)
}

// exitNote takes the exit code out of a text like "Exited (137) 3 minutes
// ago": the rest changes with each look.
func exitNote(status string) string {
	_, rest, ok := strings.Cut(status, "(")
	code, _, closed := strings.Cut(rest, ")")
	if _, err := strconv.Atoi(code); !ok || !closed || err != nil {
		return ""
	}
	if code == "137" {
		return " (exit code 137: it was killed, by hand or for its memory)"
	}
	return " (exit code " + code + ")"
}

const loopback = "127.0.0.1"

// endpoints are the addresses of the profile's ports as the client sees them:
// on loopback those of the engine's own machine.
func (o *object) endpoints(h host) map[string]string {
	var ports map[string]int
	if json.Unmarshal([]byte(o.main.Labels[labelPorts]), &ports) != nil || len(ports) == 0 {
		return nil
	}
	carrier := o.main
	if o.ports != nil {
		carrier = o.ports
	}
	endpoints := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		for _, p := range carrier.Ports {
			if int(p.PrivatePort) != ports[name] || p.PublicPort == 0 || p.Type != "tcp" {
				continue
			}
			address := loopback
			if !p.IP.IsLoopback() && h.url != nil && h.url.Hostname() != "" {
				address = h.url.Hostname()
			}
			endpoints[name] = net.JoinHostPort(address, strconv.Itoa(int(p.PublicPort)))
			break
		}
	}
	return endpoints
}

// A ref names the engine, too: another engine's word that a container is not
// there means nothing.

func refOf(f facts, containerID string) string { return f.id + "/" + containerID }

func parseRef(ref string) (engineID, containerID string) {
	engineID, containerID, ok := strings.Cut(ref, "/")
	if !ok {
		return "", ref
	}
	return engineID, containerID
}

// here refuses a target that lives on another engine.
func (e *Extension) here(target sdk.Target, f facts) error {
	if engineID, _ := parseRef(target.Ref); engineID != "" && engineID != f.id {
		return &sdk.Error{
			Kind: sdk.ErrUnreachable, Message: fmt.Sprintf("sandbox %s is on the engine %s, and the one at %s is %s (%s)", clip(target.ID), clip(engineID), e.host, f.id, f.name),
			Advice: "name the engine that it was made on",
		}
	}
	return nil
}

// find returns one sandbox and its objects.
func (e *Extension) find(ctx context.Context, target sdk.Target) (engine, facts, *object, sdk.Sandbox, error) {
	return e.look(ctx, target, false)
}

// look is find, with what guards the sandbox if that is asked for.
func (e *Extension) look(ctx context.Context, target sdk.Target, guards bool) (eng engine, f facts, o *object, s sdk.Sandbox, err error) {
	fleet, err := e.fleetOf(target.Fleet)
	if err != nil {
		return nil, f, nil, s, err
	}
	if target.ID == "" {
		return nil, f, nil, s, sdk.Invalid("id", "no sandbox is named")
	}
	eng, f, err = e.ask(ctx)
	if err != nil {
		return nil, f, nil, s, err
	}
	if err := e.here(target, f); err != nil {
		return eng, f, nil, s, err
	}
	objects, guarded, err := e.lookup(ctx, eng, fleet, target.ID, guards)
	if err != nil {
		return eng, f, nil, s, err
	}
	o = objects[target.ID]
	if o == nil {
		return eng, f, nil, s, sdk.Errorf(sdk.ErrNotFound, "nothing on the engine at %s carries the id %s in fleet %q", e.host, clip(target.ID), clip(fleet))
	}
	s, err = e.sandbox(o, f, guarded)
	return eng, f, o, s, err
}

// Get implements [sdk.Extension].
func (e *Extension) Get(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	_, _, _, s, err := e.look(ctx, opts.Target, true)
	if err != nil {
		return sdk.GetResult{}, err
	}
	return sdk.GetResult{Sandbox: s}, nil
}

// List implements [sdk.Extension].
func (e *Extension) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	fleet, err := e.fleetOf(opts.Fleet)
	if err != nil {
		return sdk.ListResult{}, err
	}
	eng, f, err := e.ask(ctx)
	if err != nil {
		return sdk.ListResult{}, err
	}
	objects, guarded, err := e.lookup(ctx, eng, fleet, "", true)
	if err != nil {
		return sdk.ListResult{}, err
	}
	var result sdk.ListResult
	for _, id := range slices.Sorted(maps.Keys(objects)) {
		s, err := e.sandbox(objects[id], f, guarded)
		if err != nil {
			result.Unreadable = append(result.Unreadable, id)
			continue
		}
		result.Sandboxes = append(result.Sandboxes, s)
	}
	return result, nil
}
