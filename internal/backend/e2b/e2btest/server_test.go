// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

var start = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// service is a server with a clock that stands still, over HTTP.
type service struct {
	*e2btest.Server
	clock *clock.Fake
	url   string
}

func serve(t *testing.T, options e2btest.Options) *service {
	t.Helper()
	fake := clock.NewFake(start)
	if options.Clock == nil {
		options.Clock = fake
	}
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
	return &service{server, fake, web.URL}
}

// reply is an answer as it came.
type reply struct {
	status int
	header http.Header
	raw    []byte
}

func (r reply) field(t *testing.T, name string) any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(r.raw, &fields); err != nil {
		t.Fatalf("%s: %s", err, r.raw)
	}
	return fields[name]
}

func (s *service) ask(t *testing.T, method, path, body string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", "e2b_test")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return send(t, req)
}

func send(t *testing.T, req *http.Request) reply {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, raw}
}

func (s *service) create(t *testing.T, body string) string {
	t.Helper()
	made := s.ask(t, "POST", "/v2/sandboxes", body)
	if made.status != http.StatusCreated {
		t.Fatalf("%d %s", made.status, made.raw)
	}
	id, _ := made.field(t, "sandboxID").(string)
	return id
}

func (s *service) state(t *testing.T, id string) string {
	t.Helper()
	got := s.ask(t, "GET", "/sandboxes/"+id, "")
	if got.status == http.StatusNotFound {
		return "gone"
	}
	state, _ := got.field(t, "state").(string)
	return state
}

// envd asks a sandbox.
func (s *service) envd(t *testing.T, id, method, path, kind string, body io.Reader, more ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	access, _ := s.ask(t, "GET", "/sandboxes/"+id, "").field(t, "envdAccessToken").(string)
	req.Header.Set("X-Access-Token", access)
	req.Header.Set("E2b-Sandbox-Id", id)
	req.Header.Set("E2b-Sandbox-Port", "49983")
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for i := 0; i+1 < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	return send(t, req)
}

// Each row is one of what the validator in front of the service was seen to do.
func TestTheValidatorRefusesWhatTheServiceRefuses(t *testing.T) {
	s := serve(t, e2btest.Options{MaxRun: time.Hour})
	id := s.create(t, `{"templateID":"base"}`)
	for name, row := range map[string]struct {
		method, path, body string
		status             int
	}{
		"no template":              {"POST", "/v2/sandboxes", `{}`, 400},
		"a wrong type":             {"POST", "/v2/sandboxes", `{"templateID":1}`, 400},
		"metadata of numbers":      {"POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":1}}`, 400},
		"null":                     {"POST", "/v2/sandboxes", `{"templateID":"base","metadata":null}`, 400},
		"a null value":             {"POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":null}}`, 400},
		"no JSON":                  {"POST", "/v2/sandboxes", `{`, 400},
		"a negative timeout":       {"POST", "/v2/sandboxes", `{"templateID":"base","timeout":-1}`, 400},
		"a timeout in words":       {"POST", "/v2/sandboxes", `{"templateID":"base","timeout":"5"}`, 400},
		"a broken timeout":         {"POST", "/v2/sandboxes", `{"templateID":"base","timeout":1.5}`, 400},
		"a huge timeout":           {"POST", "/v2/sandboxes", `{"templateID":"base","timeout":4294967296}`, 400},
		"no time at all":           {"POST", "/v2/sandboxes", `{"templateID":"base","timeout":0}`, 400},
		"more than the plan has":   {"POST", "/v2/sandboxes", `{"templateID":"base","timeout":3601}`, 400},
		"no body":                  {"POST", "/v2/sandboxes", ``, 400},
		"an unknown property":      {"POST", "/v2/sandboxes", `{"templateID":"base","unknown":{}}`, 201},
		"an unknown template":      {"POST", "/v2/sandboxes", `{"templateID":"nothing"}`, 404},
		"an unknown tag":           {"POST", "/v2/sandboxes", `{"templateID":"base:other"}`, 404},
		"a template of others":     {"POST", "/v2/sandboxes", `{"templateID":"others/base"}`, 403},
		"domains and no deny":      {"POST", "/v2/sandboxes", `{"templateID":"base","network":{"allowOut":["a.example"]}}`, 400},
		"domains":                  {"POST", "/v2/sandboxes", `{"templateID":"base","network":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}}`, 201},
		"no memory and no pause":   {"POST", "/v2/sandboxes", `{"templateID":"base","autoPauseMemory":false}`, 400},
		"limit 0":                  {"GET", "/v2/sandboxes?limit=0", ``, 400},
		"limit 101":                {"GET", "/v2/sandboxes?limit=101", ``, 400},
		"limit x":                  {"GET", "/v2/sandboxes?limit=x", ``, 400},
		"an unknown state":         {"GET", "/v2/sandboxes?state=killed", ``, 400},
		"an unknown order":         {"GET", "/v2/sandboxes?order=up", ``, 400},
		"no time":                  {"GET", "/v2/sandboxes?startedAfter=now", ``, 400},
		"an empty filter":          {"GET", "/v2/sandboxes?metadata=", ``, 400},
		"an unknown parameter":     {"GET", "/v2/sandboxes?unknown=1", ``, 200},
		"a cursor of no listing":   {"GET", "/v2/sandboxes?nextToken=abc", ``, 400},
		"an unknown path":          {"GET", "/v9/sandboxes", ``, 404},
		"another method":           {"PATCH", "/v2/sandboxes", ``, 404},
		"no id":                    {"GET", "/sandboxes/NOT-ONE", ``, 400},
		"an old client id":         {"GET", "/sandboxes/" + id + "-6532622b", ``, 200},
		"timeout without a body":   {"POST", "/sandboxes/" + id + "/timeout", ``, 400},
		"connect v1 without one":   {"POST", "/sandboxes/" + id + "/connect", ``, 400},
		"connect v2 without one":   {"POST", "/v2/sandboxes/" + id + "/connect", ``, 200},
		"refresh of too long":      {"POST", "/sandboxes/" + id + "/refreshes", `{"duration":3601}`, 400},
		"a snapshot without body":  {"POST", "/sandboxes/" + id + "/snapshots", ``, 400},
		"the most that is allowed": {"POST", "/v2/sandboxes", `{"templateID":"base","timeout":3600}`, 201},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.ask(t, row.method, row.path, row.body)
			if got.status != row.status {
				t.Fatalf("%d %s, want %d", got.status, got.raw, row.status)
			}
			if code, _ := got.fieldOrNil("code").(float64); row.status >= 400 && int(code) != row.status {
				t.Errorf("the body carries no code: %s", got.raw)
			}
		})
	}
}

