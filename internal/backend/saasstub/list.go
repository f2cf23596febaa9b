// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Finding boxes: one, and all.

import (
	"context"
	"errors"
	"fmt"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	pageSize = 100
	// listTries bounds how often a listing is taken that lacks something.
	listTries = 3
	// pagesMost bounds a listing, so that a vendor that repeats a page for
	// ever is noticed.
	pagesMost = 10_000
)

// Get returns one sandbox.
func (e *Extension) Get(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	b, err := e.find(ctx, opts.Target)
	if err != nil {
		return sdk.GetResult{}, err
	}
	s, _, err := sandboxOf(b, opts.Target.Fleet)
	return sdk.GetResult{Sandbox: s}, err
}

// errContradiction is met when a box is not found and yet listed.
var errContradiction = errors.New("the vendor contradicts itself")

// find returns the box of a sandbox: by its ref, and when that finds
// nothing, or something else, by the label. Not found means that both found
// nothing.
func (e *Extension) find(ctx context.Context, target sdk.Target) (Box, error) {
	if target.Ref != "" {
		var b Box
		err := e.try(ctx, func(api API) (err error) {
			b, err = api.GetBox(ctx, target.Ref)
			return err
		})
		if err == nil {
			s, ok, err := sandboxOf(b, target.Fleet)
			if err != nil || (ok && s.ID == target.ID) {
				return b, err
			}
		}
		if err != nil && !errors.Is(err, sdk.ErrNotFound) {
			return Box{}, err
		}
	}
	found, incomplete, err := list(ctx, e, map[string]string{sdk.LabelFleet: target.Fleet, sdk.LabelID: target.ID}, API.ListBoxes, func(b Box) string { return b.ID })
	if err != nil {
		return Box{}, err
	}
	for _, b := range found {
		if target.Ref == b.ID {
			// A listing may lag behind a delete, or the 404 was a lie.
			// Neither is "unreachable", which would be no news of the box.
			return Box{}, fmt.Errorf("%w about box %s", errContradiction, b.ID)
		}
		if _, ok, err := sandboxOf(b, target.Fleet); ok || err != nil {
			return b, err
		}
	}
	if incomplete != "" {
		return Box{}, sdk.Errorf(sdk.ErrUnreachable, "sandbox %s was not found, but %s", target.ID, incomplete)
	}
	return Box{}, sdk.Errorf(sdk.ErrNotFound, "no box carries the id %s", target.ID)
}

// List returns the fleet.
func (e *Extension) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	boxes, incomplete, err := list(ctx, e, map[string]string{sdk.LabelFleet: opts.Fleet}, API.ListBoxes, func(b Box) string { return b.ID })
	if err != nil {
		return sdk.ListResult{}, err
	}
	result := sdk.ListResult{Incomplete: incomplete}
	for _, b := range boxes {
		s, ok, err := sandboxOf(b, opts.Fleet)
		if err != nil {
			result.Incomplete = err.Error()
			continue
		}
		if ok {
			result.Sandboxes = append(result.Sandboxes, s)
		}
	}
	return result, nil
}

// list takes a whole listing: every thing once, whatever the vendor repeats,
// and says why when it may lack one.
func list[T any](ctx context.Context, e *Extension, tags map[string]string, call func(API, context.Context, ListRequest) (Page[T], error), id func(T) string) (all []T, incomplete string, err error) {
	for range listTries {
		all, incomplete, err = listOnce(ctx, e, tags, call, id)
		if err == nil && incomplete == "" {
			return all, "", nil
		}
		if err != nil && !errors.Is(err, sdk.ErrUnreachable) {
			return nil, "", err
		}
	}
	return all, incomplete, err
}

func listOnce[T any](ctx context.Context, e *Extension, tags map[string]string, call func(API, context.Context, ListRequest) (Page[T], error), id func(T) string) (all []T, incomplete string, err error) {
	seen := map[string]bool{}
	cursor := ""
	for range pagesMost {
		var page Page[T]
		err := e.try(ctx, func(api API) (err error) {
			page, err = call(api, ctx, ListRequest{Tags: tags, Cursor: cursor, Limit: pageSize})
			return err
		})
		if errors.Is(err, sdk.ErrNotFound) {
			// Not finding the listing is not finding nothing in it.
			err = sdk.Errorf(sdk.ErrUnreachable, "the vendor has no listing: %s", err)
		}
		if err != nil {
			return nil, "", err
		}
		for _, item := range page.Items {
			if !seen[id(item)] {
				seen[id(item)] = true
				all = append(all, item)
			}
		}
		if cursor = page.Next; cursor != "" {
			continue
		}
		// What is there now was there when its page was taken, or came
		// later at the end: fewer than the total means that a page was lost.
		if len(all) < page.Total {
			incomplete = fmt.Sprintf("the vendor counts %d and listed %d", page.Total, len(all))
		}
		return all, incomplete, nil
	}
	return all, fmt.Sprintf("the listing did not end after %d pages", pagesMost), nil
}
