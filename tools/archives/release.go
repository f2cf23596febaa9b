// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"
)

// release is the part of .goreleaser.yml that says what is built and how it
// is packed. It is read from there so that it is said once.
type release struct {
	ProjectName string    `yaml:"project_name"`
	Builds      []build   `yaml:"builds"`
	Archives    []archive `yaml:"archives"`
	Checksum    struct {
		NameTemplate string      `yaml:"name_template"`
		ExtraFiles   []extraFile `yaml:"extra_files"`
	} `yaml:"checksum"`
	Release struct {
		ExtraFiles []extraFile `yaml:"extra_files"`
	} `yaml:"release"`
}

type build struct {
	ID      string   `yaml:"id"`
	Dir     string   `yaml:"dir"`
	Binary  string   `yaml:"binary"`
	Flags   []string `yaml:"flags"`
	Ldflags []string `yaml:"ldflags"`
	GOOS    []string `yaml:"goos"`
	GOARCH  []string `yaml:"goarch"`
	Ignore  []struct {
		GOOS   string `yaml:"goos"`
		GOARCH string `yaml:"goarch"`
	} `yaml:"ignore"`
}

type archive struct {
	ID              string   `yaml:"id"`
	IDs             []string `yaml:"ids"`
	Formats         []string `yaml:"formats"`
	FormatOverrides []struct {
		GOOS    string   `yaml:"goos"`
		Formats []string `yaml:"formats"`
	} `yaml:"format_overrides"`
	NameTemplate string `yaml:"name_template"`
	Files        []file `yaml:"files"`
}

// file is what an archive holds besides binaries.
type file struct {
	Src         string `yaml:"src"`
	StripParent bool   `yaml:"strip_parent"`
	Info        struct {
		Mode os.FileMode `yaml:"mode"`
	} `yaml:"info"`
}

// entries returns what a file's pattern matches below a directory.
func (f file) entries(root string) ([]entry, error) {
	paths, err := filepath.Glob(filepath.Join(root, f.Src))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("nothing matches %s", f.Src)
	}
	var found []entry
	for _, path := range paths {
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		if f.StripParent {
			name = filepath.Base(path)
		}
		found = append(found, entry{name: name, path: path, mode: cmp.Or(f.Info.Mode, 0o644)})
	}
	return found, nil
}

type extraFile struct {
	Glob         string `yaml:"glob"`
	NameTemplate string `yaml:"name_template"`
}

// platform is what a binary is built for.
type platform struct{ OS, Arch string }

// readRelease reads .goreleaser.yml.
func readRelease(root string) (release, error) {
	var r release
	data, err := os.ReadFile(filepath.Join(root, ".goreleaser.yml"))
	if err != nil {
		return r, err
	}
	err = yaml.Unmarshal(data, &r)
	return r, err
}

// platforms returns what a build is made for.
func (b build) platforms() []platform {
	var all []platform
	for _, goos := range b.GOOS {
		for _, goarch := range b.GOARCH {
			ignored := false
			for _, i := range b.Ignore {
				ignored = ignored || (i.GOOS == goos && i.GOARCH == goarch)
			}
			if !ignored {
				all = append(all, platform{goos, goarch})
			}
		}
	}
	return all
}

// build returns the build of an id.
func (r release) build(id string) (build, error) {
	i := slices.IndexFunc(r.Builds, func(b build) bool { return b.ID == id })
	if i < 0 {
		return build{}, fmt.Errorf("no build has the id %q", id)
	}
	return r.Builds[i], nil
}

// format returns how an archive is packed on one operating system.
func (a archive) format(goos string) string {
	for _, o := range a.FormatOverrides {
		if o.GOOS == goos {
			return o.Formats[0]
		}
	}
	return a.Formats[0]
}

// values are what the templates of the file may name.
type values struct {
	ProjectName, Version, Commit, Os, Arch string
	Env                                    map[string]string
}

// render fills a template in.
func render(text string, v values) (string, error) {
	t, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", fmt.Errorf("%q: %w", text, err)
	}
	var out strings.Builder
	if err := t.Execute(&out, v); err != nil {
		return "", fmt.Errorf("%q: %w", text, err)
	}
	return out.String(), nil
}
