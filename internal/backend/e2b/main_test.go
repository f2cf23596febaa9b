// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"net/http/httptest"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
)

// testKey is looked for in everything that is written and said.
const testKey = "e2b_canary7f3a9c51d20e"

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
