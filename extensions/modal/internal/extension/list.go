// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// Finding sandboxes: one, and all.

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// listTries bounds how often a listing is taken that lacks something.
	listTries = 3
	// pagesMost bounds a listing, so that one without end is noticed.
	pagesMost = 10_000
	// overlap is by how much a page reaches into the one before, in seconds.
	// It is more than the steps of a number that holds such a time.
	overlap = 2e-6
)

// Get implements [sdk.Extension].
func (e *Extension) Get(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	f, err := e.find(ctx, opts.Target)
	if err != nil {
		return sdk.GetResult{}, err
	}
	err = e.addEndpoints(ctx, &f)
	return sdk.GetResult{Sandbox: f.sandbox}, err
}

// List implements [sdk.Extension].
func (e *Extension) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	all, incomplete, err := e.all(ctx, opts.Fleet, map[string]string{tagFleet: fleetKey(opts.Fleet)})
	if err != nil {
		return sdk.ListResult{}, err
	}
	result := sdk.ListResult{Incomplete: incomplete}
	for _, v := range all {
		if !isOurs(v.tags, opts.Fleet) {
			continue
		}
		f, err := e.meaning(v, opts.Fleet)
		if err == nil {
			err = e.addEndpoints(ctx, &f)
		}
		if err != nil {
			if ctx.Err() != nil {
				return sdk.ListResult{}, ctx.Err()
			}
			result.Unreadable = append(result.Unreadable, v.tags[tagID])
			continue
		}
		result.Sandboxes = append(result.Sandboxes, f.sandbox)
	}
	return result, nil
}

// errContradiction is met when a sandbox is not found and yet listed.
var errContradiction = errors.New("Modal contradicts itself") //nolint:staticcheck // a name begins with a capital

// find returns the sandbox of a target: by its ref, and when that finds nothing,
// or something else, by the tag. Not found means that both found nothing that
// runs.
func (e *Extension) find(ctx context.Context, target sdk.Target) (found, error) {
	if !sdk.IsSandboxID(target.ID) {
		return found{}, sdk.Errorf(sdk.ErrNotFound, "%.80q is not a sandbox id", target.ID)
	}
	why := ""
	if target.Ref != "" {
		v, end, err := e.byRef(ctx, target.Ref)
		switch {
		case err == nil && !isOurs(v.tags, target.Fleet), err == nil && v.tags[tagID] != target.ID:
		case err == nil && end == nil:
			return e.meaning(v, target.Fleet)
		case err == nil:
			why = ": " + end.String()
		case !errors.Is(err, sdk.ErrNotFound):
			return found{}, err
		}
	}
	all, incomplete, err := e.byID(ctx, target.ID, target.Fleet)
	if err != nil {
		return found{}, err
	}
	switch {
	case len(all) > 0 && all[0].ref == target.Ref:
		// A listing may lag behind an end, or the answer was a lie. Neither is
		// "unreachable", which would be no news of it.
		return found{}, fmt.Errorf("%w about sandbox %s (%s): it is listed and not found", errContradiction, target.ID, target.Ref)
	case len(all) > 0:
		return e.meaning(all[0], target.Fleet)
	}
	if incomplete != "" {
		return found{}, sdk.Errorf(sdk.ErrUnreachable, "sandbox %s was not found, but %s", target.ID, incomplete)
	}
	return found{}, sdk.Errorf(sdk.ErrNotFound, "no Modal sandbox that runs has the id %s%s", target.ID, why)
}

// byRef asks for a sandbox by the vendor's handle: its tags, and its end.
func (e *Extension) byRef(ctx context.Context, ref string) (vendorSandbox, *ending, error) {
	v := vendorSandbox{ref: ref}
	var end *ending
	var tagErr, endErr error
	var calls sync.WaitGroup
	calls.Go(func() { v.tags, tagErr = e.client.getTags(ctx, ref) })
	calls.Go(func() { end, endErr = e.client.ended(ctx, ref, 0) })
	calls.Wait()
	if tagErr != nil && endErr != nil {
		return v, nil, tagErr
	}
	return v, end, errors.Join(tagErr, endErr)
}

// byID returns the sandboxes of a fleet that run and have an id: by the tag, and
// when that finds nothing by the name, for a listing may lag behind a create.
func (e *Extension) byID(ctx context.Context, id, fleet string) ([]vendorSandbox, string, error) {
	all, incomplete, err := e.all(ctx, fleet, map[string]string{tagFleet: fleetKey(fleet), tagID: id})
	if err != nil {
		return nil, "", err
	}
	var ours []vendorSandbox
	for _, v := range all {
		if isOurs(v.tags, fleet) && v.tags[tagID] == id {
			ours = append(ours, v)
		}
	}
	if len(ours) > 0 {
		return ours, incomplete, nil
	}
	ref, err := e.client.named(ctx, appName(fleet), id)
	if errors.Is(err, sdk.ErrNotFound) {
		return nil, incomplete, nil
	}
	if err != nil {
		return nil, "", err
	}
	v, end, err := e.byRef(ctx, ref)
	switch {
	case errors.Is(err, sdk.ErrNotFound), err == nil && end != nil:
		return nil, incomplete, nil // it has just ended
	case err != nil:
		return nil, "", err
	case isOurs(v.tags, fleet) && v.tags[tagID] == id:
		return []vendorSandbox{v}, incomplete, nil
	}
	return nil, incomplete, nil
}

