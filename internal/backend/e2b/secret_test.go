// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The key is in the header that the control plane wants it in, and nowhere
// else: not in what is answered or refused, in a record, in a sandbox, in what
// a sandbox's own host is sent, or in the arguments of a process.
func TestTheKeyIsToldToNobody(t *testing.T) {
	c := newCloud(t, e2btest.Options{})
	var said strings.Builder
	tell := func(result any, err error) {
		encoded, encodeErr := json.Marshal(result)
		if encodeErr != nil {
			t.Fatal(encodeErr)
		}
		fmt.Fprintf(&said, "%s %+v %#v %v\n", encoded, result, err, err)
		for unwrapped := err; unwrapped != nil; unwrapped = errors.Unwrap(unwrapped) {
			fmt.Fprintf(&said, "%v\n", unwrapped)
		}
	}
	opts := c.creation(1)
	opts.Profile.Command = []string{"sh", "-c", "env; cat /proc/*/cmdline; exec sleep 1000"}
	opts.Profile.Files = map[string]sdk.File{"/etc/conf": {Content: "x"}}
	made, err := c.Create(t.Context(), opts)
	tell(made, err)
	if err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: opts.ID, Ref: made.Sandbox.Ref, Fleet: fleet}
	exec := func(command ...string) string {
		var out bytes.Buffer
		result, err := c.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: command, Stdout: &out, Stderr: &out})
		tell(result, err)
		return out.String()
	}
	fmt.Fprintln(&said, exec("env"))
	fmt.Fprintln(&said, exec("sh", "-c", "cat /proc/*/cmdline /proc/*/environ 2>/dev/null; grep -rs . /etc/conf /tmp /run /home /var/log"))
	for call, lie := range map[e2btest.Call]e2btest.Lie{e2btest.CallGet: e2btest.LoseRequest, e2btest.CallList: e2btest.ProxyPage, e2btest.CallDelete: e2btest.Refuse} {
		c.Inject(e2btest.Fault{Call: call, Lie: lie, Status: 500})
		got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
		tell(got, err)
		list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
		tell(list, err)
		probed, err := c.Probe(t.Context(), sdk.ProbeOptions{})
		tell(probed, err)
		gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target})
		tell(gone, err)
		c.Heal()
	}
	// A key that is refused is not shown either, and one that can't be asked.
	for name, url := range map[string]string{"refused": c.url, "unreachable": "http://127.0.0.1:1"} {
		other := e2b.New(e2b.Options{Getenv: func(string) string { return "" }, Settle: time.Millisecond})
		for _, config := range []map[string]any{
			{"api_url": url, "state_dir": t.TempDir(), "api_key": testKey + "x"},
			{"api_url": url, "state_dir": t.TempDir(), "api_key": testKey, "api_key_file": "both"},
			{"api_url": testKey, "state_dir": t.TempDir(), "api_key": testKey},
			{"api_url": url, "state_dir": t.TempDir(), "api_key": []string{testKey}},
		} {
			encoded, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			_, err = other.Configure(t.Context(), sdk.ConfigureOptions{Backend: name, Fleet: fleet, Config: encoded})
			if config["api_url"] != testKey { // that one is shown as an address
				tell(nil, err)
			}
			if err == nil {
				got, err := other.Get(t.Context(), sdk.GetOptions{Target: target})
				tell(got, err)
			}
		}
	}
	if strings.Contains(said.String(), testKey) {
		at := strings.Index(said.String(), testKey)
		t.Errorf("the key was said: …%s…", said.String()[max(0, at-300):at+len(testKey)])
	}
	for _, r := range c.Requests() {
		header := r.Header.Clone()
		if r.Sandbox == "" {
			header.Del("X-Api-Key")
		}
		if text := fmt.Sprint(r.Path, r.Query, header, string(r.Body)); strings.Contains(text, testKey) {
			t.Errorf("the key was sent in %s %s", r.Method, r.Path)
		}
	}
	noKeyBelow(t, c.state)
}

func noKeyBelow(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if files++; bytes.Contains(content, []byte(testKey)) {
			t.Errorf("the key is in %s", name)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}

// The key comes from the setting, a file, a command or the environment.
func TestWhereTheKeyComesFrom(t *testing.T) {
	_, url := serve(t, e2btest.Options{})
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(testKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		config map[string]any
		env    string
		usable bool
	}{
		"setting":           {map[string]any{"api_key": testKey}, "e2b_other", true},
		"file":              {map[string]any{"api_key_file": file}, "e2b_other", true},
		"command":           {map[string]any{"api_key_command": []string{"cat", file}}, "e2b_other", true},
		"environment":       {map[string]any{}, testKey, true},
		"nowhere":           {map[string]any{}, "", false},
		"a wrong one":       {map[string]any{}, "e2b_other", false},
		"a missing file":    {map[string]any{"api_key_file": file + "x"}, testKey, false},
		"a failing command": {map[string]any{"api_key_command": []string{"false"}}, testKey, false},
		"two lines":         {map[string]any{}, testKey + "\nX-Other: 1", false},
	} {
		t.Run(name, func(t *testing.T) {
			row.config["state_dir"] = t.TempDir()
			encoded, err := json.Marshal(row.config)
			if err != nil {
				t.Fatal(err)
			}
			e := e2b.New(e2b.Options{Getenv: func(name string) string {
				return map[string]string{"E2B_API_KEY": row.env, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}[name]
			}})
			if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "b", Fleet: fleet, Config: encoded}); err != nil {
				t.Fatal(err)
			}
			probed, err := e.Probe(t.Context(), sdk.ProbeOptions{})
			if err != nil || probed.Usable != row.usable {
				t.Errorf("%+v, %v", probed, err)
			}
		})
	}
}

// The key is sent over TLS, or to this machine.
func TestTheKeyIsNotSentInTheClear(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://api.example": true, "http://127.0.0.1:3000": true, "http://localhost:3000": true, "http://[::1]:3000": true,
		"http://api.example": false, "http://10.0.0.1": false, "ftp://api.example": false, "api.example": false, "https://user:pass@api.example": false,
		"https://api.example?x=1": false, "https://": false,
	} {
		for _, setting := range []string{"api_url", "sandbox_url"} {
			config, err := json.Marshal(map[string]string{setting: address, "state_dir": t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			_, err = e2b.New(e2b.Options{Getenv: func(string) string { return "" }}).Configure(t.Context(), sdk.ConfigureOptions{Config: config})
			if (err == nil) != ok || (err != nil && !errors.Is(err, sdk.ErrInvalid)) {
				t.Errorf("%s = %s: %v", setting, address, err)
			}
		}
	}
	for domain, ok := range map[string]bool{"e2b.example": true, "localhost:3000": true, "e2b.example/x": false, "a b": false, "*.example": false, "x@y.example": false} {
		config, err := json.Marshal(map[string]string{"domain": domain, "state_dir": t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = e2b.New(e2b.Options{Getenv: func(string) string { return "" }}).Configure(t.Context(), sdk.ConfigureOptions{Config: config})
		if (err == nil) != ok {
			t.Errorf("domain %s: %v", domain, err)
		}
	}
}
