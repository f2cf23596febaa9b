// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The reaper ends what has expired when every client is gone, touches nothing
// of another fleet, and ends with the last lease; when somebody removes it,
// the next create or extend makes it again.
func TestDockerReaper(t *testing.T) {
	other := open(t)
	_, foreign := other.create(t, short)
	b := open(t, withReaper)
	s, target := b.create(t, short)
	if len(s.Guards) != 1 || s.Guards[0] != sdk.GuardReaperContainer {
		t.Errorf("guards %v", s.Guards)
	}
	if err := b.RemoveReaper(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := b.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil || len(got.Sandbox.Guards) != 0 {
		t.Errorf("without a reaper: guards %v, %v", got.Sandbox.Guards, err)
	}
	lasting, _ := b.create(t)
	b.run(t, target, "true")
	waitFor(t, "the reaper has ended what expired", func() bool {
		_, err := b.Get(t.Context(), sdk.GetOptions{Target: target})
		return errors.Is(err, sdk.ErrNotFound)
	})
	b.nothingLeft(t, s.ID)
	if _, err := b.Get(t.Context(), sdk.GetOptions{Target: sdk.Target{ID: lasting.ID, Fleet: b.fleet}}); err != nil {
		t.Errorf("one that has not expired: %v", err)
	}
	if err := b.RemoveReaper(t.Context()); err != nil {
		t.Fatal(err)
	}
	longer := sdk.ExtendOptions{
		Target: sdk.Target{ID: lasting.ID, Fleet: b.fleet}, Generation: lasting.Lease.Generation, ExpiresAt: lasting.Lease.ExpiresAt.Add(time.Minute),
	}
	if _, err := b.Extend(t.Context(), longer); err != nil {
		t.Errorf("extend without a reaper: %v", err)
	}
	if got, err := b.Get(t.Context(), sdk.GetOptions{Target: longer.Target}); err != nil || len(got.Sandbox.Guards) != 1 {
		t.Errorf("extended without a reaper: guards %v, %v", got.Sandbox.Guards, err)
	}
	if got, err := other.Get(t.Context(), sdk.GetOptions{Target: foreign}); err != nil || got.Sandbox.Status != sdk.StatusExpired {
		t.Errorf("one of another fleet: %s, %v", got.Sandbox.Status, err)
	}
	if _, err := b.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: lasting.ID, Fleet: b.fleet}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the reaper has ended with the last lease", func() bool {
		list, err := b.engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", sdk.LabelFleet+"="+b.fleet)})
		return err == nil && len(list.Items) == 0
	})
}

// When every client is dead the reaper container alone ends what has expired,
// in time: fifty sandboxes of a minute each at full size.
func TestDockerReaperAlone(t *testing.T) {
	many, life, grace := 12, 30*time.Second, 30*time.Second
	if fullSize() {
		many, life = 50, time.Minute
	}
	b := open(t, withReaper)
	var making sync.WaitGroup
	places := make(chan struct{}, 8)
	var mu sync.Mutex
	deadlines := map[string]time.Time{}
	for range many {
		places <- struct{}{}
		making.Go(func() {
			defer func() { <-places }()
			s, _ := b.create(t, func(opts *sdk.CreateOptions) { opts.ExpiresAt = time.Now().UTC().Add(life) })
			mu.Lock()
			defer mu.Unlock()
			deadlines[s.ID] = s.Lease.ExpiresAt
		})
	}
	making.Wait()
	// From here on this process only looks, with a client that knows nothing
	// of sandboxes.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	filters := client.Filters{}.Add("label", sdk.LabelFleet+"="+b.fleet, sdk.LabelPrefix+"role=sandbox")
	var latest time.Duration
	for left := len(deadlines); left > 0; time.Sleep(200 * time.Millisecond) {
		list, err := b.engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: filters})
		if err != nil {
			t.Fatal(err)
		}
		left = len(list.Items)
		for _, c := range list.Items {
			late := time.Since(deadlines[c.Labels[sdk.LabelID]])
			if latest = max(latest, late); late > grace {
				t.Fatalf("%s is there %s after its deadline, with %d others", c.Labels[sdk.LabelID], late, left-1)
			}
		}
	}
	t.Logf("the last of %d was seen %s after its deadline", many, latest)
	for id := range deadlines {
		waitFor(t, "nothing of "+id+" is left", func() bool { return b.leftOf(t, id) == 0 })
	}
	waitFor(t, "the reaper has ended with the last lease", func() bool {
		list, err := b.engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", sdk.LabelFleet+"="+b.fleet)})
		return err == nil && len(list.Items) == 0
	})
}

// short is a life that a busy machine needs no more than for a create.
func short(opts *sdk.CreateOptions) { opts.ExpiresAt = time.Now().UTC().Add(20 * time.Second) }
