// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// house is a manager over a vendor that lies on demand.
type house struct {
	*Manager
	clock  *clock.Fake
	server *saasstub.Server
	ledger *ledger.Ledger
}

// backends is a fixed set of extensions.
type backends map[string]sdk.Extension

func (b backends) Open(_ context.Context, name string) (sdk.Extension, error) {
	if ext, ok := b[name]; ok {
		return ext, nil
	}
	return nil, sdk.Errorf(sdk.ErrUnreachable, "no backend %q", name)
}

func (b backends) Names() []string {
	var names []string
	for name := range b {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (b backends) Default() string { return b.Names()[0] }

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newHouse(t *testing.T) house {
	t.Helper()
	c := clock.NewFake(start)
	c.Auto = true
	return newHouseOn(t, c, saasstub.NewServer(saasstub.ServerOptions{Clock: c}), "ci", saasstub.Options{})
}

func newHouseOn(t *testing.T, c *clock.Fake, server *saasstub.Server, fleet string, options saasstub.Options) house {
	t.Helper()
	options.Server = server
	ext := saasstub.New(options)
	if _, err := ext.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: fleet}); err != nil {
		t.Fatal(err)
	}
	l := ledger.New(t.TempDir(), c)
	m := New(l, backends{"cloud": ext}, c, Settings{Fleet: fleet, Attribution: sandbox.Attribution{Owner: "payments", Actor: "tester"}})
	return house{Manager: m, clock: c, server: server, ledger: l}
}

func profile() sdk.Profile { return sdk.Profile{Name: "e2e"} }

func (h house) create(t *testing.T, opts CreateOptions) Sandbox {
	t.Helper()
	if opts.Profile.Name == "" && opts.Snapshot == "" {
		opts.Profile = profile()
	}
	made, err := h.Create(t.Context(), opts)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return made
}

// types returns the types of the events of an id, in their order.
func (h house) types(t *testing.T, id string) []ledger.Type {
	t.Helper()
	events, err := h.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var found []ledger.Type
	for _, e := range events {
		found = append(found, e.Type)
	}
	return found
}

// open returns the records that the ledger holds open.
func (h house) open(t *testing.T) []ledger.Record {
	t.Helper()
	records, unreadable, err := h.ledger.List(t.Context(), ledger.Filter{Open: true})
	if err != nil || len(unreadable) > 0 {
		t.Fatal(err, unreadable)
	}
	return records
}

func tarOf(t *testing.T, name, content string) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func mustJSON(t *testing.T, value any) []byte {
	t.Helper()
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
