// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// testKey is looked for in everything that is written and said.
const testKey = "e2b_canary7f3a9c51d20e"

const fleet = "ci"

// size is how much of a test is run: all of it with SANDBOXER_TEST_FULL.
func size(full, ordinary int) int {
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		return full
	}
	return ordinary
}

// serve runs the service on loopback.
func serve(t testing.TB, options e2btest.Options) (*e2btest.Server, string) {
	t.Helper()
	options.Keys = []string{testKey}
	server, err := e2btest.New(options)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server)
	t.Cleanup(func() {
		web.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server, web.URL
}

// cloud is the service and a backend that speaks to it.
type cloud struct {
	*e2btest.Server
	*e2b.Extension
	url   string
	clock clock.Clock
	state string // directory of the records
}

// hurried is the machine's clock for whoever waits between two tries: what is
// told does not depend on how long that is.
type hurried struct{ clock.System }

func (h hurried) Sleep(ctx context.Context, d time.Duration) error { return h.System.Sleep(ctx, d/20) }

// newCloud makes both, with the machine's clock.
func newCloud(t testing.TB, options e2btest.Options) *cloud {
	t.Helper()
	c := &cloud{clock: options.Clock, state: t.TempDir()}
	if c.clock == nil {
		c.clock = hurried{}
	}
	c.Server, c.url = serve(t, options)
	c.Extension = c.machine(t, c.state, e2b.Options{})
	return c
}

// machine is a backend on a machine of its own: with its own state directory.
func (c *cloud) machine(t testing.TB, state string, opts e2b.Options) *e2b.Extension {
	t.Helper()
	opts.Clock = c.clock
	if opts.Settle == 0 {
		opts.Settle = 200 * time.Millisecond
	}
	if opts.Getenv == nil {
		opts.Getenv = func(name string) string { return map[string]string{"E2B_API_KEY": testKey}[name] }
	}
	e := e2b.New(opts)
	config, err := json.Marshal(map[string]string{"api_url": c.url, "sandbox_url": c.url, "state_dir": state})
	if err == nil {
		_, err = e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: fleet, Config: config})
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func sandboxID(n int) string { return fmt.Sprintf("sbx-%020d", n) }

func snapshotID(n int) string { return fmt.Sprintf("snp-%020d", n) }

// creation is a create of an hour, at most four.
func (c *cloud) creation(n int) sdk.CreateOptions {
	now, id := c.clock.Now().UTC(), sandboxID(n)
	return sdk.CreateOptions{
		ID: id, Profile: sdk.Profile{Name: "p"}, OnExpiry: sdk.OnExpiryDestroy,
		Identity:  sdk.Identity{ID: id, Fleet: fleet, Incarnation: 1, CreatedAt: now},
		ExpiresAt: now.Add(time.Hour), MaxExpiresAt: now.Add(4 * time.Hour),
		Event: sdk.EventRef{LedgerID: "ldg-test", Sequence: int64(n) + 1},
	}
}

func (c *cloud) mustCreate(t testing.TB, n int) (sdk.Sandbox, sdk.Target) {
	t.Helper()
	made, err := c.Create(t.Context(), c.creation(n))
	if err != nil {
		t.Fatal(err)
	}
	return made.Sandbox, sdk.Target{ID: sandboxID(n), Ref: made.Sandbox.Ref, Fleet: fleet}
}

func mustGet(t testing.TB, e sdk.Extension, target sdk.Target) sdk.Sandbox {
	t.Helper()
	got, err := e.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	return got.Sandbox
}

// calls counts the requests of a method whose path begins with a prefix.
func (c *cloud) calls(method, prefix string) (n int) {
	for _, r := range c.Requests() {
		if r.Method == method && strings.HasPrefix(r.Path, prefix) {
			n++
		}
	}
	return n
}

// is reports whether an error is what is wanted; nil wants none.
func is(err, want error) bool {
	if want == nil {
		return err == nil
	}
	return errors.Is(err, want)
}
