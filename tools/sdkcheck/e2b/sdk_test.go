// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2bcheck

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// row is one recorded call.
type row struct {
	ID       string          `json:"id"`
	SDK      string          `json:"sdk"`
	What     string          `json:"what"`
	Call     string          `json:"call"`
	Faults   []fault         `json:"faults"`
	Requests []request       `json:"requests"` // none: any
	Value    json.RawMessage `json:"value"`
	Error    string          `json:"error"` // class
}

type fault struct {
	Call   e2btest.Call `json:"call"`
	Lie    e2btest.Lie  `json:"lie"`
	On     int          `json:"on"`
	For    string       `json:"for"`
	Status int          `json:"status"`
	Code   string       `json:"code"`
}

// request is what has to be seen at the server. What is left out may be
// anything.
type request struct {
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Query  *string           `json:"query"`
	Status int               `json:"status"`
	Body   json.RawMessage   `json:"body"` // of a stream, its first message
	Raw    string            `json:"raw"`  // hexadecimal
	Header map[string]string `json:"header"`
}

// answer is what a call gave.
type answer struct {
	Value   json.RawMessage `json:"value"`
	Error   string          `json:"error"`
	Message string          `json:"message"`
}

// The names that ids are compared by.
var names = []struct {
	form *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`\bi[a-z0-9]{20}\b`), "{sandbox}"},
	{regexp.MustCompile(`\b[a-z0-9]{20}\b`), "{template}"},
	{regexp.MustCompile(`nextToken=[^&]+`), "nextToken={token}"},
	{regexp.MustCompile(`"pid":\s*\d+`), `"pid":1`},
}

func named(text string) string {
	for _, n := range names {
		text = n.form.ReplaceAllString(text, n.name)
	}
	return text
}

