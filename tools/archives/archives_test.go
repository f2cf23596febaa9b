// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// A build from a checkout and a release are linked in the same way.
func TestLdflagsAreThoseOfTheBuild(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	r, err := readRelease(root)
	if err != nil {
		t.Fatal(err)
	}
	gvisor, err := repo.GVisorVersion(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	v := values{ProjectName: r.ProjectName, Version: "1.2.3", Commit: "abc", Env: map[string]string{"GVISOR_VERSION": gvisor}}
	for id, binary := range map[string]repo.Binary{"provider": repo.Provider, "cli": repo.CLI, "extension-local": repo.ExtensionLocal, "extension-modal": repo.ExtensionModal} {
		b, err := r.build(id)
		if err != nil {
			t.Fatal(err)
		}
		got, err := render(strings.Join(b.Ldflags, " "), v)
		if err != nil {
			t.Fatal(err)
		}
		want, err := repo.Ldflags(t.Context(), root, binary, repo.Target{Version: "1.2.3", Commit: "abc"})
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s is linked with %q in a release and %q in a build", id, got, want)
		}
	}
}

// The matrix is what the registries and the extension ask for.
func TestPlatforms(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	r, err := readRelease(root)
	if err != nil {
		t.Fatal(err)
	}
	provider, err := r.build("provider")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"freebsd", "amd64"}} {
		if !slices.Contains(provider.platforms(), want) {
			t.Errorf("the provider is not built for %v", want)
		}
	}
	if slices.Contains(provider.platforms(), platform{"darwin", "386"}) {
		t.Error("an ignored platform is built")
	}
	extension, err := r.build("extension-local")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, pl := range extension.platforms() {
		got = append(got, pl.OS+"/"+pl.Arch)
	}
	if !slices.Equal(got, repo.ExtensionPlatforms) {
		t.Errorf("the embedded backend is built for %v, want %v", got, repo.ExtensionPlatforms)
	}
}

// The same files give the same bytes.
func TestPackIsReproducible(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"zip", "tar.gz"} {
		var sums []string
		for _, name := range []string{"one", "two"} {
			path := filepath.Join(dir, name+"."+format)
			if err := pack(format, path, []entry{{name: "file", path: file, mode: 0o755}}); err != nil {
				t.Fatal(err)
			}
			sum, err := digest(path)
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, sum)
		}
		if sums[0] != sums[1] {
			t.Errorf("%s: two archives of the same file differ", format)
		}
	}
}

// A sample that names a platform which a release does not have would build
// less than it says.
func TestSampleIsPartOfTheRelease(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	r, err := readRelease(root)
	if err != nil {
		t.Fatal(err)
	}
	p := &packer{release: r, only: sampled}
	provider, err := p.build("provider")
	if err != nil {
		t.Fatal(err)
	}
	if got := p.platforms(provider); len(got) != len(sampled) {
		t.Errorf("of the sample %v the release has %v", sampled, got)
	}
}

// A platform that a release does not have is refused, not built as nothing.
func TestOnePlatform(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	r, err := readRelease(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.only("linux/arm64", false)
	if err != nil || !slices.Equal(got, []platform{{"linux", "arm64"}}) {
		t.Errorf("linux/arm64: %v, %v", got, err)
	}
	for _, one := range []string{"darwin/386", "linux", "plan9/amd64", "linux/amd64/v1"} {
		if got, err := r.only(one, false); err == nil {
			t.Errorf("%s: no error, and %v", one, got)
		}
	}
	if _, err := r.only("linux/amd64", true); err == nil {
		t.Error("a platform and a sample at once are accepted")
	}
}