func (r reply) fieldOrNil(name string) any {
	var fields map[string]any
	_ = json.Unmarshal(r.raw, &fields) // an array has no fields
	return fields[name]
}

func TestKeysAreChecked(t *testing.T) {
	s := serve(t, e2btest.Options{Keys: []string{"e2b_known"}})
	for key, want := range map[string]int{"": 401, "sk_known": 401, "e2b_other": 401, "e2b_known": 200} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v2/sandboxes", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("X-API-Key", key)
		}
		if got := send(t, req); got.status != want {
			t.Errorf("key %q: %d", key, got.status)
		}
	}
}

// The vendor's own vector, and the table of values that break at two levels of
// escapes.
func TestTheMetadataFilterIsEscapedTwiceInside(t *testing.T) {
	s := serve(t, e2btest.Options{})
	for _, value := range []string{"plain", "a b", "ü/:", "x&y", "x=y", "50%", "%41", "a+b", "x&y=ü"} {
		encoded, err := json.Marshal(map[string]any{"templateID": "base", "metadata": map[string]string{"a b/c": value}})
		if err != nil {
			t.Fatal(err)
		}
		id := s.create(t, string(encoded))
		twice := func(text string) string { return url.QueryEscape(url.QueryEscape(text)) }
		inner := twice("a b/c") + "=" + twice(value)
		got := s.ask(t, "GET", "/v2/sandboxes?"+url.Values{"metadata": {inner}}.Encode(), "")
		if got.status != 200 || !bytes.Contains(got.raw, []byte(id)) {
			t.Errorf("%q: %d %s", value, got.status, got.raw)
		}
	}
	s.create(t, `{"templateID":"base","metadata":{"owner":"tf","a b/c":"x&y=ü"}}`)
	got := s.ask(t, "GET", "/v2/sandboxes?metadata=owner%3Dtf%26a%252520b%25252Fc%3Dx%252526y%25253D%2525C3%2525BC", "")
	if got.status != 200 || !bytes.Contains(got.raw, []byte(`"owner":"tf"`)) {
		t.Errorf("the client's own filter: %d %s", got.status, got.raw)
	}
	// Escaped once: another value matches, or none can be read.
	for once, want := range map[string]int{"k=x&y": 400, "k=50%": 400} {
		if got := s.ask(t, "GET", "/v2/sandboxes?"+url.Values{"metadata": {once}}.Encode(), ""); got.status != want {
			t.Errorf("%q: %d", once, got.status)
		}
	}
}

