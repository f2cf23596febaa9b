// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// The control plane's calls and what they carry, as far as they are used.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The states that the service shows.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// newSandbox is the body of a create.
type newSandbox struct {
	TemplateID string            `json:"templateID"`
	Timeout    int64             `json:"timeout"` // seconds
	AutoPause  bool              `json:"autoPause"`
	Metadata   map[string]string `json:"metadata"`
	EnvVars    map[string]string `json:"envVars"`
	Internet   bool              `json:"allow_internet_access"`
	Network    *network          `json:"network,omitempty"`
	Secure     bool              `json:"secure"` // for v1; v2 ignores it and always secures
}

// network is what a sandbox may reach.
type network struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`
}

// made is the answer to a create.
type made struct {
	SandboxID string `json:"sandboxID"`
}

// vendorSandbox is a sandbox as the service shows it.
type vendorSandbox struct {
	SandboxID   string            `json:"sandboxID"`
	State       string            `json:"state"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"` // of a paused one, when it was paused
	Metadata    map[string]string `json:"metadata"`
	EnvdVersion string            `json:"envdVersion"`
	AccessToken string            `json:"envdAccessToken"` // GET only
	Domain      string            `json:"domain"`          // GET only
}

// valid reports whether what is relied on is there.
func (v vendorSandbox) valid() error {
	if !isRef(v.SandboxID) || (v.State != stateRunning && v.State != statePaused) || v.EndAt.IsZero() {
		return &statusError{cause: fmt.Errorf("the answer about sandbox %.40q lacks what every one has", v.SandboxID)}
	}
	return nil
}

// isRef reports whether s has the form of the service's ids: what is put into
// a path and a host name.
func isRef(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

func sandboxPath(ref, verb string) string {
	path := "/sandboxes/" + url.PathEscape(ref)
	if verb != "" {
		path += "/" + verb
	}
	return path
}

// createSandbox makes a sandbox. Where the route of v2 is missing, v1's is
// taken: that nothing was made is then certain.
func (c *client) createSandbox(ctx context.Context, body newSandbox, nonce string) (string, error) {
	var answer made
	ask := call{method: http.MethodPost, path: "/v2/sandboxes", body: body, header: http.Header{"Idempotency-Key": {nonce}}, into: &answer}
	_, err := c.do(ctx, ask)
	if absent(err) && !c.hasV2(ctx) {
		ask.path = "/sandboxes"
		_, err = c.do(ctx, ask)
	}
	if err == nil && !isRef(answer.SandboxID) {
		err = &statusError{cause: fmt.Errorf("the answer names no sandbox")}
	}
	return answer.SandboxID, err
}

// hasV2 tells whether the service has the routes of v2. A template that is not
// there and a route that is not there are the same answer, and a body that
// nothing can be made from tells them apart.
func (c *client) hasV2(ctx context.Context) bool {
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v2/sandboxes", body: struct{}{}})
	return !absent(err)
}

func (c *client) getSandbox(ctx context.Context, ref string) (vendorSandbox, error) {
	var answer vendorSandbox
	if !isRef(ref) {
		return answer, sdk.Errorf(sdk.ErrNotFound, "%.80q is no sandbox of E2B's", ref)
	}
	_, err := c.do(ctx, call{method: http.MethodGet, path: sandboxPath(ref, ""), reads: true, into: &answer})
	if err != nil {
		return answer, err
	}
	if answer.SandboxID != ref {
		return answer, c.unreadable(fmt.Errorf("asked for sandbox %s, the answer is about %.40q", ref, answer.SandboxID))
	}
	if err := answer.valid(); err != nil {
		return answer, c.unreadable(err)
	}
	return answer, nil
}

// unreadable is an answer that makes no sense.
func (c *client) unreadable(err error) error {
	var failed *statusError
	if !errors.As(err, &failed) {
		failed = &statusError{cause: err}
	}
	return c.explain(failed)
}

// listQuery asks for one page.
type listQuery struct {
	metadata map[string]string
	token    string
	limit    int
}

// filter writes a metadata filter. The service unescapes the query's value as
// a whole once more, and then each key and value: so they are escaped twice
// here, before the query's own escape. Once is enough for plain words only.
func filter(metadata map[string]string) string {
	twice := func(s string) string { return url.QueryEscape(url.QueryEscape(s)) }
	var pairs []string
	for _, key := range sorted(metadata) {
		pairs = append(pairs, twice(key)+"="+twice(metadata[key]))
	}
	return strings.Join(pairs, "&")
}

func (c *client) listSandboxes(ctx context.Context, q listQuery) (page []vendorSandbox, next string, err error) {
	query := url.Values{"state": {stateRunning + "," + statePaused}, "limit": {strconv.Itoa(q.limit)}}
	if len(q.metadata) > 0 {
		query.Set("metadata", filter(q.metadata))
	}
	if q.token != "" {
		query.Set("nextToken", q.token)
	}
	header, err := c.do(ctx, call{method: http.MethodGet, path: "/v2/sandboxes", query: query, reads: true, into: &page})
	if absent(err) {
		// Not finding the listing is not finding nothing in it.
		return nil, "", sdk.Errorf(sdk.ErrUnreachable, "E2B has no listing at %s: %s", c.settings.APIURL, err)
	}
	if err != nil {
		return nil, "", err
	}
	for _, v := range page {
		if err := v.valid(); err != nil {
			return nil, "", c.unreadable(err)
		}
	}
	return page, header.Get("X-Next-Token"), nil
}

func (c *client) deleteSandbox(ctx context.Context, ref string) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: sandboxPath(ref, "")})
	return err
}

