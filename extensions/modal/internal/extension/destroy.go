// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// Destroying: terminated, and seen gone by ref and by id.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The bounds of waiting for a sandbox to be gone.
const (
	goneTries = 6
	gonePause = 50 * time.Millisecond
	// failTries bounds how often a service is asked that gives no answer: the
	// client has asked each time more than once.
	failTries = 3
	// endWait is how long one call waits for the end that was asked for.
	endWait = 5 * time.Second
)

// Destroy implements [sdk.Extension].
func (e *Extension) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	result := sdk.DestroyResult{}
	target := opts.Target
	removed := map[string]bool{}
	var last error
	failed := 0
	for attempt := range goneTries {
		// What was ended without a doubt is looked for at once.
		if last != nil || len(result.Leftovers) > 0 {
			if err := e.opts.Clock.Sleep(ctx, gonePause<<attempt); err != nil {
				return result, errors.Join(err, last)
			}
		}
		refs, err := e.refsOf(ctx, target)
		if err != nil {
			// An answer that was lost may come next time; other errors stay.
			failed++
			if last = err; !errors.Is(err, sdk.ErrUnreachable) || failed == failTries || ctx.Err() != nil {
				return result, err
			}
			continue
		}
		result.Leftovers = nil
		if len(refs) == 0 {
			for _, ref := range slices.Sorted(maps.Keys(removed)) {
				result.Removed = append(result.Removed, "sandbox "+ref)
			}
			return result, nil
		}
		last = nil
		for _, ref := range refs {
			result.Existed = true
			gone, err := e.remove(ctx, ref)
			if gone {
				removed[ref] = true
				e.forget(ref)
				continue
			}
			result.Leftovers = append(result.Leftovers, "sandbox "+ref+": it is still there")
			last = errors.Join(last, err)
		}
		if errors.Is(last, sdk.ErrUnreachable) {
			failed++
		}
		if failed == failTries || last != nil && !errors.Is(last, sdk.ErrUnreachable) && !errors.Is(last, sdk.ErrQuota) && !errors.Is(last, sdk.ErrNotFound) {
			return result, last
		}
	}
	if last == nil {
		last = errContradiction // every terminate was said to be done
	}
	if errors.Is(last, sdk.ErrNotFound) {
		// Not its kind: nothing was seen to be gone.
		last = fmt.Errorf("%w: it is listed and can't be ended: %s", errContradiction, last.Error())
	}
	return result, fmt.Errorf("sandbox %s could not be seen gone: %w", target.ID, last)
}

// remove terminates one sandbox and waits until the service shows its end.
func (e *Extension) remove(ctx context.Context, ref string) (gone bool, err error) {
	err = e.client.terminate(ctx, ref)
	if err != nil && !errors.Is(err, sdk.ErrUnreachable) && !errors.Is(err, sdk.ErrNotFound) && !errors.Is(err, sdk.ErrConflict) {
		return false, err
	}
	// Whatever the answer was, the look decides.
	wait := endWait
	if err != nil {
		wait = 0
	}
	end, look := e.client.ended(ctx, ref, wait)
	if look == nil && end != nil {
		return true, nil
	}
	return false, errors.Join(err, look)
}

// refsOf returns the sandboxes of a target that run: by its ref and by the id.
// Each was seen to be the target's own.
func (e *Extension) refsOf(ctx context.Context, target sdk.Target) ([]string, error) {
	var refs []string
	if !sdk.IsSandboxID(target.ID) {
		return nil, nil // nothing ever had that id
	}
	if target.Ref != "" {
		v, end, err := e.byRef(ctx, target.Ref)
		switch {
		case err == nil && end == nil && isOurs(v.tags, target.Fleet) && v.tags[tagID] == target.ID:
			refs = append(refs, target.Ref)
		case err != nil && !errors.Is(err, sdk.ErrNotFound):
			return nil, err
		}
	}
	all, incomplete, err := e.byID(ctx, target.ID, target.Fleet)
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if !slices.Contains(refs, v.ref) {
			refs = append(refs, v.ref)
		}
	}
	if len(refs) == 0 && incomplete != "" {
		return nil, sdk.Errorf(sdk.ErrUnreachable, "sandbox %s was not found, but %s", target.ID, incomplete)
	}
	return refs, nil
}