// The traps of the states: each is a fact that a client has to live with.
func TestTheStatesOfASandbox(t *testing.T) {
	s := serve(t, e2btest.Options{MaxRun: time.Hour})
	t.Run("the end kills", func(t *testing.T) {
		id := s.create(t, `{"templateID":"base","timeout":60}`)
		s.clock.Advance(61 * time.Second)
		if got := s.state(t, id); got != "gone" {
			t.Errorf("it is %s", got)
		}
	})
	t.Run("the end pauses where that was asked for", func(t *testing.T) {
		id := s.create(t, `{"templateID":"base","timeout":60,"autoPause":true}`)
		s.clock.Advance(61 * time.Second)
		if got := s.state(t, id); got != "paused" {
			t.Errorf("it is %s", got)
		}
	})
	t.Run("what was ever stored comes back as paused", func(t *testing.T) {
		for _, store := range []string{"snapshots", "pause", "fork"} {
			id := s.create(t, `{"templateID":"base","timeout":60}`)
			if got := s.ask(t, "POST", "/sandboxes/"+id+"/"+store, `{}`); got.status >= 300 {
				t.Fatalf("%s: %d %s", store, got.status, got.raw)
			}
			s.ask(t, "POST", "/v2/sandboxes/"+id+"/connect", `{"timeout":60}`)
			s.clock.Advance(61 * time.Second)
			if got := s.state(t, id); got != "paused" {
				t.Errorf("after %s and its end it is %s", store, got)
			}
			if got := s.ask(t, "DELETE", "/sandboxes/"+id, ""); got.status != 204 || s.state(t, id) != "gone" {
				t.Errorf("after a delete (%d) it is %s", got.status, s.state(t, id))
			}
		}
	})
	t.Run("a timeout beyond the plan is capped in silence", func(t *testing.T) {
		id := s.create(t, `{"templateID":"base","timeout":60}`)
		if got := s.ask(t, "POST", "/sandboxes/"+id+"/timeout", `{"timeout":7200}`); got.status != 204 {
			t.Fatalf("%d %s", got.status, got.raw)
		}
		s.clock.Advance(time.Hour + time.Second)
		if got := s.state(t, id); got != "gone" {
			t.Errorf("an hour later it is %s", got)
		}
	})
	t.Run("a timeout may shorten, a refresh and a connect may not", func(t *testing.T) {
		id := s.create(t, `{"templateID":"base","timeout":600}`)
		before := s.ask(t, "GET", "/sandboxes/"+id, "").field(t, "endAt")
		s.ask(t, "POST", "/sandboxes/"+id+"/refreshes", `{"duration":60}`)
		s.ask(t, "POST", "/v2/sandboxes/"+id+"/connect", `{"timeout":60}`)
		if got := s.ask(t, "GET", "/sandboxes/"+id, "").field(t, "endAt"); got != before {
			t.Errorf("from %v to %v", before, got)
		}
		s.ask(t, "POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`)
		if got := s.ask(t, "GET", "/sandboxes/"+id, "").field(t, "endAt"); got == before {
			t.Error("a timeout did not shorten")
		}
	})
	t.Run("a timeout of what is paused is the answer for what is gone", func(t *testing.T) {
		id := s.create(t, `{"templateID":"base","timeout":600}`)
		s.ask(t, "POST", "/sandboxes/"+id+"/pause", `{}`)
		if got := s.ask(t, "POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`); got.status != 404 {
			t.Errorf("%d", got.status)
		}
		if got := s.ask(t, "POST", "/sandboxes/"+id+"/pause", `{}`); got.status != 409 {
			t.Errorf("a second pause: %d", got.status)
		}
		s.clock.Advance(1000 * time.Hour)
		if got := s.state(t, id); got != "paused" {
			t.Errorf("six weeks later it is %s", got)
		}
	})
	t.Run("a resume begins the plan's maximum anew", func(t *testing.T) {
		id := s.create(t, `{"templateID":"base","timeout":3600}`)
		s.clock.Advance(50 * time.Minute)
		s.ask(t, "POST", "/sandboxes/"+id+"/pause", `{}`)
		if got := s.ask(t, "POST", "/v2/sandboxes/"+id+"/connect", `{"timeout":3600}`); got.status != 201 {
			t.Fatalf("%d %s", got.status, got.raw)
		}
		s.clock.Advance(50 * time.Minute)
		if got := s.state(t, id); got != "running" {
			t.Errorf("it is %s", got)
		}
	})
}

func TestTransitionsAreSeenAndWaitedFor(t *testing.T) {
	s := serve(t, e2btest.Options{Clock: clock.System{}, PauseTakes: 300 * time.Millisecond, SnapshotTakes: 300 * time.Millisecond, KillTakes: 300 * time.Millisecond})
	during := func(id, act string, look func()) {
		t.Helper()
		done := make(chan reply, 1)
		go func() {
			if act == "" {
				done <- s.ask(t, "DELETE", "/sandboxes/"+id, "")
				return
			}
			done <- s.ask(t, "POST", "/sandboxes/"+id+"/"+act, `{}`)
		}()
		for len(s.Sandboxes()) > 0 && s.truth(id).State == "running" {
			if err := (clock.System{}).Sleep(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		look()
		if got := <-done; got.status >= 300 {
			t.Errorf("%s: %d %s", act, got.status, got.raw)
		}
	}
	id := s.create(t, `{"templateID":"base"}`)
	during(id, "snapshots", func() {
		if got := s.ask(t, "GET", "/v2/sandboxes?state=running", ""); bytes.Contains(got.raw, []byte(id)) {
			t.Error("a sandbox that is being snapshotted is listed as running")
		}
		if s.state(t, id) != "running" {
			t.Error("GET does not find it running")
		}
		if got := s.ask(t, "POST", "/sandboxes/"+id+"/timeout", `{"timeout":5}`); got.status != 409 {
			t.Errorf("timeout: %d", got.status)
		}
		if got := s.ask(t, "POST", "/sandboxes/"+id+"/snapshots", `{}`); got.status != 409 {
			t.Errorf("a second snapshot: %d", got.status)
		}
	})
	during(id, "pause", func() {
		if s.state(t, id) != "paused" {
			t.Error("a sandbox that is being paused is not shown as paused")
		}
		if got := s.ask(t, "POST", "/v2/sandboxes/"+id+"/connect", `{}`); got.status != 201 {
			t.Errorf("a connect waits and resumes: %d", got.status)
		}
	})
	during(id, "", func() {
		if s.state(t, id) != "gone" {
			t.Error("a sandbox that is being killed is found")
		}
		if got := s.ask(t, "POST", "/sandboxes/"+id+"/pause", `{}`); got.status != 409 {
			t.Errorf("pause: %d", got.status)
		}
		if got := s.ask(t, "DELETE", "/sandboxes/"+id, ""); got.status != 204 {
			t.Errorf("a second delete joins: %d", got.status)
		}
	})
}

func (s *service) truth(id string) e2btest.Truth {
	for _, truth := range s.Sandboxes() {
		if truth.ID == id {
			return truth
		}
	}
	return e2btest.Truth{}
}

func TestPagesAreCompleteAndStrictlyAfterEachOther(t *testing.T) {
	s := serve(t, e2btest.Options{Concurrent: 1000})
	for range 250 {
		s.create(t, `{"templateID":"base","timeout":3600}`) // all at the same time: ties are by id
	}
	for _, order := range []string{"desc", "asc"} {
		seen, pages := map[string]bool{}, 0
		for token := "first"; token != ""; pages++ {
			query := url.Values{"order": {order}}
			if token != "first" {
				query.Set("nextToken", token)
			}
			got := s.ask(t, "GET", "/v2/sandboxes?"+query.Encode(), "")
			var page []struct{ SandboxID string }
			if err := json.Unmarshal(got.raw, &page); err != nil {
				t.Fatal(err)
			}
			for _, entry := range page {
				if seen[entry.SandboxID] {
					t.Fatalf("%s twice", entry.SandboxID)
				}
				seen[entry.SandboxID] = true
			}
			if got.header.Get("X-Total-Running") != "250" {
				t.Errorf("total %q", got.header.Get("X-Total-Running"))
			}
			token = got.header.Get("X-Next-Token")
		}
		if len(seen) != 250 || pages != 3 {
			t.Errorf("%s: %d in %d pages", order, len(seen), pages)
		}
	}
}

func TestAnIdempotencyKeyReplaysTheFirstAnswer(t *testing.T) {
	s := serve(t, e2btest.Options{})
	ask := func(key, body string) reply {
		req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v2/sandboxes", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", "e2b_test")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		return send(t, req)
	}
	one, again := ask("a1", `{"templateID":"base"}`), ask("a1", `{"templateID":"base"}`)
	if one.status != 201 || !bytes.Equal(one.raw, again.raw) || len(s.Sandboxes()) != 1 {
		t.Errorf("%s, then %s", one.raw, again.raw)
	}
	if got := ask("a1", `{"templateID":"base","timeout":5}`); got.status != 409 || got.field(t, "error_code") != "idempotency_request_mismatch" {
		t.Errorf("%d %s", got.status, got.raw)
	}
	if got := ask("A-1", `{"templateID":"base"}`); got.status != 400 {
		t.Errorf("%d", got.status)
	}
	if first, again := ask("b", `{"templateID":"nothing"}`), ask("b", `{"templateID":"nothing"}`); first.status != 404 || again.status != 404 {
		t.Error("an error is not replayed")
	}
}

// The bytes of a command, as they were captured from the vendor's own envd.
func TestACommandByteForByte(t *testing.T) {
	s := serve(t, e2btest.Options{Clock: clock.System{}})
	id := s.create(t, `{"templateID":"base"}`)
	frame := func(payload string) io.Reader {
		return strings.NewReader(fmt.Sprintf("\x00\x00\x00\x00%c%s", len(payload), payload))
	}
	got := s.envd(t, id, "POST", "/process.Process/Start", "application/connect+json",
		frame(`{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi; exit 3"]},"stdin":false}`))
	if got.status != 200 || got.header.Get("Content-Type") != "application/connect+json" {
		t.Fatalf("%d %v", got.status, got.header)
	}
	for _, part := range []string{
		`{"event":{"start":{"pid":`,
		"\x00\x00\x00\x00\x24" + `{"event":{"data":{"stdout":"aGkK"}}}`,
		`{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}`,
		"\x02\x00\x00\x00\x02{}",
	} {
		if !bytes.Contains(got.raw, []byte(part)) {
			t.Errorf("%q lacks %q", got.raw, part)
		}
	}
	ok := s.envd(t, id, "POST", "/process.Process/Start", "application/connect+json", frame(`{"process":{"cmd":"true"},"stdin":false}`))
	if !bytes.Contains(ok.raw, []byte(`{"event":{"end":{"exited":true,"status":"exit status 0"}}}`)) {
		t.Errorf("exit code 0: %q", ok.raw)
	}
	killed := s.envd(t, id, "POST", "/process.Process/Start", "application/connect+json", frame(`{"process":{"cmd":"sh","args":["-c","kill -9 $$"]},"stdin":false}`))
	if !bytes.Contains(killed.raw, []byte(`{"event":{"end":{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}}}`)) {
		t.Errorf("a signal: %q", killed.raw)
	}
	for body, code := range map[string]string{
		`{"process":{"cmd":"true","cwd":"/nowhere"}}`: "invalid_argument",
		`not json`: "invalid_argument",
	} {
		got := s.envd(t, id, "POST", "/process.Process/Start", "application/connect+json", frame(body))
		if got.status != 200 || got.raw[0] != 2 || !bytes.Contains(got.raw, []byte(`"code":"`+code+`"`)) {
			t.Errorf("%s: %d %q", body, got.status, got.raw)
		}
	}
	if got := s.envd(t, id, "POST", "/process.Process/Start", "application/json", frame(`{}`)); got.status != 415 || got.header.Get("Accept-Post") == "" {
		t.Errorf("%d", got.status)
	}
	if got := s.envd(t, id, "GET", "/process.Process/Start", "", http.NoBody); got.status != 405 || got.header.Get("Allow") != "POST" {
		t.Errorf("%d", got.status)
	}
	if got := s.envd(t, id, "POST", "/process.Process/List", "application/json", strings.NewReader("{}")); got.status != 200 || string(got.raw) != "{}" {
		t.Errorf("%d %s", got.status, got.raw)
	}
	timedOut := s.envd(t, id, "POST", "/process.Process/Start", "application/connect+json", frame(`{"process":{"cmd":"sleep","args":["60"]},"stdin":false}`), "Connect-Timeout-Ms", "200")
	if !bytes.Contains(timedOut.raw, []byte(`"code":"deadline_exceeded"`)) {
		t.Errorf("a timeout: %q", timedOut.raw)
	}
}

func TestFilesAreInTheSandboxAndNowhereElse(t *testing.T) {
	s := serve(t, e2btest.Options{})
	id := s.create(t, `{"templateID":"base"}`)
	up := s.envd(t, id, "POST", "/files?path=notes/a.txt", "application/octet-stream", strings.NewReader("hello"))
	if up.status != 200 || string(up.raw) != `[{"name":"a.txt","path":"/home/user/notes/a.txt","type":"file"}]` {
		t.Fatalf("%d %s", up.status, up.raw)
	}
	down := s.envd(t, id, "GET", "/files?path=/home/user/notes/a.txt", "", http.NoBody, "Accept-Encoding", "identity")
	if down.status != 200 || string(down.raw) != "hello" || down.header.Get("Content-Length") != "5" {
		t.Errorf("%d %q %v", down.status, down.raw, down.header)
	}
	part := s.envd(t, id, "GET", "/files?path=/home/user/notes/a.txt", "", http.NoBody, "Range", "bytes=1-2")
	if part.status != 206 || string(part.raw) != "el" {
		t.Errorf("%d %q", part.status, part.raw)
	}
	for path, want := range map[string]int{"/missing": 404, "/home": 400, "/../../../../../../etc/shadow": 404} {
		if got := s.envd(t, id, "GET", "/files?path="+url.QueryEscape(path), "", http.NoBody); got.status != want {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	if got := s.envd(t, id, "POST", "/files?path=/home/user", "application/octet-stream", strings.NewReader("x")); got.status != 400 {
		t.Errorf("over a directory: %d", got.status)
	}
	if got := s.envd(t, id, "GET", "/files?path=/home/user/notes/a.txt", "", http.NoBody, "X-Access-Token", "wrong"); got.status != 401 {
		t.Errorf("with another token: %d", got.status)
	}
	if got := s.envd(t, "i"+strings.Repeat("a", 20), "GET", "/health", "", http.NoBody); got.status != 502 || got.field(t, "sandboxId") == nil {
		t.Errorf("of no sandbox: %d", got.status)
	}
}

// What was captured from the vendor's client, and computed by hand.
func TestSignaturesAreTheVendors(t *testing.T) {
	for want, v := range map[string][5]string{
		"v1_mzn+1R74JH2wtsTk6gTeInu24ZlQ7BBVUOs7jGA8Xwc": {"/home/user/a.txt", "read", "user", "secret", "1700000000"},
		"v1_Mw4xulPzjmdvreE8MVHRdfAv3OVW/7UZQxCewVzPxJU": {"/home/user/a.txt", "write", "", "secret", ""},
		"v1_U4YfHCESqnKFFstRDQsuJzKo52CU35Vg8dzniECCP9g": {"/tmp/a", "write", "", "tok-i001abcdefghijklmnopq", ""},
	} {
		if got := e2btest.Signature(v[0], v[1], v[2], v[3], v[4]); got != want {
			t.Errorf("%v: %s", v, got)
		}
	}
}

func TestSnapshotsCarryFiles(t *testing.T) {
	s := serve(t, e2btest.Options{})
	id := s.create(t, `{"templateID":"base"}`)
	s.envd(t, id, "POST", "/files?path=/tmp/a", "application/octet-stream", strings.NewReader("before"))
	made := s.ask(t, "POST", "/sandboxes/"+id+"/snapshots", `{}`)
	ref, _ := made.field(t, "snapshotID").(string)
	s.envd(t, id, "POST", "/files?path=/tmp/a", "application/octet-stream", strings.NewReader("after"))
	encoded, err := json.Marshal(map[string]string{"templateID": ref})
	if err != nil {
		t.Fatal(err)
	}
	copied := s.create(t, string(encoded))
	if got := s.envd(t, copied, "GET", "/files?path=/tmp/a", "", http.NoBody); string(got.raw) != "before" {
		t.Errorf("%q", got.raw)
	}
	if got := s.ask(t, "DELETE", "/templates/"+url.PathEscape(ref), ""); got.status != 400 {
		t.Errorf("a delete of what is in use: %d", got.status)
	}
	s.ask(t, "DELETE", "/sandboxes/"+copied, "")
	if got := s.ask(t, "DELETE", "/templates/"+url.PathEscape(ref), ""); got.status != 204 {
		t.Errorf("%d %s", got.status, got.raw)
	}
}
