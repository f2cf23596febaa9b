// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const canary = "canary-of-a-secret-file"

// The token is in the headers that the control plane wants it in, and nowhere
// else: not in what is answered or refused, in a record, in a sandbox, in what
// is sent to the router, or in the arguments of a process. A sandbox's secret is
// in its file, and in no answer.
func TestTheTokenIsToldToNobody(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
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
	opts.Profile.Command = []string{"sh", "-c", "env; exec sleep 1000"}
	opts.Profile.Files = map[string]sdk.File{"/etc/conf": {Content: "x"}}
	opts.Secrets = map[string]sdk.Secret{"API": canary}
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
	if got := exec("cat", "/run/secrets/API"); got != canary {
		t.Errorf("the secret's file holds %q", got)
	}
	fmt.Fprintln(&said, exec("sh", "-c", "cat /proc/[0-9]*/cmdline /proc/self/environ 2>/dev/null; grep -rs . /etc/conf /tmp /home /var/log"))
	snapshot, err := c.Snapshot(t.Context(), sdk.SnapshotOptions{
		Target: target, SnapshotID: snapshotID(1), Kind: sdk.SnapshotFilesystem, ExpiresAt: c.clock.Now().Add(time.Hour), Identity: sdk.Identity{ID: snapshotID(1), Fleet: fleet},
	})
	tell(snapshot, err)
	if err != nil || !snapshot.Snapshot.ContainsSecrets {
		t.Errorf("a snapshot of a sandbox with secrets: %+v, %v", snapshot.Snapshot, err)
	}
	for _, call := range modaltest.Calls() {
		for _, lie := range []modaltest.Lie{modaltest.Echo, modaltest.NotFound} {
			c.Inject(modaltest.Fault{Call: call, Lie: lie})
			got, err := c.Get(t.Context(), sdk.GetOptions{Target: target})
			tell(got, err)
			list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
			tell(list, err)
			probed, err := c.Probe(t.Context(), sdk.ProbeOptions{})
			tell(probed, err)
			kept, err := c.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: snapshotID(1), Fleet: fleet})
			tell(kept, err)
			second, err := c.Create(t.Context(), c.creation(2))
			tell(second, err)
			gone, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: sdk.Target{ID: sandboxID(2), Fleet: fleet}})
			tell(gone, err)
			c.Heal()
		}
	}
	// A token that is refused is not shown either, and one that can't be used.
	for _, config := range []map[string]any{
		{"server_url": c.URL(), "token_id": testTokenID, "token_secret": testTokenSecret + "x"},
		{"server_url": "http://127.0.0.1:1", "token_id": testTokenID, "token_secret": testTokenSecret},
		{"server_url": c.URL(), "token_id": testTokenID},
		{"server_url": c.URL(), "token_id": []string{testTokenID}, "token_secret": map[string]string{testTokenSecret: ""}},
		{"server_url": c.URL(), "token_id": testTokenID, "token_secret": testTokenSecret + "\nX-Other: 1"},
	} {
		config["state_dir"], config["config_file"] = t.TempDir(), "/no/such/file"
		encoded, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		other := extension.New(extension.Options{Getenv: func(string) string { return "" }, Settle: time.Millisecond})
		_, err = other.Configure(t.Context(), sdk.ConfigureOptions{Backend: "other", Fleet: fleet, Config: encoded})
		tell(nil, err)
		if err == nil {
			got, err := other.Get(t.Context(), sdk.GetOptions{Target: target})
			tell(got, err)
			_ = other.Close()
		}
	}
	for what, secret := range map[string]string{"the token's secret": testTokenSecret, "the token's id": testTokenID, "a sandbox's secret": canary} {
		if at := strings.Index(said.String(), secret); at >= 0 {
			t.Errorf("%s was said: …%s…", what, said.String()[max(0, at-300):at+len(secret)])
		}
	}
	for _, r := range c.Requests() {
		headers := maps.Clone(r.Metadata)
		delete(headers, "x-modal-token-id")
		delete(headers, "x-modal-token-secret")
		if text := fmt.Sprint(headers, r.Message); strings.Contains(text, testTokenSecret) {
			t.Errorf("the token was sent in %s", r.Method)
		}
	}
	nothingBelow(t, c.state)
}

