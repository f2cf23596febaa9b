// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

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

// What the vendor has ended since the last listing does not make the next one
// incomplete, and its records go.
func TestManyThatHaveEndedLeaveNothing(t *testing.T) {
	const n = 50
	c, fake := standing(t, e2btest.Options{})
	for i := range n {
		c.mustCreate(t, i)
	}
	fake.Advance(2 * time.Hour)
	c.mustCreate(t, n)
	for range 4 {
		list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
		if err != nil || list.Incomplete != "" || len(list.Sandboxes) != 1 {
			t.Errorf("%d, %q, %v", len(list.Sandboxes), list.Incomplete, err)
		}
	}
	c.Forget()
	if _, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet}); err != nil || len(c.Requests()) != 1 {
		t.Errorf("%d requests, %v", len(c.Requests()), err)
	}
}

// A profile is kept in the metadata without its files when those are large; one
// that is too large even so is refused.
func TestTheMetadataIsBounded(t *testing.T) {
	c := newCloud(t, e2btest.Options{})
	opts := c.creation(1)
	opts.Profile.Files = map[string]sdk.File{"/opt/large": {Content: strings.Repeat("x", 1<<20)}}
	opts.Profile.Env = map[string]string{"A": "kept"}
	made, err := c.Create(t.Context(), opts)
	if err != nil || made.Sandbox.Profile.Env["A"] != "kept" || made.Sandbox.Profile.Files != nil {
		t.Fatalf("%v", err)
	}
	target := sdk.Target{ID: opts.ID, Ref: made.Sandbox.Ref, Fleet: fleet}
	var out bytes.Buffer
	if got, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", "wc -c < /opt/large"}, Stdout: &out}); err != nil || got.ExitCode != 0 || strings.TrimSpace(out.String()) != "1048576" {
		t.Errorf("%+v, %v, %q", got, err, out.String())
	}
	opts = c.creation(2)
	opts.Profile.Env = map[string]string{"A": strings.Repeat("x", 100<<10)}
	if _, err := c.Create(t.Context(), opts); !errors.Is(err, sdk.ErrInvalid) || len(c.Sandboxes()) != 1 {
		t.Errorf("%v", err)
	}
}
