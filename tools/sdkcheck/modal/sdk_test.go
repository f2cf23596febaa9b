// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modalcheck

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// row is something that was recorded.
type row struct {
	ID     string  `json:"id"`
	What   string  `json:"what"`
	Family string  `json:"family"` // v1: the first generation
	JS     string  `json:"js"`     // for npm's client; that for Go has a function of the id
	Only   string  `json:"only"`   // the client that it is about, where it is one
	Faults []fault `json:"faults"`
	// Calls are the methods of the service in their order, or in any.
	Calls    []string `json:"calls"`
	AnyOrder bool     `json:"any_order"`
	// Sent is what the last message of a method has, at least.
	Sent map[string]json.RawMessage `json:"sent"`
	// Headers, NoHeaders and SameHeader are about all calls of a method.
	Headers    map[string][]string `json:"headers"`
	NoHeaders  map[string][]string `json:"no_headers"`
	SameHeader map[string]string   `json:"same_header"`
	Value      json.RawMessage     `json:"value"`
	Error      string              `json:"error"`    // its class
	GoError    string              `json:"go_error"` // where that for Go differs; * is any
}

type fault struct {
	Call  string        `json:"call"`
	Lie   modaltest.Lie `json:"lie"`
	On    int           `json:"on"`
	For   string        `json:"for"`
	Code  codes.Code    `json:"code"`
	Clear []string      `json:"clear"`
	Merge string        `json:"merge"`
}

// answer is what a call gave.
type answer struct {
	Value   json.RawMessage `json:"value"`
	Error   string          `json:"error"`
	Message string          `json:"message"`
}

// caller makes the calls of one client.
type caller interface {
	call(t *testing.T, r row) answer
}

// The vendor's clients, for npm and for Go, work against the server.
func TestCloudsModal(t *testing.T) {
	content, err := os.ReadFile("rows.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	if err := json.Unmarshal(content, &rows); err != nil {
		t.Fatal(err)
	}
	dir := install(t)
	for name, start := range map[string]func(t *testing.T, url, family string) caller{
		"npm": func(t *testing.T, url, family string) caller { return newNode(t, dir, url, family) },
		"go":  func(t *testing.T, url, family string) caller { return newGo(t, url, family) },
	} {
		passed, tried := 0, 0
		t.Run(name, func(t *testing.T) {
			server, err := modaltest.New(modaltest.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := server.Close(); err != nil {
					t.Error(err)
				}
			})
			callers := map[string]caller{}
			for _, r := range rows {
				if r.Only != "" && r.Only != name {
					continue
				}
				family := cmp.Or(r.Family, "v2")
				if callers[family] == nil {
					callers[family] = start(t, server.URL(), family)
				}
				tried++
				if t.Run(r.ID, func(t *testing.T) { r.check(t, name, server, callers[family]) }) {
					passed++
				}
			}
		})
		t.Logf("counted: modal %s 0.11.1: %d of %d rows passed", name, passed, tried)
	}
}

func (r row) check(t *testing.T, client string, server *modaltest.Server, c caller) {
	for _, f := range r.Faults {
		d, err := time.ParseDuration(cmp.Or(f.For, "0s"))
		if err != nil {
			t.Fatal(err)
		}
		server.Inject(modaltest.Fault{Call: f.Call, Lie: f.Lie, On: f.On, For: d, Code: f.Code, Clear: f.Clear, Merge: f.Merge})
	}
	defer server.Heal()
	server.Forget()
	got := c.call(t, r)
	asked := server.Requests()
	want := r.Error
	if client == "go" && r.GoError != "" {
		want = r.GoError
	}
	if got.Error != want && (want != "*" || got.Error == "") {
		t.Errorf("%s: the error is %q (%s), not %q", r.What, got.Error, got.Message, want)
	}
	if r.Value != nil && !same(t, got.Value, r.Value) {
		t.Errorf("%s: it gave %s, not %s", r.What, got.Value, r.Value)
	}
	var methods []string
	for _, a := range asked {
		methods = append(methods, a.Method)
	}
	if r.Calls != nil {
		seen, wanted := slices.Clone(methods), slices.Clone(r.Calls)
		if r.AnyOrder {
			slices.Sort(seen)
			slices.Sort(wanted)
		}
		if !slices.Equal(seen, wanted) {
			t.Errorf("%s: the calls are %q, not %q", r.What, methods, r.Calls)
		}
	}
	for method, part := range r.Sent {
		r.sent(t, method, part, asked)
	}
	r.told(t, asked)
}

