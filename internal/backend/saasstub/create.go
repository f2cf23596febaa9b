// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// Create and destroy.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Create makes a box.
func (e *Extension) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	return e.create(ctx, opts, "")
}

func (e *Extension) create(ctx context.Context, opts sdk.CreateOptions, imageID string) (sdk.CreateResult, error) {
	if err := e.refuse(opts); err != nil {
		return sdk.CreateResult{}, err
	}
	life, err := wall(opts.Profile.Limits)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	req := CreateBoxRequest{
		Name: opts.ID, Tags: opts.Identity.ToLabels(), FromID: imageID,
		Env: maps.Clone(opts.Profile.Env), Files: map[string]BoxFile{}, Secrets: map[string]string{},
		Command: opts.Profile.Command, Workdir: opts.Profile.Workdir, StopAt: opts.ExpiresAt, MaxLife: life, OnStop: e.onStop(opts.OnExpiry),
		IdleStop: opts.IdleTimeout, KeepImage: cmp.Or(opts.ExpirySnapshotTTL, sdk.DefaultExpirySnapshotTTL),
	}
	lease := sdk.Lease{ExpiresAt: opts.ExpiresAt, MaxExpiresAt: opts.MaxExpiresAt, Generation: 1, Event: opts.Event}
	if lease.MaxExpiresAt.IsZero() {
		lease.MaxExpiresAt = lease.ExpiresAt
	}
	req.Tags[tagLease], req.Tags[tagProfile] = encode(lease), encode(opts.Profile)
	req.Tags[tagOnExpiry] = string(cmp.Or(opts.OnExpiry, sdk.OnExpiryDestroy))
	req.Tags[tagPausedTTL] = cmp.Or(opts.PausedTTL, sdk.DefaultPausedTTL).String()
	if req.Env == nil {
		req.Env = map[string]string{}
	}
	maps.Copy(req.Env, opts.Env)
	if imageID == "" {
		for name, file := range opts.Profile.Files {
			// A validated profile's modes parse.
			mode, _ := strconv.ParseInt(cmp.Or(file.Mode, "0644"), 8, 64)
			req.Files[name] = BoxFile{Content: []byte(file.Content), Mode: mode}
		}
	}
	for name, value := range opts.Secrets {
		req.Secrets[name] = string(value)
	}
	var made Box
	err = e.try(ctx, func(api API) (err error) {
		made, err = api.CreateBox(ctx, req)
		return err
	})
	if hasCode(err, CodeNameTaken) {
		return e.taken(ctx, opts, err)
	}
	if err != nil {
		return sdk.CreateResult{}, err
	}
	made, _, err = e.settleLease(ctx, made, lease)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	s, _, err := sandboxOf(made, opts.Identity.Fleet)
	return sdk.CreateResult{Sandbox: s}, err
}

// taken tells a second create of an id, which is a conflict, from one request
// that arrived twice: the box then carries this very create's event.
func (e *Extension) taken(ctx context.Context, opts sdk.CreateOptions, cause error) (sdk.CreateResult, error) {
	b, err := e.find(ctx, sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet})
	if err != nil {
		return sdk.CreateResult{}, errors.Join(cause, err)
	}
	s, _, err := sandboxOf(b, opts.Identity.Fleet)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	if s.Lease.Event == opts.Event && opts.Event != (sdk.EventRef{}) && s.Lease.Generation == 1 {
		return sdk.CreateResult{Sandbox: s}, nil
	}
	return sdk.CreateResult{}, sdk.Conflict(s.Lease, "sandbox %s exists as box %s", opts.ID, b.ID)
}

// The bounds of waiting for a box to be gone.
const (
	goneTries = 6
	gonePause = 10 * time.Millisecond
)

// Destroy deletes a box, and returns when neither its ref nor its label find
// anything.
func (e *Extension) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	result := sdk.DestroyResult{}
	var last error
	for attempt := range goneTries {
		if attempt > 0 {
			if err := e.wait.Sleep(ctx, gonePause<<attempt); err != nil {
				return result, errors.Join(last, err)
			}
		}
		b, err := e.find(ctx, opts.Target)
		if errors.Is(err, sdk.ErrNotFound) {
			result.Leftovers = nil
			return result, nil
		}
		if err != nil {
			// A contradiction or a lost answer may pass; other errors stay.
			if last = err; !errors.Is(err, sdk.ErrUnreachable) && !errors.Is(err, errContradiction) {
				return result, err
			}
			continue
		}
		result.Existed, result.Leftovers = true, []string{"box " + b.ID + ": it is still there"}
		err = e.try(ctx, func(api API) error { return api.DeleteBox(ctx, b.ID) })
		if err != nil && !errors.Is(err, sdk.ErrNotFound) && !answerLost(err) {
			return result, err
		}
		last = err
		// Whatever the answer was, the next look decides.
		if len(result.Removed) == 0 {
			result.Removed = []string{"box " + b.ID}
		}
	}
	result.Removed = nil
	if last == nil {
		last = errContradiction // every delete was said to be done
	}
	return result, fmt.Errorf("sandbox %s could not be seen gone: %w", opts.Target.ID, last)
}