// The vendor's clients, of both generations, work against the server.
func TestCloudsE2B(t *testing.T) {
	var rows []row
	load(t, "rows.json", &rows)
	var required map[string][]string
	load(t, "required.json", &required)
	seen := &answers{bodies: map[string][]byte{}}
	server, err := e2btest.New(e2btest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(seen.record(server))
	defer func() {
		web.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	client := newClient(t, web.URL)
	passed := map[string][2]int{}
	count := func(of string, ok bool) {
		n := passed[of]
		n[1]++
		if ok {
			n[0]++
		}
		passed[of] = n
	}
	for _, r := range rows {
		ok := t.Run(r.ID, func(t *testing.T) {
			for _, f := range r.Faults {
				d, err := time.ParseDuration(cmp.Or(f.For, "0s"))
				if err != nil {
					t.Fatal(err)
				}
				server.Inject(e2btest.Fault{Call: f.Call, Lie: f.Lie, On: f.On, For: d, Status: f.Status, Code: f.Code})
			}
			defer server.Heal()
			server.Forget()
			got := client.call(t, r)
			r.check(t, got, server.Requests())
		})
		count("e2b "+r.SDK, ok)
	}
	for _, of := range slices.Sorted(maps.Keys(required)) {
		ok := t.Run("required/"+of, func(t *testing.T) {
			body, asked := seen.bodies[of]
			if !asked {
				t.Fatal("no row has this answer")
			}
			if lacks := lacking(t, body, required[of]); len(lacks) > 0 {
				t.Errorf("%s lacks %s", body, strings.Join(lacks, ", "))
			}
		})
		count("required fields", ok)
	}
	for _, of := range slices.Sorted(maps.Keys(passed)) {
		t.Logf("counted: %s: %d of %d rows passed", of, passed[of][0], passed[of][1])
	}
}

func load(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(content, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func (r row) check(t *testing.T, got answer, asked []e2btest.Request) {
	t.Helper()
	if got.Error != r.Error {
		t.Errorf("%s: the error is %q (%s), not %q", r.What, got.Error, got.Message, r.Error)
	}
	if r.Value != nil && !same(t, named(string(got.Value)), string(r.Value)) {
		t.Errorf("%s: it gave %s, not %s", r.What, got.Value, r.Value)
	}
	if r.Requests == nil {
		return
	}
	if len(asked) != len(r.Requests) {
		for _, a := range asked {
			t.Logf("%s %s?%s %d", a.Method, a.Path, a.Query, a.Status)
		}
		t.Fatalf("%s: %d requests, not %d", r.What, len(asked), len(r.Requests))
	}
	for i, want := range r.Requests {
		want.check(t, r.What, asked[i])
	}
}

func (want request) check(t *testing.T, what string, got e2btest.Request) {
	t.Helper()
	if got.Method != want.Method || named(got.Path) != want.Path || got.Status != want.Status {
		t.Errorf("%s: %s %s %d, not %s %s %d", what, got.Method, named(got.Path), got.Status, want.Method, want.Path, want.Status)
	}
	if want.Query != nil && named(got.Query) != *want.Query {
		t.Errorf("%s: the query is %q, not %q", what, named(got.Query), *want.Query)
	}
	if want.Raw != "" && hex.EncodeToString(got.Body) != want.Raw {
		t.Errorf("%s: the bytes are %x, not %s", what, got.Body, want.Raw)
	}
	if want.Body != nil {
		body := got.Body
		if strings.HasPrefix(got.Header.Get("Content-Type"), "application/connect+") && len(body) > 5 {
			body = body[5:] // the head of the envelope
		}
		if !same(t, named(string(body)), string(want.Body)) {
			t.Errorf("%s: the body is %s, not %s", what, body, want.Body)
		}
	}
	for name, value := range want.Header {
		if got.Header.Get(name) != value {
			t.Errorf("%s: %s is %q, not %q", what, name, got.Header.Get(name), value)
		}
	}
}

// same compares two texts of JSON.
func same(t *testing.T, got, want string) bool {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	return json.Unmarshal([]byte(got), &a) == nil && reflect.DeepEqual(a, b)
}

// lacking returns the fields that an object, or the first of a list, lacks.
func lacking(t *testing.T, body []byte, fields []string) (lacks []string) {
	t.Helper()
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil {
		if len(list) == 0 {
			t.Fatal("the list is empty")
		}
		body = list[0]
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for _, field := range fields {
		if _, ok := object[field]; !ok {
			lacks = append(lacks, field)
		}
	}
	return lacks
}

// answers keeps the first answer of each kind: the rows with faults come later.
type answers struct {
	mu     sync.Mutex
	bodies map[string][]byte
}

type copied struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (c *copied) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *copied) Write(p []byte) (int, error) {
	c.body.Write(p)
	return c.ResponseWriter.Write(p)
}

func (c *copied) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (a *answers) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &copied{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(c, r)
		kind := r.Method + " " + named(r.URL.Path) + " " + strconv.Itoa(c.status)
		if body := c.body.Bytes(); len(body) > 2 { // an empty list shows nothing
			a.mu.Lock()
			if a.bodies[kind] == nil {
				a.bodies[kind] = bytes.Clone(body)
			}
			a.mu.Unlock()
		}
	})
}

// client is a process that makes the vendor's calls.
type client struct {
	in  io.Writer
	out *bufio.Scanner
}

// newClient installs the vendor's clients, once for each lock file, and starts
// a process with them.
func newClient(t *testing.T, url string) *client {
	t.Helper()
	dir := install(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "node", "client.mjs")
	cmd.Dir = dir
	cmd.Env = append(repo.CleanEnv(), "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY=e2b_test")
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // that is what ends it
		cancel()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	return &client{in, lines}
}

func (c *client) call(t *testing.T, r row) answer {
	t.Helper()
	line, err := json.Marshal(map[string]string{"sdk": r.SDK, "call": r.Call})
	if err == nil {
		_, err = c.in.Write(append(line, '\n'))
	}
	if err != nil {
		t.Fatal(err)
	}
	if !c.out.Scan() {
		t.Fatalf("the client ended: %v", c.out.Err())
	}
	var got answer
	if err := json.Unmarshal(c.out.Bytes(), &got); err != nil {
		t.Fatalf("%s: %v", c.out.Text(), err)
	}
	return got
}

// install has npm install what the lock file says, outside of the sources, and
// returns where.
func install(t *testing.T) string {
	t.Helper()
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, ".cache", "sdkcheck", "e2b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fresh := true
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(filepath.Join(dir, name)) // not there is another one
		if name == "package-lock.json" && !bytes.Equal(before, content) {
			fresh = false
			if err := os.RemoveAll(filepath.Join(dir, "node_modules")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil && fresh {
		return dir
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, output)
	}
	return dir
}
