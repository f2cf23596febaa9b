// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// Finding sandboxes: one, and all.

import (
	"context"
	"errors"
	"fmt"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// pageSize is the vendor's most.
	pageSize = 100
	// pagesMost bounds a listing, so that one without an end is noticed.
	pagesMost = 1000
	// strays bounds how many sandboxes that a listing lacks are asked for one
	// by one: of those that should be there, and of those whose time is over.
	strays = 20
)

// found is a sandbox with what it was read from.
type found struct {
	sandbox sdk.Sandbox
	vendor  vendorSandbox
	object  object
	record  *record
}

// Get returns one sandbox.
func (e *Extension) Get(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	f, err := e.find(ctx, opts.Target)
	return sdk.GetResult{Sandbox: f.sandbox}, err
}

// errContradiction is met when a sandbox is not found and yet listed.
var errContradiction = errors.New("E2B contradicts itself")

// find returns the sandbox of a target: by its ref, by the one in the record,
// and by the id in the metadata. Not found means that none of them found it
// and the service said so itself.
func (e *Extension) find(ctx context.Context, target sdk.Target) (found, error) {
	kept, err := e.records.get(target.ID, target.Fleet)
	if err != nil {
		return found{}, err
	}
	denied := map[string]bool{}
	refs := []string{target.Ref}
	if kept != nil {
		refs = append(refs, kept.Ref)
	}
	for _, ref := range refs {
		if ref == "" || denied[ref] {
			continue
		}
		v, err := e.client.getSandbox(ctx, ref)
		if err == nil {
			f, ok, err := e.foundAs(v, target, kept)
			if ok || err != nil {
				return f, err
			}
		} else if !errors.Is(err, sdk.ErrNotFound) {
			return found{}, err
		}
		denied[ref] = true
	}
	all, incomplete, err := e.allOf(ctx, target.ID, target.Fleet)
	if err != nil {
		return found{}, err
	}
	for _, v := range all {
		if denied[v.SandboxID] {
			// A listing may lag behind, or the 404 was a lie. Neither is
			// "unreachable", which would be no news of the sandbox.
			return found{}, fmt.Errorf("%w about sandbox %s", errContradiction, v.SandboxID)
		}
		if f, ok, err := e.foundAs(v, target, kept); ok || err != nil {
			return f, err
		}
	}
	if incomplete != "" {
		return found{}, sdk.Errorf(sdk.ErrUnreachable, "sandbox %s was not found, but %s", target.ID, incomplete)
	}
	return found{}, sdk.Errorf(sdk.ErrNotFound, "no E2B sandbox carries the id %s", target.ID)
}

// foundAs returns what a sandbox is, if it is the target's.
func (e *Extension) foundAs(v vendorSandbox, target sdk.Target, kept *record) (found, bool, error) {
	o, ok, err := objectOf(v, target.Fleet)
	if err != nil || !ok || o.Identity.ID != target.ID {
		return found{}, false, err
	}
	if kept != nil && kept.Ref != "" && kept.Ref != v.SandboxID {
		kept = nil // it is about another one
	}
	s, ok, err := e.sandboxOf(v, target.Fleet, kept)
	return found{s, v, o, kept}, ok, err
}

// List returns the fleet.
func (e *Extension) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	// Before the listing: what is made meanwhile is not missing from it.
	kept, err := e.records.all(opts.Fleet)
	if err != nil {
		return sdk.ListResult{}, err
	}
	vendor, incomplete, err := e.listed(ctx, map[string]string{metaFleet: fleetKey(opts.Fleet)})
	if err != nil {
		return sdk.ListResult{}, err
	}
	result := sdk.ListResult{Incomplete: incomplete}
	seen := map[string]bool{}
	for _, v := range vendor {
		s, ok, err := e.sandboxOf(v, opts.Fleet, kept[v.Metadata[metaID]])
		if err != nil {
			result.Incomplete = err.Error()
			continue
		}
		if ok && !seen[s.ID] {
			seen[s.ID] = true
			result.Sandboxes = append(result.Sandboxes, s)
		}
	}
	return result, e.addStrays(ctx, opts.Fleet, kept, seen, &result)
}

// addStrays asks for what is known here and was not listed: the service leaves
// a sandbox out while a snapshot of it is made, and pages can be lost. One whose
// time is over is asked for as well, so that its record goes, but that there are
// many of those says nothing about the listing: the vendor has ended them.
func (e *Extension) addStrays(ctx context.Context, fleet string, kept map[string]*record, seen map[string]bool, result *sdk.ListResult) error {
	now := e.now()
	asked := map[bool]int{} // by whether its time is over
	for _, id := range sorted(kept) {
		if seen[id] || kept[id].Ref == "" {
			continue
		}
		over := kept[id].Lease.Expired(now)
		if asked[over]++; asked[over] > strays {
			if !over {
				result.Incomplete = fmt.Sprintf("the listing lacks more than %d sandboxes that are known here", strays)
			}
			continue
		}
		if err := e.addStray(ctx, fleet, id, kept[id], result); err != nil {
			return err
		}
	}
	return nil
}

func (e *Extension) addStray(ctx context.Context, fleet, id string, kept *record, result *sdk.ListResult) error {
	v, err := e.client.getSandbox(ctx, kept.Ref)
	if absent(err) {
		return e.records.drop(id)
	}
	if err != nil {
		result.Incomplete = fmt.Sprintf("sandbox %s is not listed, and asking for it failed: %s", id, err)
		return nil
	}
	s, ok, err := e.sandboxOf(v, fleet, kept)
	if ok && err == nil {
		result.Sandboxes = append(result.Sandboxes, s)
	}
	return err
}

// allOf returns every sandbox that carries an id.
func (e *Extension) allOf(ctx context.Context, id, fleet string) (all []vendorSandbox, incomplete string, err error) {
	return e.listed(ctx, map[string]string{metaID: id, metaFleet: fleetKey(fleet)})
}

// matching is listed for whoever searches again anyway.
func (e *Extension) matching(ctx context.Context, metadata map[string]string) ([]vendorSandbox, error) {
	all, _, err := e.listed(ctx, metadata)
	return all, err
}

// listed takes a whole listing: every sandbox once, whatever is repeated, and
// says why when it may lack one.
func (e *Extension) listed(ctx context.Context, metadata map[string]string) (all []vendorSandbox, incomplete string, err error) {
	seen, tokens := map[string]bool{}, map[string]bool{}
	token := ""
	for range pagesMost {
		page, next, err := e.client.listSandboxes(ctx, listQuery{metadata: metadata, token: token, limit: pageSize})
		if err != nil {
			return nil, "", err
		}
		for _, v := range page {
			if !seen[v.SandboxID] {
				seen[v.SandboxID] = true
				all = append(all, v)
			}
		}
		if next == "" {
			return all, incomplete, nil
		}
		if len(page) < pageSize {
			incomplete = fmt.Sprintf("a page that is not the last held %d of %d sandboxes", len(page), pageSize)
		}
		if tokens[next] {
			return all, "the listing comes back to a page that it has given already", nil
		}
		tokens[next], token = true, next
	}
	return all, fmt.Sprintf("the listing did not end after %d pages", pagesMost), nil
}
