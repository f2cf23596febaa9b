// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	fakeregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/registry"
)

const password = "canary-4711"

// shelf is a registry on loopback with one image, app:1.
type shelf struct {
	*httptest.Server
	ref    string
	digest string
	layer  string // digest
	asked  int
	// between sees each request first, and may answer it.
	between func(w http.ResponseWriter, r *http.Request) (answered bool)
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{}
	store := fakeregistry.New(fakeregistry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked++
		if s.between == nil || !s.between(w, r) {
			store.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s.ref = strings.TrimPrefix(s.URL, "http://") + "/app:1"
	layer := static.NewLayer(archive(t, &tar.Header{Name: "srv/content", Typeflag: tar.TypeReg, Mode: 0o644, Size: 70_000}), types.OCIUncompressedLayer)
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.layer = digest.String()
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{digest}},
			Config: v1.Config{Env: []string{"FROM=registry"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(s.ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithAuth(authn.Anonymous)); err != nil {
		t.Fatal(err)
	}
	whole, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.digest = whole.String()
	return s
}

func TestPull(t *testing.T) {
	s := newShelf(t)
	c := Cache{Dir: t.TempDir()}
	var said []string
	i, digest, err := c.Pull(t.Context(), s.ref, func(m string) { said = append(said, m) })
	if err != nil {
		t.Fatal(err)
	}
	i.Close()
	if digest != s.digest || len(i.Config.Env) != 1 || onDisk(i.Path) < 4096 || len(said) < 2 {
		t.Errorf("digest %s, want %s; %+v, said %q", digest, s.digest, i.Meta, said)
	}
	blobs := 0
	s.between = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, s.layer) {
			blobs++
		}
		return false
	}
	again, _, err := c.Pull(t.Context(), s.ref, nil)
	if err != nil || again.Key != i.Key || blobs > 0 {
		t.Fatalf("by tag again: %v, %d layers were pulled", err, blobs)
	}
	again.Close()
	s.asked = 0
	s.Close()
	pinned := strings.TrimSuffix(s.ref, ":1") + "@" + s.digest
	again, digest, err = c.Pull(t.Context(), pinned, nil)
	if err != nil || again.Key != i.Key || digest != s.digest || s.asked > 0 {
		t.Fatalf("by digest, without a network: %v, %s", err, digest)
	}
	again.Close()
	if _, _, err := c.Pull(t.Context(), s.ref, nil); !errors.Is(err, registry.ErrUnreachable) {
		t.Errorf("by tag, without a network: %v", err)
	}
	if _, _, err := c.Pull(t.Context(), "No/Such:ref:at all", nil); !errors.Is(err, registry.ErrReference) {
		t.Errorf("no reference: %v", err)
	}
}

func TestPullWithCredentials(t *testing.T) {
	s := newShelf(t)
	s.between = func(w http.ResponseWriter, r *http.Request) bool {
		if user, given, _ := r.BasicAuth(); user == "ada" && given == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="shelf"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	c := Cache{Dir: t.TempDir()}
	login := func(secret string) {
		host := strings.TrimPrefix(s.URL, "http://")
		config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("ada:"+secret)))
		if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, prepare := range []func(){func() {}, func() { login("wrong-" + password) }} {
		prepare()
		if _, _, err := c.Pull(t.Context(), s.ref, nil); !errors.Is(err, registry.ErrUnauthorized) || strings.Contains(err.Error(), password) {
			t.Errorf("without the right credentials: %v", err)
		}
	}
	login(password)
	i, _, err := c.Pull(t.Context(), s.ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	i.Close()
	// Nothing of the credentials is in what is kept.
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, _ := os.ReadFile(filepath.Join(c.Dir, entry.Name()))
		if bytes.Contains(data, []byte(password)) || bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString([]byte("ada:"+password)))) {
			t.Errorf("%s holds the password", entry.Name())
		}
	}
	// A blob that lies elsewhere is fetched there, without the credentials.
	elsewhere := map[string]string{}
	var content []byte
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere[r.URL.Path] = r.Header.Get("Authorization")
		_, _ = w.Write(content)
	}))
	t.Cleanup(other.Close)
	inner := s.between
	s.between = func(w http.ResponseWriter, r *http.Request) bool {
		if inner(w, r) {
			return true
		}
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, s.layer) {
			// Another name of the same machine is another host.
			http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+"/elsewhere", http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	content = archive(t, &tar.Header{Name: "srv/content", Typeflag: tar.TypeReg, Mode: 0o644, Size: 70_000})
	fresh := Cache{Dir: t.TempDir()}
	moved, _, err := fresh.Pull(t.Context(), s.ref, nil)
	if err != nil || moved.Key != i.Key {
		t.Fatalf("redirected: %v", err)
	}
	moved.Close()
	if auth, asked := elsewhere["/elsewhere"]; !asked || auth != "" {
		t.Errorf("elsewhere was asked: %v, with %q", asked, auth)
	}
	content[100] ^= 1
	if _, _, err := (Cache{Dir: t.TempDir()}).Pull(t.Context(), s.ref, nil); err == nil {
		t.Error("another content was taken from elsewhere")
	}
}

func TestARegistryThatLiesIsRefused(t *testing.T) {
	for what, answer := range map[string]func(s *shelf, w http.ResponseWriter, r *http.Request) bool{
		"a layer that is cut off": func(s *shelf, w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, s.layer) {
				return false
			}
			_, _ = w.Write(make([]byte, 4096))
			return true
		},
		"a layer without an end": func(s *shelf, w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, s.layer) {
				return false
			}
			for block := make([]byte, 1<<20); ; {
				if _, err := w.Write(block); err != nil {
					return true
				}
			}
		},
		"an enormous manifest": func(_ *shelf, w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			for block := bytes.Repeat([]byte(" "), 1<<20); ; {
				if _, err := w.Write(block); err != nil {
					return true
				}
			}
		},
		"another manifest": func(_ *shelf, w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			_, _ = io.WriteString(w, `{"schemaVersion":2,"layers":[]}`)
			return true
		},
		"a redirect without an end": func(_ *shelf, w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
			return true
		},
		"no such image": func(_ *shelf, w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			http.NotFound(w, r)
			return true
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newShelf(t)
			s.between = func(w http.ResponseWriter, r *http.Request) bool { return answer(s, w, r) }
			c := Cache{Dir: t.TempDir()}
			_, _, err := c.Pull(t.Context(), strings.TrimSuffix(s.ref, ":1")+"@"+s.digest, nil)
			if err == nil || len(err.Error()) > 2000 {
				t.Errorf("%v, want a refusal", err)
			}
			if left, _ := filepath.Glob(filepath.Join(c.Dir, "*e*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