func (c *client) setTimeout(ctx context.Context, ref string, seconds int64) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: sandboxPath(ref, "timeout"), body: map[string]int64{"timeout": seconds}})
	return err
}

func (c *client) pauseSandbox(ctx context.Context, ref string) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: sandboxPath(ref, "pause"), body: map[string]bool{"memory": true}})
	return err
}

// connect resumes a sandbox. The route of v2 may be missing: whoever knows
// that the sandbox is there asks again with v1's.
func (c *client) connect(ctx context.Context, ref string, seconds int64, v1 bool) error {
	path := sandboxPath(ref, "connect")
	if !v1 {
		path = "/v2" + path
	}
	_, err := c.do(ctx, call{method: http.MethodPost, path: path, body: map[string]int64{"timeout": seconds}})
	return err
}

// vendorSnapshot is a snapshot as the service shows it: neither its time nor
// its source.
type vendorSnapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func (c *client) createSnapshot(ctx context.Context, ref, name string) (vendorSnapshot, error) {
	var answer vendorSnapshot
	_, err := c.do(ctx, call{method: http.MethodPost, path: sandboxPath(ref, "snapshots"), body: map[string]string{"name": name}, into: &answer})
	return answer, err
}

func (c *client) listSnapshots(ctx context.Context, token string) (page []vendorSnapshot, next string, err error) {
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	if token != "" {
		query.Set("nextToken", token)
	}
	header, err := c.do(ctx, call{method: http.MethodGet, path: "/snapshots", query: query, reads: true, into: &page})
	if absent(err) {
		return nil, "", sdk.Errorf(sdk.ErrUnreachable, "E2B has no listing of snapshots at %s: %s", c.settings.APIURL, err)
	}
	return page, header.Get("X-Next-Token"), err
}

// deleteTemplate removes a template with all its tags, snapshots included.
func (c *client) deleteTemplate(ctx context.Context, ref string) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: "/templates/" + escaped(ref)})
	return err
}

// escaped writes a template's reference as one part of a path: the colon has
// to be escaped, too.
func escaped(ref string) string { return strings.ReplaceAll(url.PathEscape(ref), ":", "%3A") }

// templateID returns the id behind a reference; empty for a template of another
// team, which only a create can tell whether it may be used.
func (c *client) templateID(ctx context.Context, ref string) (string, error) {
	name, _, _ := strings.Cut(ref, ":")
	var answer struct{ TemplateID string }
	ask := call{method: http.MethodGet, path: "/templates/aliases/" + url.PathEscape(name), reads: true, into: &answer}
	_, err := c.do(ctx, ask)
	if absent(err) && isRef(name) {
		ask.path = "/templates/" + name // an id is no alias
		_, err = c.do(ctx, ask)
	}
	if status(err) == http.StatusForbidden {
		return "", nil
	}
	return answer.TemplateID, err
}

func (c *client) addTag(ctx context.Context, ref, tag string) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/templates/tags", body: map[string]any{"target": ref, "tags": []string{tag}}})
	return err
}

func (c *client) tags(ctx context.Context, ref string) ([]string, error) {
	name, _, _ := strings.Cut(ref, ":")
	var answer []struct{ Tag string }
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/templates/" + escaped(name) + "/tags", reads: true, into: &answer})
	var all []string
	for _, entry := range answer {
		all = append(all, entry.Tag)
	}
	return all, err
}
