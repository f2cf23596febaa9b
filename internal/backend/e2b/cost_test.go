// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// post makes a request without the backend.
func (c *cloud) post(t testing.TB, path string, body any) {
	t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+path, bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", testKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if said, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%d %s %v", resp.StatusCode, said, err)
	}
}

// A listing of a thousand takes a request for each hundred and one more, which
// is all that a refresh of them costs.
func TestAThousandAreListedInElevenRequests(t *testing.T) {
	const n = 1000
	c := newCloud(t, e2btest.Options{Concurrent: n})
	for i := range n {
		metadata, err := c.Metadata(c.creation(i))
		if err != nil {
			t.Fatal(err)
		}
		c.post(t, "/v2/sandboxes", map[string]any{"templateID": "base", "timeout": 3600, "metadata": metadata})
	}
	c.Forget()
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || list.Incomplete != "" || len(list.Sandboxes) != n {
		t.Fatalf("%d, %q, %v", len(list.Sandboxes), list.Incomplete, err)
	}
	if asked := len(c.Requests()); asked > 11 {
		t.Errorf("%d requests", asked)
	}
}