// sent looks whether the last message of a method has what is wanted.
func (r row) sent(t *testing.T, method string, part json.RawMessage, asked []modaltest.Request) {
	t.Helper()
	for _, a := range slices.Backward(asked) {
		message, ok := a.Message.(proto.Message)
		if a.Method != method || !ok {
			continue
		}
		encoded, err := protojson.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		var have, want any
		if err := errors.Join(json.Unmarshal(encoded, &have), json.Unmarshal(part, &want)); err != nil {
			t.Fatal(err)
		}
		if !within(have, want) {
			t.Errorf("%s: %s was sent %s, without %s", r.What, method, encoded, part)
		}
		return
	}
	t.Errorf("%s: %s was not called", r.What, method)
}

// within reports whether a value has everything of another one: the fields of an
// object, and all of a list.
func within(have, want any) bool {
	object, ok := want.(map[string]any)
	if !ok {
		list, ok := want.([]any)
		if !ok {
			return reflect.DeepEqual(have, want)
		}
		there, ok := have.([]any)
		if !ok || len(there) != len(list) {
			return false
		}
		for i := range list {
			if !within(there[i], list[i]) {
				return false
			}
		}
		return true
	}
	there, ok := have.(map[string]any)
	if !ok {
		return false
	}
	for name, value := range object {
		if !within(there[name], value) {
			return false
		}
	}
	return true
}

// told looks at the headers.
func (r row) told(t *testing.T, asked []modaltest.Request) {
	t.Helper()
	once := map[string]string{}
	for _, a := range asked {
		for _, name := range r.Headers[a.Method] {
			if len(a.Metadata[name]) == 0 {
				t.Errorf("%s: %s has no %s", r.What, a.Method, name)
			}
		}
		for _, name := range r.NoHeaders[a.Method] {
			if len(a.Metadata[name]) != 0 {
				t.Errorf("%s: %s has %s", r.What, a.Method, name)
			}
		}
		if name := r.SameHeader[a.Method]; name != "" {
			value := strings.Join(a.Metadata[name], ",")
			if before, seen := once[name]; seen && before != value {
				t.Errorf("%s: %s goes from %q to %q", r.What, name, before, value)
			}
			once[name] = value
		}
	}
}

// same compares two texts of JSON.
func same(t *testing.T, got, want json.RawMessage) bool {
	t.Helper()
	var a, b any
	if err := json.Unmarshal(want, &b); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	return json.Unmarshal(got, &a) == nil && reflect.DeepEqual(a, b)
}

// node is a process that makes the calls of npm's client.
type node struct {
	in  io.Writer
	out *bufio.Scanner
}

func newNode(t *testing.T, dir, url, family string) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "node", "client.mjs")
	cmd.Dir = dir
	cmd.Env = append(repo.CleanEnv(), environment(dir, url, family)...)
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
	return &node{in, lines}
}

// environment points a client at the server, and at no profile of a user's.
func environment(dir, url, family string) []string {
	second := "1"
	if family == "v1" {
		second = "0"
	}
	return []string{"MODAL_SERVER_URL=" + url, "MODAL_CONFIG_PATH=" + filepath.Join(dir, "none"), "MODAL_SANDBOX_V2=" + second}
}

func (n *node) call(t *testing.T, r row) answer {
	t.Helper()
	line, err := json.Marshal(r.JS)
	if err == nil {
		_, err = n.in.Write(append(line, '\n'))
	}
	if err != nil {
		t.Fatal(err)
	}
	if !n.out.Scan() {
		t.Fatalf("the client ended: %v", n.out.Err())
	}
	var got answer
	if err := json.Unmarshal(n.out.Bytes(), &got); err != nil {
		t.Fatalf("%s: %v", n.out.Text(), err)
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
	dir := filepath.Join(root, ".cache", "sdkcheck", "modal")
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
	// Not `npm ci`: it refuses to leave out packages of another platform that are
	// optional, and that not every registry has. What the lock file says is
	// checked after.
	cmd := exec.CommandContext(t.Context(), "npm", "install", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--omit-lockfile-registry-resolved")
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, output)
	}
	want, wantErr := os.ReadFile("package-lock.json")
	got, gotErr := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err := errors.Join(wantErr, gotErr); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("npm did not install what the lock file says (%v)", err)
	}
	return dir
}
