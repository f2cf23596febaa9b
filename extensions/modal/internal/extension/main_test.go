// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	testTokenID     = "ak-canary5b0e93d2"
	testTokenSecret = "as-canary7c1d44f0"
	fleet           = "ci-main"
)

func serve(t testing.TB, options modaltest.Options) *modaltest.Server {
	t.Helper()
	options.Tokens = map[string]string{testTokenID: testTokenSecret}
	server, err := modaltest.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// cloud is a service with a clock that the test moves, and an extension that
// goes by the same one.
type cloud struct {
	*modaltest.Server
	*extension.Extension
	clock *clock.Fake
	state string
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newCloud(t testing.TB, options modaltest.Options) *cloud {
	t.Helper()
	c := &cloud{clock: clock.NewFake(start), state: t.TempDir()}
	options.Clock = c.clock
	c.Server = serve(t, options)
	c.Extension = c.machine(t, c.state, extension.Options{Clock: ticking{c.clock}})
	return c
}

// Close ends the extension; the server ends with its test.
func (c *cloud) Close() error { return c.Extension.Close() }

// machine is an extension on a machine of its own: with its own state directory.
func (c *cloud) machine(t testing.TB, state string, opts extension.Options) *extension.Extension {
	t.Helper()
	if opts.Settle == 0 {
		opts.Settle = 200 * time.Millisecond
	}
	if opts.Getenv == nil {
		opts.Getenv = func(name string) string {
			return map[string]string{"MODAL_TOKEN_ID": testTokenID, "MODAL_TOKEN_SECRET": testTokenSecret}[name]
		}
	}
	e := extension.New(opts)
	config, err := json.Marshal(map[string]string{"server_url": c.URL(), "state_dir": state, "config_file": state + "/none"})
	if err == nil {
		_, err = e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: fleet, Config: config})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func sandboxID(n int) string { return fmt.Sprintf("sbx-%020d", n) }

func snapshotID(n int) string { return fmt.Sprintf("snp-%020d", n) }

func (c *cloud) creation(n int) sdk.CreateOptions { return creationAt(c.clock.Now(), n) }

// creationAt is a create of an hour, at most four.
func creationAt(now time.Time, n int) sdk.CreateOptions {
	id := sandboxID(n)
	now = now.UTC()
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
