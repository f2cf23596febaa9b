// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// The lease: a log of generations, each a labelled volume that is never
// mounted. Creating a volume of a given name is atomic and returns the first
// writer's labels, so whoever finds their own nonce in the answer has won.
// (Renaming a container is not: of two at once both succeed.) Nothing inside
// of a sandbox can reach a volume that is not mounted.

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// record is one generation.
type record struct {
	volume     string
	generation int64
	nonce      string
	lease      sdk.Lease
}

func readRecord(id, volume string, labels map[string]string) (record, error) {
	r := record{volume: volume, nonce: labels[labelNonce]}
	number, ok := strings.CutPrefix(volume, leaseName(id, ""))
	generation, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || generation < 1 {
		return r, fmt.Errorf("volume %s is no lease of %s", clip(volume), clip(id))
	}
	if err := json.Unmarshal([]byte(labels[labelLease]), &r.lease); err != nil {
		return r, fmt.Errorf("volume %s: label %s: %w", clip(volume), labelLease, err)
	}
	r.generation, r.lease.Generation = generation, generation
	return r, nil
}

// recoveryGrace is the life of a sandbox whose record was removed by somebody
// else: it is not killed for that.
const recoveryGrace = 10 * time.Minute

// lease returns the present lease. Without a record it is the one that the
// container was made with, for at least the grace; note says so.
func (o *object) lease(now time.Time) (present sdk.Lease, recorded bool, note string) {
	if n := len(o.records); n > 0 {
		return o.records[n-1].lease, true, ""
	}
	if o.main != nil {
		// A label that can't be read leaves the zero lease, and the grace.
		_ = json.Unmarshal([]byte(o.main.Labels[labelLease]), &present)
	}
	present.Generation, present.Claimed = 0, false
	if least := now.Add(recoveryGrace).Truncate(time.Minute); present.ExpiresAt.Before(least) {
		present.ExpiresAt = least
	}
	if present.MaxExpiresAt.Before(present.ExpiresAt) {
		present.MaxExpiresAt = present.ExpiresAt
	}
	return present, false, "its lease record is gone; the next change of the lease writes a new one"
}

// Extend implements [sdk.Extension].
func (e *Extension) Extend(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(o *object, s sdk.Sandbox, present sdk.Lease, now time.Time) (sdk.Lease, error) {
		lease, err := sdk.ExtendLease(present, now, opts.Generation, opts.ExpiresAt, opts.Event)
		if err != nil {
			return lease, err
		}
		// A lease of something that is gone can't be extended into life.
		if s.Status == sdk.StatusLost {
			return present, sdk.Expired(present, "sandbox %s is lost: %s", clip(o.id), s.Reason)
		}
		// Somebody has to keep the later deadline: what nobody would end does
		// not get more life.
		eng, err := e.connect()
		if err == nil {
			err = e.guard(ctx, eng, o.identity.Fleet)
		}
		return lease, err
	})
	if err == nil {
		// It may have gone meanwhile, with a record left behind.
		err = e.afterExtend(ctx, opts.Target)
	}
	return sdk.ExtendResult{Lease: lease}, err
}

// Expire implements [sdk.Extension].
func (e *Extension) Expire(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(_ *object, _ sdk.Sandbox, present sdk.Lease, now time.Time) (sdk.Lease, error) {
		return sdk.ExpireLease(present, now, opts.Generation, opts.ExpiresAt, opts.Event)
	})
	return sdk.ExpireResult{Lease: lease}, err
}

// Claim implements [sdk.Extension].
func (e *Extension) Claim(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	lease, err := e.changeLease(ctx, opts.Target, opts.Event, func(_ *object, _ sdk.Sandbox, present sdk.Lease, now time.Time) (sdk.Lease, error) {
		return sdk.ClaimLease(present, now, opts.Generation, opts.Holder, opts.OnlyExpired, opts.Event)
	})
	return sdk.ClaimResult{Lease: lease}, err
}

// afterExtend looks once at what was extended.
func (e *Extension) afterExtend(ctx context.Context, target sdk.Target) error {
	eng, _, o, _, err := e.find(ctx, target)
	if err != nil {
		return err
	}
	if o.main == nil {
		for _, r := range o.records {
			e.removeVolume(ctx, eng, r.volume)
		}
		return sdk.Errorf(sdk.ErrNotFound, "sandbox %s was destroyed while it was extended", clip(target.ID))
	}
	return nil
}

type leaseRule func(o *object, s sdk.Sandbox, present sdk.Lease, now time.Time) (sdk.Lease, error)

