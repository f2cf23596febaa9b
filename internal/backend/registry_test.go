// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin"
)

func TestABackendIsConfiguredAndWorks(t *testing.T) {
	r := registry(t, func(_ *Options, c *Config) { c.JSON = []byte(`{"region":"eu"}`) })
	if names := r.Names(); len(names) != 1 || names[0] != "b" || r.Default() != "b" {
		t.Errorf("names %v, default %q", names, r.Default())
	}
	ext, err := r.Open(t.Context(), "") // the default
	if err != nil {
		t.Fatal(err)
	}
	details, err := probe(t.Context(), ext)
	if err != nil {
		t.Fatal(err)
	}
	if details["config.region"] != "eu" || details["config.backend"] != "b" || details["config.fleet"] != "fleet" || details["stdin"] != "empty" {
		t.Errorf("%v", details)
	}
	expires := time.Now().Add(time.Hour)
	if _, err := ext.Create(t.Context(), sdk.CreateOptions{ID: "sbx-1", Identity: sdk.Identity{ID: "sbx-1", Fleet: "fleet"}, ExpiresAt: expires}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	result, err := ext.(sdk.Execer).Exec(t.Context(), sdk.ExecOptions{Command: []string{"cat"}, Stdin: strings.NewReader("hello"), Stdout: &out})
	if err != nil || result.ExitCode != 0 || out.String() != "hello" {
		t.Errorf("%q %+v %v", out.String(), result, err)
	}
	list, err := ext.List(t.Context(), sdk.ListOptions{Fleet: "fleet"})
	if err != nil || len(list.Sandboxes) != 1 || !list.Sandboxes[0].Lease.ExpiresAt.Equal(expires) {
		t.Errorf("%+v %v", list, err)
	}
	again := open(t, r)
	if again != ext {
		t.Error("a second Open gave another extension")
	}
}

func TestConstructionTouchesNothing(t *testing.T) {
	t.Setenv(dirVariable, "relative") // would be an error of the first search
	r := New(Options{Backends: map[string]Config{"b": {Extension: "Not A Name", Path: "nowhere", JSON: []byte("{")}}})
	if len(r.Names()) != 1 || len(r.open) != 0 || r.Close() != nil {
		t.Error("something was done")
	}
}

func TestConcurrentOpensShareOneProcess(t *testing.T) {
	r := registry(t, nil)
	var wg sync.WaitGroup
	opened := make([]sdk.Extension, 16)
	for i := range opened {
		wg.Go(func() {
			ext, err := r.Open(t.Context(), "b")
			if err != nil {
				t.Error(err)
			}
			opened[i] = ext
		})
	}
	wg.Wait()
	for _, ext := range opened {
		if ext != opened[0] {
			t.Fatal("there are two extensions")
		}
	}
}

func TestAWaiterGivesUpAloneAndTheStartGoesOn(t *testing.T) {
	r := registry(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Open(ctx, "b"); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	open(t, r)
}

func TestUnknownAndImpossibleNamesAreInvalid(t *testing.T) {
	r := registry(t, nil)
	_, err := r.Open(t.Context(), "nope")
	isA(t, err, sdk.ErrInvalid, "nope", "(configured: b)")
	for _, name := range []string{"", "../x", "a/b", "A", "-x", "x.y", strings.Repeat("x", 64)} {
		_, err := r.Describe(t.Context(), name)
		isA(t, err, sdk.ErrInvalid)
	}
}

func TestARefusedConfigurationIsTheExtensionsError(t *testing.T) {
	r := registry(t, func(_ *Options, c *Config) { c.JSON = []byte(`{"fail":"region"}`) })
	_, err := r.Open(t.Context(), "b")
	isA(t, err, sdk.ErrInvalid, "region")
	var known *sdk.Error
	if !errors.As(err, &known) || known.Path != "region" {
		t.Errorf("%#v", err)
	}
}

func TestExtensionsInProcessComeFirst(t *testing.T) {
	made := 0
	builtin := &inProcess{}
	opts := Options{
		Backends: map[string]Config{"x": {Extension: "fake"}},
		Builtins: map[string]func() sdk.Extension{"fake": func() sdk.Extension { made++; return builtin }},
	}
	r := New(opts)
	for range 2 {
		ext, err := r.Open(t.Context(), "x")
		if err != nil || ext != sdk.Extension(builtin) {
			t.Fatal(ext, err)
		}
	}
	if _, err := r.Describe(t.Context(), "fake"); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil || made != 1 || !builtin.closed {
		t.Errorf("made %d, closed %v, %v", made, builtin.closed, err)
	}
	if _, err := r.Open(t.Context(), "x"); err == nil {
		t.Error("a closed registry opens backends")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// inProcess is an extension in process of which only the frame is used.
type inProcess struct {
	sdk.Extension
	closed bool
}

func (*inProcess) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	return sdk.DescribeResult{Name: "fake"}, nil
}

func (*inProcess) Configure(context.Context, sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	return sdk.ConfigureResult{}, nil
}

func (e *inProcess) Close() error { e.closed = true; return nil }

func TestDescribeEndsWhatItStarted(t *testing.T) {
	r := registry(t, nil)
	result, err := r.Describe(t.Context(), "fake")
	if err != nil || result.Version != "1.2.3" || len(r.open) != 0 {
		t.Errorf("%+v %v", result, err)
	}
	open(t, r)
	if result, err := r.Describe(t.Context(), "fake"); err != nil || result.Name != "fake" {
		t.Errorf("%+v %v", result, err)
	}
}

func TestOnlyTheAllowedEnvironmentArrives(t *testing.T) {
	t.Setenv("CANARY_API_KEY", "canary")
	t.Setenv("SANDBOXER_STATE_DIR", "/state")
	t.Setenv("LC_ALL", "C")
	t.Setenv("XDG_RUNTIME_DIR", "/run/me")
	t.Setenv("ACME_TOKEN", "tweet-tweet")
	r := registry(t, func(_ *Options, c *Config) { c.Env = []string{"ACME_TOKEN", "NOT_SET"} })
	details, err := probe(t.Context(), open(t, r))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"SANDBOXER_STATE_DIR": "/state", "LC_ALL": "C", "XDG_RUNTIME_DIR": "/run/me", "ACME_TOKEN": "tweet-tweet", "PATH": os.Getenv("PATH"),
	} {
		if details["env."+name] != want {
			t.Errorf("%s is %q, not %q", name, details["env."+name], want)
		}
	}
	for name, value := range details {
		variable, ok := strings.CutPrefix(name, "env.")
		allowed := variable == "ACME_TOKEN" || strings.HasPrefix(variable, "LC_") || strings.HasPrefix(variable, "XDG_")
		for _, passed := range passedNames {
			allowed = allowed || variable == passed
		}
		if ok && !allowed {
			t.Errorf("%s=%q arrived", variable, value)
		}
		if value == "canary" {
			t.Errorf("the canary arrived as %s", name)
		}
	}
	_, _, err = environment(nil, []string{"A=B"})
	isA(t, err, sdk.ErrInvalid, "names are listed here")
}

func TestLogLinesReachTheHostWithoutSecrets(t *testing.T) {
	record := &recorder{}
	t.Setenv("ACME_TOKEN", "tweet-tweet")
	t.Setenv("FAKE_MODE", "badlog")
	r := registry(t, func(o *Options, c *Config) {
		o.Logger = record.logger()
		c.Env = []string{"ACME_TOKEN", "FAKE_MODE"}
		c.JSON = []byte(`{"region":"top-secret-region"}`) // sensitive by its schema
	})
	open(t, r)
	eventually(t, "a structured line", func() bool {
		return strings.Contains(record.text(), "[WARN]  extension: fake extension starts") && strings.Contains(record.text(), "extension=fake")
	})
	eventually(t, "a plain line", func() bool { return strings.Contains(record.text(), "[DEBUG] extension: a plain line") })
	eventually(t, "a line that lies about its types", func() bool { return strings.Contains(record.text(), `{"@message":1`) })

	l := newLog(record.logger())
	for _, secret := range []string{"tweet", "tweet-tweet", "abc", ""} {
		l.mask(secret)
	}
	l.line("", "the token is tweet-tweet, abc")
	l.line("", `{"@message":"tweet-tweet","@level":"error","key":"tweet"}`)
	if text := record.text(); strings.Contains(text, "tweet") || !strings.Contains(text, "the token is [masked], abc") {
		t.Error(text)
	}
	if words := l.lastWords(); strings.Contains(words, "tweet") {
		t.Error(words)
	}
}

func TestThePinDecidesWhatIsExecuted(t *testing.T) {
	digest := fileDigest(t, binary)
	for _, pin := range []string{digest, "sha256:" + strings.ToUpper(digest)} {
		t.Run("matches "+pin[:8], func(t *testing.T) {
			open(t, registry(t, func(_ *Options, c *Config) { c.SHA256 = pin }))
		})
	}
	for pin, words := range map[string][]string{strings.Repeat("0", 64): {digest, binary}, "abc": {"is no digest"}} {
		r := registry(t, func(_ *Options, c *Config) { c.SHA256 = pin })
		_, err := r.Open(t.Context(), "b")
		isA(t, err, sdk.ErrInvalid, append(words, "sha256")...)
	}
}

func TestWhatWasPinnedIsWhatRuns(t *testing.T) {
	digest := fileDigest(t, binary)
	copied := filepath.Join(t.TempDir(), "x")
	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Dir(copied), "x", string(content), 0o755)
	p, err := openProgram(copied, digest)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := os.Remove(copied); err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Dir(copied), "x", "#!/bin/sh\nexit 1\n", 0o755)
	if executed := fileDigest(t, p.exec); executed != digest {
		t.Errorf("%s would be executed, with the digest %s", p.exec, executed)
	}
}

func TestTheHostsCertificateIsNoSecret(t *testing.T) {
	_, variable, err := plugin.HostTLS()
	if err != nil || !strings.HasPrefix(variable, "PLUGIN_CLIENT_CERT=-----BEGIN CERTIFICATE-----") || strings.Contains(variable, "PRIVATE") {
		t.Errorf("%q %v", variable, err)
	}
}
