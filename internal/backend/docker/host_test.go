// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/pkg/authconfig"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// configured returns an extension with a configuration and an environment.
func configured(t *testing.T, config string, env map[string]string) *Extension {
	t.Helper()
	e := New(Options{Getenv: func(name string) string { return env[name] }})
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Fleet: "f", Config: []byte(config)}); err != nil {
		t.Fatal(err)
	}
	return e
}

// writeContext writes a Docker context into a home directory.
func writeContext(t *testing.T, home, name, host string) {
	t.Helper()
	sum := sha256.Sum256([]byte(name))
	dir := filepath.Join(home, ".docker", "contexts", "meta", hex.EncodeToString(sum[:]))
	write(t, filepath.Join(dir, "meta.json"), `{"Name":"`+name+`","Endpoints":{"docker":{"Host":"`+host+`","SkipTLSVerify":false}}}`)
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The engine is the one that Docker's own command line would use, unless the
// configuration says otherwise.
func TestHostOrder(t *testing.T) {
	home := t.TempDir()
	writeContext(t, home, "one", "tcp://one:2375")
	writeContext(t, home, "two", "ssh://ci@two")
	write(t, filepath.Join(home, ".docker", "config.json"), `{"currentContext":"one"}`)
	bare := t.TempDir()
	runtimeDir := t.TempDir()
	write(t, filepath.Join(runtimeDir, "podman", "podman.sock"), "")
	for _, c := range []struct {
		name, config string
		env          map[string]string
		want         string
	}{
		{"host", `{"host":"tcp://h:1"}`, map[string]string{"HOME": home, "DOCKER_HOST": "tcp://env:1"}, "tcp://h:1"},
		{"context", `{"context":"two"}`, map[string]string{"HOME": home, "DOCKER_HOST": "tcp://env:1"}, "ssh://ci@two"},
		{"DOCKER_HOST", `{}`, map[string]string{"HOME": home, "DOCKER_HOST": "tcp://env:1"}, "tcp://env:1"},
		{"DOCKER_CONTEXT", `{}`, map[string]string{"HOME": home, "DOCKER_CONTEXT": "two"}, "ssh://ci@two"},
		{"the context in use", `{}`, map[string]string{"HOME": home}, "tcp://one:2375"},
		{"DOCKER_CONFIG", `{}`, map[string]string{"HOME": bare, "DOCKER_CONFIG": filepath.Join(home, ".docker")}, "tcp://one:2375"},
	} {
		h, err := configured(t, c.config, c.env).resolveHost()
		if err != nil || h.String() != c.want {
			t.Errorf("%s: %v, %v; want %s", c.name, h.url, err, c.want)
		}
	}
	h, err := configured(t, `{}`, map[string]string{"HOME": bare, "XDG_RUNTIME_DIR": runtimeDir}).resolveHost()
	if err != nil || (h.url.Path != "/var/run/docker.sock" && h.url.Path != filepath.Join(runtimeDir, "podman", "podman.sock")) {
		t.Errorf("a user's own socket: %v, %v", h.url, err)
	}
}

func TestHostRefused(t *testing.T) {
	home := t.TempDir()
	for _, c := range []struct{ config, path string }{
		{`{"host":"http://x"}`, "host"},
		{`{"host":"unix://"}`, "host"},
		{`{"host":"ssh://user:password@x"}`, "host"},
		{`{"host":"tcp://x:1","context":"y"}`, "context"},
		{`{"reaper":"none"}`, "reaper"},
		{`{"reaper_socket":"docker.sock"}`, "reaper_socket"},
		{`{"host":1}`, "host"},
		{`{"hosts":"x"}`, "hosts"},
	} {
		_, err := New(Options{}).Configure(t.Context(), sdk.ConfigureOptions{Config: []byte(c.config)})
		var said *sdk.Error
		if !errors.As(err, &said) || said.Path != c.path || strings.Contains(err.Error(), "user:password") {
			t.Errorf("%s: %v", c.config, err)
		}
	}
	if _, err := configured(t, `{"context":"nowhere"}`, map[string]string{"HOME": home}).resolveHost(); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a context that is not there: %v", err)
	}
}

// Certificates are used with tcp:// only, and a broken file is named.
func TestHostCertificates(t *testing.T) {
	dir := t.TempDir()
	e := configured(t, `{"host":"tcp://x:2376","cert_path":"`+filepath.ToSlash(dir)+`"}`, nil)
	_, err := e.connect()
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("without a certificate: %v", err)
	}
	write(t, filepath.Join(dir, "ca.pem"), "not a certificate")
	if _, err := e.connect(); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("with a broken one: %v", err)
	}
}

// The credentials are those of the registry that the reference names, from
// Docker's configuration or a helper; no error shows them.
func TestRegistryCredentials(t *testing.T) {
	home, bin := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	helper := "#!/bin/sh\nread server\ncase $server in helped.example) echo '{\"Username\":\"u\",\"Secret\":\"helper-canary\"}';; *) echo 'credentials not found in native keychain'; exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte(helper), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home, ".docker", "config.json"), `{"auths":{"plain.example:5000":{"auth":"dTpwbGFpbi1jYW5hcnk="},"https://index.docker.io/v1/":{"auth":"dTpodWItY2FuYXJ5"},"broken.example":{"auth":"***broken-canary***"}},
		"credHelpers":{"helped.example":"test","empty.example":"test","hostile.example":"../../bin/sh"}}`)
	e := configured(t, `{}`, map[string]string{"HOME": home})
	for image, want := range map[string]string{
		"plain.example:5000/a/b:1": "plain-canary", "busybox": "hub-canary", "docker.io/library/busybox:1": "hub-canary",
		"helped.example/x@sha256:" + strings.Repeat("a", 64): "helper-canary", "empty.example/x": "", "other.example/x": "",
	} {
		auth, err := e.registryAuth(t.Context(), image)
		if err != nil || decoded(auth) != want {
			t.Errorf("%s: password %q, %v; want %q", image, decoded(auth), err, want)
		}
	}
	for _, image := range []string{"broken.example/x", "hostile.example/x", "UPPER/case:???"} {
		auth, err := e.registryAuth(t.Context(), image)
		if err == nil || auth != "" || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %q, %v", image, auth, err)
		}
	}
}

func decoded(auth string) string {
	if auth == "" {
		return ""
	}
	config, err := authconfig.Decode(auth)
	if err != nil {
		return err.Error()
	}
	return config.Password
}

// Documents of any length come back, or are not kept.
func TestDocumentInLabel(t *testing.T) {
	for _, size := range []int{0, 10, longDocument, 20 * longDocument} {
		p := sdk.Profile{Name: "p", Files: map[string]sdk.File{"/f": {Content: strings.Repeat("a line of text\n", size/15)}}}
		text := encodeDocument(p)
		got, err := decodeDocument(text)
		if err != nil || encode(got) != encode(p) || len(text) > mostDocument {
			t.Errorf("%d bytes: %d in the label, %v", size, len(text), err)
		}
	}
	for _, hostile := range []string{"{", packedPrefix + "x", packedPrefix} {
		if _, err := decodeDocument(hostile); err == nil {
			t.Errorf("%q is read", hostile)
		}
	}
}
