// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package reap

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

var start = time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)

// yard is one fleet with a reaper over clouds that lie on demand.
type yard struct {
	*Reaper
	manager *lifecycle.Manager
	ledger  *ledger.Ledger
	clock   *clock.Fake
	clouds  map[string]*saasstub.Server
}

// backends is a fixed set of extensions; one that is nil is unreachable.
type backends map[string]sdk.Extension

func (b backends) Open(_ context.Context, name string) (sdk.Extension, error) {
	if b[name] == nil {
		return nil, sdk.Errorf(sdk.ErrUnreachable, "%s is down", name)
	}
	return b[name], nil
}

func (b backends) Names() []string { return slices.Sorted(maps.Keys(b)) }
func (b backends) Default() string { return b.Names()[0] }

func newYard(t *testing.T) yard {
	t.Helper()
	c := clock.NewFake(start)
	c.Auto = true
	return newYardOn(t, c, map[string]*saasstub.Server{"cloud": saasstub.NewServer(saasstub.ServerOptions{Clock: c})}, "ci", nil)
}

// newYardOn is a fleet on clouds; wrap may put something before an extension.
func newYardOn(t *testing.T, c *clock.Fake, clouds map[string]*saasstub.Server, fleet string, wrap func(name string, e *saasstub.Extension) sdk.Extension) yard {
	t.Helper()
	all := backends{}
	for name, server := range clouds {
		e := saasstub.New(saasstub.Options{Server: server})
		if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: name, Fleet: fleet}); err != nil {
			t.Fatal(err)
		}
		all[name] = e
		if wrap != nil {
			all[name] = wrap(name, e)
		}
	}
	l := ledger.New(t.TempDir(), c)
	m := lifecycle.New(l, all, c, lifecycle.Settings{Fleet: fleet, Attribution: sandbox.Attribution{Actor: "tester"}})
	return yard{Reaper: New(m, l), manager: m, ledger: l, clock: c, clouds: clouds}
}

func (y yard) create(t *testing.T, ttl time.Duration) string {
	t.Helper()
	made, err := y.manager.Create(t.Context(), lifecycle.CreateOptions{Profile: sdk.Profile{Name: "e2e"}, TTL: ttl, Backend: "cloud"})
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func (y yard) plan(t *testing.T, opts Options) Selection {
	t.Helper()
	selection, err := y.Plan(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return selection
}

func (y yard) sweep(t *testing.T) Report {
	t.Helper()
	report, err := y.Sweep(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// alive returns the ids of the boxes in the cloud.
func (y yard) alive() []string {
	var ids []string
	for _, b := range y.clouds["cloud"].Boxes() {
		ids = append(ids, b.Name)
	}
	return ids
}

func ids(items []Item) []string {
	var found []string
	for _, item := range items {
		found = append(found, item.ID)
	}
	return found
}

func outcomes(r Report) map[string]string {
	found := map[string]string{}
	for _, result := range r.Results {
		found[result.ID] = result.Outcome
	}
	return found
}