func nothingBelow(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if files++; bytes.Contains(content, []byte(testTokenSecret)) || bytes.Contains(content, []byte(canary)) {
			t.Errorf("a secret is in %s", name)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}

// The token comes from the settings, the environment or the profile file, as a
// pair: never half from one and half from another.
func TestWhereTheTokenComesFrom(t *testing.T) {
	server := serve(t, modaltest.Options{})
	file := filepath.Join(t.TempDir(), "modal.toml")
	content := fmt.Sprintf("[work]\ntoken_id = %q\ntoken_secret = %q\nactive = true\n[other]\ntoken_id = \"ak-other\"\ntoken_secret = \"as-other\"\n", testTokenID, testTokenSecret)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken.toml")
	if err := os.WriteFile(broken, []byte("token_secret = "+testTokenSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		config map[string]any
		env    map[string]string
		usable bool
	}{
		"settings":                 {map[string]any{"token_id": testTokenID, "token_secret": testTokenSecret}, map[string]string{"MODAL_TOKEN_ID": "ak-x", "MODAL_TOKEN_SECRET": "as-x"}, true},
		"environment":              {nil, map[string]string{"MODAL_TOKEN_ID": testTokenID, "MODAL_TOKEN_SECRET": testTokenSecret, "MODAL_CONFIG_PATH": file, "MODAL_PROFILE": "other"}, true},
		"file":                     {map[string]any{"config_file": file}, nil, true},
		"file by variable":         {nil, map[string]string{"MODAL_CONFIG_PATH": file}, true},
		"the other profile":        {map[string]any{"config_file": file, "profile": "other"}, nil, false},
		"a profile that is not":    {map[string]any{"config_file": file, "profile": "none"}, nil, false},
		"half a pair":              {nil, map[string]string{"MODAL_TOKEN_ID": testTokenID, "MODAL_CONFIG_PATH": file}, false},
		"nowhere":                  {nil, map[string]string{"MODAL_CONFIG_PATH": "/no/such/file"}, false},
		"a file that is no TOML":   {nil, map[string]string{"MODAL_CONFIG_PATH": broken}, false},
		"a wrong one":              {nil, map[string]string{"MODAL_TOKEN_ID": testTokenID, "MODAL_TOKEN_SECRET": "as-wrong"}, false},
		"with the end of a header": {nil, map[string]string{"MODAL_TOKEN_ID": testTokenID, "MODAL_TOKEN_SECRET": testTokenSecret + "\nX: y"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			// What the vendor's client would read by itself does not count.
			t.Setenv("MODAL_TOKEN_ID", testTokenID)
			t.Setenv("MODAL_TOKEN_SECRET", testTokenSecret)
			t.Setenv("MODAL_SERVER_URL", "http://127.0.0.1:1")
			config := map[string]any{"server_url": server.URL(), "state_dir": t.TempDir()}
			maps.Copy(config, row.config)
			encoded, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			e := extension.New(extension.Options{Getenv: func(name string) string { return row.env[name] }})
			defer e.Close()
			if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "b", Fleet: fleet, Config: encoded}); err != nil {
				t.Fatal(err)
			}
			probed, err := e.Probe(t.Context(), sdk.ProbeOptions{})
			if err != nil || probed.Usable != row.usable {
				t.Errorf("%+v, %v", probed, err)
			}
			if strings.Contains(probed.Reason, testTokenSecret) {
				t.Errorf("the reason tells the token: %s", probed.Reason)
			}
			if os.Getenv("MODAL_SERVER_URL") != "http://127.0.0.1:1" {
				t.Error("the environment was not put back")
			}
		})
	}
}

// The token is sent over TLS, or to this machine; what is no setting is refused
// at its path.
func TestSettings(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://api.example:443": true, "http://127.0.0.1:3000": true, "http://localhost:3000": true, "http://api.example": false, "http://10.0.0.1": false,
		"ftp://api.example": false, "api.example": false, "https://user:pass@api.example": false, "https://api.example/path": false, "https://api.example?x=1": false,
	} {
		refusedAt(t, map[string]any{"server_url": address}, "server_url", ok)
	}
	for _, row := range []struct {
		config map[string]any
		path   string
	}{
		{map[string]any{"tunnels": "udp"}, "tunnels"},
		{map[string]any{"snapshot_timeout": "55"}, "snapshot_timeout"},
		{map[string]any{"beyond_max": "yes"}, "beyond_max"},
		{map[string]any{"snapshot_timeout": "1500ms"}, "snapshot_timeout"},
		{map[string]any{"volumes": map[string]string{"data": "v"}}, "volumes"},
		{map[string]any{"volumes": map[string]string{"/data/../etc": "v"}}, "volumes"},
		{map[string]any{"volumes": []string{"v"}}, "volumes"},
		{map[string]any{"secrets": []string{"a", "b/c"}}, "secrets[1]"},
		{map[string]any{"token_secret": "as-x"}, "token_id"},
	} {
		refusedAt(t, row.config, row.path, false)
	}
}

func refusedAt(t *testing.T, config map[string]any, path string, ok bool) {
	t.Helper()
	config["state_dir"] = t.TempDir()
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = extension.New(extension.Options{Getenv: func(string) string { return "" }}).Configure(t.Context(), sdk.ConfigureOptions{Config: encoded})
	var said *sdk.Error
	if (err == nil) != ok || err != nil && (!errors.As(err, &said) || said.Path != path) {
		t.Errorf("%v: %v", config, err)
	}
}
