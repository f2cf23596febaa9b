// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command archives builds what a release is made of, without goreleaser and
// without signing: the archives of every platform, the manifest and the
// checksums, under the names that .goreleaser.yml gives.
//
//	go run ./tools/archives          # into dist/
//	go run ./tools/archives -check   # into a temporary directory, looked into and removed
//	go run ./tools/archives -check -sample   # likewise, of each operating system and word size one platform
//	go run ./tools/archives -out DIR -platform linux/amd64   # into a directory, of one platform
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	version := flag.String("version", repo.DevVersion, "version of the release")
	check := flag.Bool("check", false, "build into a temporary directory, look into the archives, remove them")
	sample := flag.Bool("sample", false, "of each operating system and word size one platform, not all")
	one := flag.String("platform", "", "of this platform only, as os/arch")
	out := flag.String("out", "", "directory to build into (default: dist in the root)")
	flag.Parse()
	if err := run(ctx, *version, *out, *one, *check, *sample); err != nil {
		fmt.Fprintln(os.Stderr, "archives:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version, dist, one string, check, sample bool) (err error) {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	r, err := readRelease(root)
	if err != nil {
		return err
	}
	only, err := r.only(one, sample)
	if err != nil {
		return err
	}
	switch {
	case check && dist != "":
		return errors.New("-check builds into a temporary directory: leave -out away")
	case dist == "":
		dist = filepath.Join(root, "dist")
	}
	if check {
		if dist, err = os.MkdirTemp("", "sandboxer-archives-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dist)) }()
	}
	gvisor, err := repo.GVisorVersion(ctx, root)
	if err != nil {
		return err
	}
	p := &packer{
		release: r, root: root, dist: dist, only: only, built: map[string]string{},
		values: values{
			ProjectName: r.ProjectName, Version: version, Commit: repo.Commit(ctx, root),
			Env: map[string]string{"GVISOR_VERSION": gvisor},
		},
	}
	names, err := p.all(ctx)
	if err != nil {
		return err
	}
	if check {
		return checkRelease(ctx, p, names)
	}
	return nil
}

// packer builds and packs one release.
type packer struct {
	release
	values values
	root   string
	dist   string
	only   []platform        // all, when empty
	built  map[string]string // binaries by what they are built from: the provider and the CLI are one
}

// all makes everything and returns the names in dist.
func (p *packer) all(ctx context.Context) ([]string, error) {
	if err := os.MkdirAll(filepath.Join(p.dist, "bin"), 0o755); err != nil {
		return nil, err
	}
	// What the hook in .goreleaser.yml does before a release.
	target := repo.Target{Version: p.values.Version, Commit: p.values.Commit}
	if _, err := repo.BuildDockerPrograms(ctx, p.root, target, repo.EngineArchs, filepath.Join(p.root, "bin", "containers")); err != nil {
		return nil, err
	}
	var names []string
	for _, a := range p.Archives {
		made, err := p.archive(ctx, a)
		if err != nil {
			return nil, fmt.Errorf("archive %s: %w", a.ID, err)
		}
		names = append(names, made...)
	}
	for _, extra := range p.Release.ExtraFiles {
		name, err := render(extra.NameTemplate, p.values)
		if err != nil {
			return nil, err
		}
		data, err := os.ReadFile(filepath.Join(p.root, extra.Glob))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(p.dist, name), data, 0o644); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	sums, err := render(p.Checksum.NameTemplate, p.values)
	if err != nil {
		return nil, err
	}
	if err := p.checksums(sums, names); err != nil {
		return nil, err
	}
	return append(names, sums), nil
}

// archive makes one archive for each platform that one of its builds has.
func (p *packer) archive(ctx context.Context, a archive) ([]string, error) {
	var platforms []platform
	for _, id := range a.IDs {
		b, err := p.build(id)
		if err != nil {
			return nil, err
		}
		for _, pl := range p.platforms(b) {
			if !slices.Contains(platforms, pl) {
				platforms = append(platforms, pl)
			}
		}
	}
	var names []string
	for _, pl := range platforms {
		v := p.values
		v.Os, v.Arch = pl.OS, pl.Arch
		name, err := render(a.NameTemplate, v)
		if err != nil {
			return nil, err
		}
		format := a.format(pl.OS)
		name += "." + format
		begin := time.Now()
		var entries []entry
		for _, id := range a.IDs {
			b, err := p.build(id)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(b.platforms(), pl) {
				continue
			}
			e, err := p.binary(ctx, b, pl, v)
			if err != nil {
				return nil, err
			}
			entries = append(entries, e)
		}
		for _, file := range a.Files {
			found, err := file.entries(p.root)
			if err != nil {
				return nil, err
			}
			entries = append(entries, found...)
		}
		if err := pack(format, filepath.Join(p.dist, name), entries); err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%-60s %6.1f s\n", name, time.Since(begin).Seconds())
		names = append(names, name)
	}
	return names, nil
}

// sampled are the platforms of a sample: every operating system, both word
// sizes, both platforms of the embedded backend.
var sampled = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"freebsd", "386"}}

// only returns the platforms that a run is limited to, none for all.
func (r release) only(one string, sample bool) ([]platform, error) {
	if one == "" {
		if sample {
			return sampled, nil
		}
		return nil, nil
	}
	if sample {
		return nil, errors.New("-platform and -sample exclude each other")
	}
	goos, goarch, _ := strings.Cut(one, "/")
	provider, err := r.build("provider")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(provider.platforms(), platform{goos, goarch}) {
		return nil, fmt.Errorf("-platform %q: a release has no such platform; it is written as os/arch, for example linux/amd64", one)
	}
	return []platform{{goos, goarch}}, nil
}

// platforms are those of a build that this run makes.
func (p *packer) platforms(b build) []platform {
	all := b.platforms()
	if len(p.only) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(pl platform) bool { return !slices.Contains(p.only, pl) })
}

// binary builds one binary, unless the same was built for another archive.
func (p *packer) binary(ctx context.Context, b build, pl platform, v values) (entry, error) {
	name, err := render(b.Binary, v)
	if err != nil {
		return entry{}, err
	}
	if pl.OS == "windows" {
		name += ".exe"
	}
	ldflags, err := render(strings.Join(b.Ldflags, " "), v)
	if err != nil {
		return entry{}, err
	}
	key := strings.Join([]string{b.Dir, ldflags, pl.OS, pl.Arch}, "|")
	path, known := p.built[key]
	if !known {
		path = filepath.Join(p.dist, "bin", b.ID+"_"+pl.OS+"_"+pl.Arch)
		args := append([]string{"build"}, b.Flags...)
		cmd := repo.Command(ctx, filepath.Join(p.root, b.Dir), "go", append(args, "-ldflags", ldflags, "-o", path, ".")...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+pl.OS, "GOARCH="+pl.Arch)
		if output, err := cmd.CombinedOutput(); err != nil {
			return entry{}, fmt.Errorf("build %s for %s/%s: %w\n%s", b.ID, pl.OS, pl.Arch, err, output)
		}
		p.built[key] = path
	}
	return entry{name: name, path: path, mode: 0o755}, nil
}

// checksums writes the file that gets signed. It lists the manifest too: the
// registry verifies that as well.
func (p *packer) checksums(name string, files []string) error {
	var lines strings.Builder
	for _, file := range files {
		sum, err := digest(filepath.Join(p.dist, file))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, file)
	}
	return os.WriteFile(filepath.Join(p.dist, name), []byte(lines.String()), 0o644)
}

func digest(path string) (string, error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// here is the platform of this machine.
func here() platform { return platform{runtime.GOOS, runtime.GOARCH} }
