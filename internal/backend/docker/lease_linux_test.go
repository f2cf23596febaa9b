// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// leased makes something that has a lease and costs no start: a container
// that is made and never runs, with the record of its first generation.
func (b backend) leased(t *testing.T, life time.Duration) sdk.Target {
	t.Helper()
	opts := b.creation()
	labels := opts.Identity.ToLabels()
	labels[sdk.LabelPrefix+"role"] = "sandbox"
	b.stranger(t, labels, opts.ID)
	lease := sdk.Lease{ExpiresAt: time.Now().UTC().Add(life), MaxExpiresAt: time.Now().UTC().Add(24 * time.Hour), Generation: 1}
	if err := b.Record(t.Context(), opts.Identity, lease); err != nil {
		t.Fatal(err)
	}
	return sdk.Target{ID: opts.ID, Fleet: b.fleet}
}

// Of an extend and a claim of one generation at once exactly one wins, each
// from a client of its own.
func TestDockerLeaseRace(t *testing.T) {
	rounds := 25
	if fullSize() {
		rounds = 1000
	}
	a := open(t)
	b := openFleet(t, a.fleet)
	var target sdk.Target
	claims, extends := 0, 0
	for round := range rounds {
		if target.ID == "" {
			target = a.leased(t, time.Hour)
		}
		before := a.leaseOf(t, target)
		var extended sdk.ExtendResult
		var claimed sdk.ClaimResult
		var extendErr, claimErr error
		var race sync.WaitGroup
		race.Go(func() {
			extended, extendErr = a.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: before.Generation, ExpiresAt: before.ExpiresAt.Add(time.Second), Event: event(round, 1)})
		})
		race.Go(func() {
			claimed, claimErr = b.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: before.Generation, Holder: "race", Event: event(round, 2)})
		})
		race.Wait()
		after := b.leaseOf(t, target)
		switch {
		case extendErr == nil && claimErr != nil:
			extends++
			if !errors.Is(claimErr, sdk.ErrConflict) || after.Claimed || after != extended.Lease {
				t.Fatalf("round %d: the extend won: %v, %+v, %+v", round, claimErr, after, extended.Lease)
			}
		case claimErr == nil && extendErr != nil:
			claims++
			if !errors.Is(extendErr, sdk.ErrExpired) && !errors.Is(extendErr, sdk.ErrConflict) || !after.Claimed || after != claimed.Lease {
				t.Fatalf("round %d: the claim won: %v, %+v, %+v", round, extendErr, after, claimed.Lease)
			}
			if _, err := a.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
				t.Fatal(err)
			}
			target = sdk.Target{}
		default:
			t.Fatalf("round %d: extend %v, claim %v", round, extendErr, claimErr)
		}
	}
	t.Logf("%d rounds: %d extends and %d claims won", rounds, extends, claims)
}

func event(round, who int) sdk.EventRef {
	return sdk.EventRef{LedgerID: "ldg-race", Sequence: int64(10*round + who), Hash: random(8)}
}

func (b backend) leaseOf(t testing.TB, target sdk.Target) sdk.Lease {
	t.Helper()
	got, err := b.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	return got.Sandbox.Lease
}