const (
	// leaseTries bounds how often a change is tried against others.
	leaseTries = 20
	// voidAfter is how often a generation without labels is met before it
	// counts as void: its writer died between the volume and its labels.
	voidAfter = 3
	voidPause = time.Second
)

// changeLease applies a rule to the present lease and writes what it gives as
// the next generation. When somebody else was faster, the rule decides again.
func (e *Extension) changeLease(ctx context.Context, target sdk.Target, event sdk.EventRef, rule leaseRule) (sdk.Lease, error) {
	voids := map[int64]int{}
	for range leaseTries {
		eng, f, o, s, err := e.find(ctx, target)
		if err != nil {
			return sdk.Lease{}, err
		}
		now := e.now(f)
		present, recorded, _ := o.lease(now)
		if recorded && event != (sdk.EventRef{}) && present.Event == event {
			return present, nil // an earlier try, whose answer was lost
		}
		next := present.Generation + 1
		changed := present
		if recorded {
			if changed, err = rule(o, s, present, now); err != nil || changed == present {
				return present, err
			}
		} else {
			// The record is written first, under a generation that none before
			// it can have had; the rule then decides on that.
			next = now.Unix()
			changed.Generation = next
		}
		for voids[next] >= voidAfter {
			next++
		}
		changed.Generation = next
		outcome, err := e.writeRecord(ctx, eng, o, changed)
		switch {
		case err != nil && !lost(err):
			return present, e.translate(err, "write the lease of "+target.ID)
		case err != nil:
			// Whether it was written shows at the next look.
		case outcome == recordVoid:
			if voids[next]++; voids[next] < voidAfter {
				if err := e.opts.Clock.Sleep(ctx, voidPause); err != nil {
					return present, err
				}
			}
		case outcome == recordWritten && recorded:
			return changed, nil
		}
	}
	return sdk.Lease{}, sdk.Errorf(sdk.ErrUnreachable, "the lease of %s could not be changed in %d tries", clip(target.ID), leaseTries)
}

// recordOutcome is what came of writing a generation.
type recordOutcome int

const (
	recordLost recordOutcome = iota // somebody else wrote it
	recordWritten
	recordVoid // a volume of that name is there, and is nobody's
)

// writeRecord writes a generation, if nobody else has.
func (e *Extension) writeRecord(ctx context.Context, eng engine, o *object, lease sdk.Lease) (recordOutcome, error) {
	volume, nonce, labels, err := e.createRecord(ctx, eng, o.identity, lease, roleLease)
	if err != nil {
		return recordLost, err
	}
	if labels[labelNonce] != nonce {
		if labels[labelNonce] == "" {
			return recordVoid, nil
		}
		return recordLost, nil
	}
	// A slow writer may have made a generation anew that had been collected.
	listed, err := eng.VolumeList(ctx, client.VolumeListOptions{Filters: labelled(sdk.LabelFleet, o.identity.Fleet, sdk.LabelID, o.id, labelRole, roleLease)})
	if err != nil {
		return recordLost, err
	}
	var below []string
	for _, v := range listed.Items {
		r, err := readRecord(o.id, v.Name, v.Labels)
		switch {
		case err != nil:
		case r.generation > lease.Generation:
			e.removeVolume(ctx, eng, volume)
			return recordLost, nil
		case r.generation < lease.Generation:
			below = append(below, v.Name)
		}
	}
	for _, name := range below {
		e.removeVolume(ctx, eng, name)
	}
	return recordWritten, nil
}

// createRecord asks for a generation's volume and returns the labels that it
// has: ours, or those of whoever was first.
func (e *Extension) createRecord(ctx context.Context, eng engine, identity sdk.Identity, lease sdk.Lease, role string) (volume, nonce string, labels map[string]string, err error) {
	volume, nonce = leaseName(identity.ID, strconv.FormatInt(lease.Generation, 10)), rand.Text()
	labels = identity.ToLabels()
	labels[labelRole], labels[labelNonce], labels[labelLease] = role, nonce, encode(lease)
	made, err := eng.VolumeCreate(ctx, client.VolumeCreateOptions{Name: volume, Driver: "local", Labels: labels})
	if err != nil && strings.Contains(err.Error(), "volume already exists") {
		// Podman's answer to all but the first of several at once.
		return volume, nonce, map[string]string{labelNonce: "another"}, nil
	}
	return volume, nonce, made.Volume.Labels, err
}

// removeVolume removes a record that no longer counts. One that stays is
// removed with the sandbox.
func (e *Extension) removeVolume(ctx context.Context, eng engine, name string) {
	_, _ = eng.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
}