// all takes a listing of both generations, every sandbox once, and says why when
// it may lack one.
func (e *Extension) all(ctx context.Context, fleet string, tags map[string]string) ([]vendorSandbox, string, error) {
	app, err := e.client.app(ctx, appName(fleet), false)
	if errors.Is(err, sdk.ErrNotFound) {
		return nil, "", ctx.Err() // without its app a fleet has nothing
	}
	if err != nil {
		return nil, "", err
	}
	var merged []vendorSandbox
	var problem string
	for range listTries {
		merged, problem = nil, ""
		for _, v1 := range []bool{false, true} {
			part, incomplete, err := e.generation(ctx, app.AppID, tags, v1)
			if errors.Is(err, sdk.ErrNotFound) {
				// The app was removed, or the service has no listing: neither is
				// an empty one.
				e.client.dropApp(appName(fleet))
				err = sdk.Errorf(sdk.ErrUnreachable, "Modal has no listing of the app %s: %s", appName(fleet), err)
			}
			if err != nil {
				return nil, "", err // the client has asked more than once
			}
			merged = append(merged, part...)
			if problem == "" {
				problem = incomplete
			}
		}
		if problem == "" {
			break
		}
	}
	for i, v := range merged {
		if len(v.tags) == 0 {
			// The service lists it and tells no tags: they are asked for.
			if merged[i].tags, err = e.client.getTags(ctx, v.ref); err != nil && !errors.Is(err, sdk.ErrNotFound) {
				return nil, "", err
			}
		}
	}
	return merged, problem, nil
}

// generation takes the pages of one generation. A page is asked for so that the
// last of the one before has to be in it again: what is made or ends meanwhile
// moves nothing, equal times at a border lose nothing, and a page that was lost
// or skipped is noticed.
func (e *Extension) generation(ctx context.Context, app string, tags map[string]string, v1 bool) (all []vendorSandbox, incomplete string, err error) {
	seen := map[string]bool{}
	before, largest := 0.0, 0
	var last *vendorSandbox // of the page before
	for range pagesMost {
		page, err := e.client.page(ctx, app, tags, before, v1)
		if err != nil {
			return nil, "", err
		}
		largest = max(largest, len(page))
		again, news := last == nil, 0
		oldest := last
		for _, v := range page {
			if last != nil && v.ref == last.ref {
				again = true
			}
			if oldest == nil || v.created <= oldest.created {
				oldest = &v
			}
			if !seen[v.ref] {
				seen[v.ref] = true
				news++
				all = append(all, v)
			}
		}
		switch {
		case last == nil && len(page) == 0:
			return all, "", nil
		case !again:
			return all, fmt.Sprintf("a page of its listing does not go on from the one before, which ended with %s", last.ref), nil
		case news == 0 && len(page) < largest:
			return all, "", nil // a short page is the last one
		case news == 0 && largest > 1:
			return all, "its listing begins anew, or has more sandboxes of one time than a page holds", nil
		case news == 0:
			return e.beyond(ctx, app, tags, all, oldest, v1)
		}
		last, before = oldest, oldest.created+overlap
	}
	return all, fmt.Sprintf("its listing did not end after %d pages", pagesMost), nil
}

// beyond goes on where a page may hold one sandbox only, and so can't overlap.
func (e *Extension) beyond(ctx context.Context, app string, tags map[string]string, all []vendorSandbox, oldest *vendorSandbox, v1 bool) ([]vendorSandbox, string, error) {
	for range pagesMost {
		page, err := e.client.page(ctx, app, tags, oldest.created, v1)
		switch {
		case err != nil:
			return nil, "", err
		case len(page) == 0:
			return all, "", nil
		case page[0].created >= oldest.created:
			return all, "its listing begins anew, whatever page is asked for", nil
		}
		all, oldest = append(all, page...), &page[len(page)-1]
	}
	return all, fmt.Sprintf("its listing did not end after %d pages", pagesMost), nil
}

// addEndpoints fills in where the ports of a sandbox are.
func (e *Extension) addEndpoints(ctx context.Context, f *found) error {
	if len(f.object.Profile.Ports) == 0 || f.sandbox.Status == sdk.StatusExpired || f.sandbox.Status == sdk.StatusDestroying {
		return nil
	}
	e.mu.Lock()
	known := e.ports[f.vendor.ref]
	e.mu.Unlock()
	if known == nil {
		known = f.vendor.tunnels
	}
	if known == nil {
		var err error
		if known, err = e.client.getTunnels(ctx, f.vendor.ref); err != nil {
			return err
		}
	}
	e.mu.Lock()
	e.ports[f.vendor.ref] = known
	e.mu.Unlock()
	f.sandbox.Endpoints = map[string]string{}
	for name, port := range f.object.Profile.Ports {
		endpoint := known[port].tls
		if known[port].tcp != "" {
			endpoint = known[port].tcp
		}
		if endpoint != "" {
			f.sandbox.Endpoints[name] = endpoint
		}
	}
	return nil
}