// Many clients that stall where they like: nothing is granted twice, nothing
// is extended after a claim, and no deadline goes back.
func TestDockerLeaseChaos(t *testing.T) {
	leases, clients, life := 3, 4, 3*time.Second
	if fullSize() {
		leases, clients, life = 50, 8, time.Minute
	}
	first := open(t)
	targets := make([]sdk.Target, leases)
	for i := range targets {
		targets[i] = first.leased(t, time.Hour)
	}
	ctx, cancel := context.WithTimeout(t.Context(), life)
	defer cancel()
	var extends, claims, losses, violations atomic.Int64
	var mu sync.Mutex
	granted := map[string]map[int64]bool{} // generations by sandbox
	win := func(target sdk.Target, lease sdk.Lease) {
		mu.Lock()
		defer mu.Unlock()
		if granted[target.ID] == nil {
			granted[target.ID] = map[int64]bool{}
		}
		if granted[target.ID][lease.Generation] {
			violations.Add(1)
		}
		granted[target.ID][lease.Generation] = true
	}
	var running sync.WaitGroup
	for n := range clients {
		b := openFleet(t, first.fleet)
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				target := targets[mathrand.IntN(leases)]
				got, err := b.Get(ctx, sdk.GetOptions{Target: target})
				if err != nil {
					continue
				}
				before := got.Sandbox.Lease
				time.Sleep(time.Duration(mathrand.IntN(20)) * time.Millisecond)
				if mathrand.IntN(60) == 0 {
					claimed, err := b.Claim(ctx, sdk.ClaimOptions{Target: target, Generation: before.Generation, Holder: "chaos", Event: event(i, n)})
					switch {
					case err == nil && !before.Claimed:
						claims.Add(1)
						if claimed.Lease.Generation == before.Generation+1 {
							win(target, claimed.Lease)
						}
					case err != nil:
						losses.Add(1)
					}
					continue
				}
				extended, err := b.Extend(ctx, sdk.ExtendOptions{Target: target, Generation: before.Generation, ExpiresAt: before.ExpiresAt.Add(time.Second), Event: event(i, n)})
				if err != nil {
					losses.Add(1)
					continue
				}
				extends.Add(1)
				win(target, extended.Lease)
				if before.Claimed || extended.Lease.ExpiresAt.Before(before.ExpiresAt) {
					violations.Add(1)
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d extends, %d claims, %d losses, %d violations", extends.Load(), claims.Load(), losses.Load(), violations.Load())
	if violations.Load() > 0 || extends.Load() == 0 {
		t.Error("the lease did not hold, or nothing happened")
	}
}

// Old generations are collected: what a sandbox keeps does not grow.
func TestDockerLeaseKeepsOneRecord(t *testing.T) {
	b := open(t)
	target := b.leased(t, time.Hour)
	for i := range 5 {
		lease := b.leaseOf(t, target)
		if _, err := b.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: lease.Generation, ExpiresAt: lease.ExpiresAt.Add(time.Minute), Event: event(i, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if names := b.records(t, target.ID); len(names) != 1 || !strings.HasSuffix(names[0], ".lease.6") {
		t.Errorf("records %q", names)
	}
}

func (b backend) records(t testing.TB, id string) (names []string) {
	t.Helper()
	list, err := b.engine.Client.VolumeList(t.Context(), client.VolumeListOptions{Filters: client.Filters{}.Add("label", sdk.LabelID+"="+id, sdk.LabelPrefix+"role=lease")})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list.Items {
		names = append(names, v.Name)
	}
	return names
}

// Somebody pruned the volumes: the sandbox is not killed for it, gets a grace,
// and a record that no client of before can win against.
func TestDockerLeasePruned(t *testing.T) {
	b := open(t)
	_, target := b.create(t, func(opts *sdk.CreateOptions) { opts.ExpiresAt = opts.ExpiresAt.Add(-8 * time.Minute) })
	for _, name := range b.records(t, target.ID) {
		if _, err := b.engine.Client.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil || got.Sandbox.Status != sdk.StatusReady || got.Sandbox.Reason == "" || len(b.records(t, target.ID)) != 0 {
		t.Fatalf("it is %s (%s), %v", got.Sandbox.Status, got.Sandbox.Reason, err)
	}
	_, err = b.Claim(t.Context(), sdk.ClaimOptions{Target: target, Generation: 1, Holder: "reaper", OnlyExpired: true, Event: event(1, 1)})
	var said *sdk.Error
	if !errors.Is(err, sdk.ErrConflict) || !errors.As(err, &said) || said.Lease == nil || time.Until(said.Lease.ExpiresAt) < time.Minute {
		t.Fatalf("a reaper's claim: %v, %+v", err, said)
	}
	if n := len(b.records(t, target.ID)); n != 1 || said.Lease.Generation < 1_000_000 {
		t.Errorf("%d records, generation %d", n, said.Lease.Generation)
	}
	extended, err := b.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: said.Lease.Generation, ExpiresAt: said.Lease.ExpiresAt.Add(time.Hour), Event: event(1, 2)})
	if err != nil || extended.Lease.Generation != said.Lease.Generation+1 {
		t.Errorf("extend: %+v, %v", extended.Lease, err)
	}
}

// A writer died between the volume and its labels: the generation is void, and
// the next one counts.
func TestDockerLeaseVoidGeneration(t *testing.T) {
	b := open(t)
	target := b.leased(t, time.Hour)
	void := target.ID + ".lease.2"
	if _, err := b.engine.Client.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: void}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = b.engine.Client.VolumeRemove(context.WithoutCancel(t.Context()), void, client.VolumeRemoveOptions{})
	})
	before := b.leaseOf(t, target)
	extended, err := b.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: before.ExpiresAt.Add(time.Hour), Event: event(1, 1)})
	if err != nil || extended.Lease.Generation != 3 || b.leaseOf(t, target) != extended.Lease {
		t.Errorf("extend: %+v, %v; seen %+v", extended.Lease, err, b.leaseOf(t, target))
	}
}
