// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// Destroying: deleted, and seen gone by ref and by id.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The bounds of waiting for a sandbox to be gone.
const (
	goneTries = 6
	gonePause = 50 * time.Millisecond
)

// remove deletes one sandbox and reports whether the service then said that it
// is gone. The service kills what runs and then removes what is stored: one
// whose time is over may still be there as paused, so it is deleted anyway.
func (e *Extension) remove(ctx context.Context, ref string) (existed, gone bool, err error) {
	err = e.client.deleteSandbox(ctx, ref)
	existed = err == nil
	if err != nil && !absent(err) && status(err) != http.StatusConflict && !unknown(err) {
		return existed, false, err
	}
	_, look := e.client.getSandbox(ctx, ref)
	if absent(look) {
		return existed, true, nil
	}
	if look == nil {
		existed = true
	}
	if absent(err) {
		err = nil // it denies what it shows
	}
	// Whatever the delete said, the look decides; an error of either is told.
	return existed, false, errors.Join(err, look)
}

// Destroy implements [sdk.Extension].
func (e *Extension) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	result := sdk.DestroyResult{}
	target := opts.Target
	removed := map[string]bool{}
	var last error
	for attempt := range goneTries {
		// What was removed without a doubt is looked for at once.
		if last != nil || len(result.Leftovers) > 0 {
			if err := e.opts.Clock.Sleep(ctx, gonePause<<attempt); err != nil {
				return result, errors.Join(last, err)
			}
		}
		refs, err := e.refsOf(ctx, target)
		if err != nil {
			// An answer that was lost may come next time; other errors stay.
			if last = err; !errors.Is(err, sdk.ErrUnreachable) {
				return result, err
			}
			continue
		}
		if len(refs) == 0 {
			result.Leftovers = nil
			for _, ref := range sorted(removed) {
				result.Removed = append(result.Removed, "sandbox "+ref)
			}
			return result, e.records.dropOf(target.ID, target.Fleet)
		}
		result.Leftovers = nil
		last = nil
		for _, ref := range refs {
			result.Existed = true
			existed, gone, err := e.remove(ctx, ref)
			if existed || gone {
				removed[ref] = true
			}
			if !gone {
				result.Leftovers = append(result.Leftovers, "sandbox "+ref+": it is still there")
			}
			last = errors.Join(last, err)
		}
		if last != nil && !errors.Is(last, sdk.ErrUnreachable) && !errors.Is(last, sdk.ErrQuota) && status(last) != http.StatusConflict {
			return result, last
		}
	}
	if last == nil {
		last = errContradiction // every delete was said to be done
	}
	return result, fmt.Errorf("sandbox %s could not be seen gone: %w", target.ID, last)
}

// refsOf returns the sandboxes of a target that are there: by its ref, by the
// record's, and by the id. Each was seen to be the target's own.
func (e *Extension) refsOf(ctx context.Context, target sdk.Target) ([]string, error) {
	kept, err := e.records.get(target.ID, target.Fleet)
	if err != nil {
		return nil, err
	}
	asked := []string{target.Ref}
	if kept != nil {
		asked = append(asked, kept.Ref)
	}
	var refs []string
	add := func(v vendorSandbox) error {
		o, ok, err := objectOf(v, target.Fleet)
		if err == nil && ok && o.Identity.ID == target.ID && !slices.Contains(refs, v.SandboxID) {
			refs = append(refs, v.SandboxID)
		}
		return err
	}
	for i, ref := range asked {
		if ref == "" || slices.Contains(asked[:i], ref) {
			continue
		}
		v, err := e.client.getSandbox(ctx, ref)
		if err == nil {
			err = add(v)
		}
		if err != nil && !errors.Is(err, sdk.ErrNotFound) {
			return nil, err
		}
	}
	all, incomplete, err := e.allOf(ctx, target.ID, target.Fleet)
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if err := add(v); err != nil {
			return nil, err
		}
	}
	if len(refs) == 0 && incomplete != "" {
		return nil, sdk.Errorf(sdk.ErrUnreachable, "sandbox %s was not found, but %s", target.ID, incomplete)
	}
	return refs, nil
}
