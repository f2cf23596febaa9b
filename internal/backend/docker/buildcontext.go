// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// The context of a build, as the engine gets it.

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The bounds of a context.
const (
	maxContextFiles = 500_000
	maxContextBytes = 8 << 30
	maxDockerfile   = 1 << 20
)

const ignoreName = ".dockerignore"

// buildContext is a build context in one file that has no name any more.
type buildContext struct {
	spool      *os.File
	dockerfile string // its name in the context
	key        string // of all that the image is built from; times of files are no part of it
	bases      []string
}

// Close gives up the file.
func (c *buildContext) Close() error { return c.spool.Close() }

// packContext reads a build context. What is wrong with it is the profile's
// fault.
func packContext(ctx context.Context, b sdk.BuildSource) (c *buildContext, err error) {
	c = &buildContext{dockerfile: path.Clean(filepath.ToSlash(b.Dockerfile))}
	if b.Dockerfile == "" {
		c.dockerfile = "Dockerfile"
	}
	if !filepath.IsLocal(c.dockerfile) {
		return nil, sdk.Invalid("build.dockerfile", "%q does not lie in the context", clip(b.Dockerfile))
	}
	root, err := os.OpenRoot(b.Context)
	if err != nil {
		return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "build.context", Message: clip(b.Context) + " is no directory that can be read", Err: err}
	}
	defer root.Close()
	text, err := readWithin(root, c.dockerfile)
	if err != nil {
		return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "build.dockerfile", Message: "the Dockerfile can't be read", Err: err}
	}
	c.bases = basesOf(string(text))
	ignored, err := ignoredIn(root)
	if err != nil {
		return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "build.context", Message: ignoreName + " can't be used", Err: err}
	}
	spool, err := os.CreateTemp("", "sandboxer-build-")
	if err != nil {
		return nil, fmt.Errorf("make a file for the build context: %w", err)
	}
	c.spool = spool
	defer func() {
		if err != nil {
			err = errors.Join(err, spool.Close())
		}
	}()
	if err := os.Remove(spool.Name()); err != nil {
		return nil, err
	}
	p := packer{ctx: ctx, root: root, dockerfile: c.dockerfile, ignored: ignored, sum: sha256.New()}
	p.note(c.dockerfile, b.Target)
	for _, name := range slices.Sorted(maps.Keys(b.Args)) {
		p.note(name, b.Args[name])
	}
	buffered := bufio.NewWriterSize(c.spool, 1<<20)
	p.out = tar.NewWriter(buffered)
	err = fs.WalkDir(root.FS(), ".", p.entry)
	if err == nil {
		err = errors.Join(p.out.Close(), buffered.Flush())
	}
	if err != nil {
		var said *sdk.Error
		if errors.As(err, &said) || ctx.Err() != nil {
			return nil, err
		}
		return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "build.context", Message: clip(b.Context) + " can't be read", Err: err}
	}
	c.key = hex.EncodeToString(p.sum.Sum(nil)[:16])
	_, err = c.spool.Seek(0, io.SeekStart)
	return c, err
}

func readWithin(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxDockerfile+1))
	if err == nil && len(text) > maxDockerfile {
		err = fmt.Errorf("%s is larger than %d MiB", name, maxDockerfile>>20)
	}
	return text, err
}

// ignoredIn returns what the context's .dockerignore leaves out.
func ignoredIn(root *os.Root) (*patternmatcher.PatternMatcher, error) {
	text, err := readWithin(root, ignoreName)
	if errors.Is(err, fs.ErrNotExist) {
		return patternmatcher.New(nil)
	}
	if err != nil {
		return nil, err
	}
	patterns, err := ignorefile.ReadAll(strings.NewReader(string(text)))
	if err != nil {
		return nil, err
	}
	return patternmatcher.New(patterns)
}

// packer writes the entries of a context.
type packer struct {
	ctx        context.Context
	root       *os.Root
	dockerfile string
	ignored    *patternmatcher.PatternMatcher
	out        *tar.Writer
	sum        hash.Hash
	files      int
	bytes      int64
}

// note takes texts into the key, each with its length before it.
func (p *packer) note(texts ...string) {
	for _, text := range texts {
		fmt.Fprintf(p.sum, "%d:%s", len(text), text)
	}
}

func (p *packer) entry(name string, entry fs.DirEntry, err error) error {
	if err == nil {
		err = p.ctx.Err()
	}
	if err != nil || name == "." {
		return err
	}
	// The engine wants these two whatever is left out.
	if name != p.dockerfile && name != ignoreName {
		left, err := p.ignored.MatchesOrParentMatches(filepath.FromSlash(name))
		switch {
		case err != nil:
			return err
		case left && entry.IsDir() && !p.ignored.Exclusions() && !strings.HasPrefix(p.dockerfile, name+"/"):
			return fs.SkipDir
		case left:
			return nil
		}
	}
	info, err := entry.Info()
	if err != nil {
		return err
	}
	if p.files++; p.files > maxContextFiles {
		return sdk.Invalid("build.context", "it has more than %d files: name what is not needed in %s", maxContextFiles, ignoreName)
	}
	return p.write(name, info)
}

// write adds one entry. What is no file, directory or link is left out, as
// Docker's command line does. Owners are the engine's to choose: root.
func (p *packer) write(name string, info fs.FileInfo) error {
	header := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case fs.ModeDir:
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	case fs.ModeSymlink:
		target, err := p.root.Readlink(name)
		if err != nil {
			return err
		}
		header.Typeflag, header.Linkname = tar.TypeSymlink, filepath.ToSlash(target)
	case 0:
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
	default:
		return nil
	}
	if p.bytes += header.Size; p.bytes > maxContextBytes {
		return sdk.Invalid("build.context", "it is larger than %d GiB: name what is not needed in %s", maxContextBytes>>30, ignoreName)
	}
	p.note(header.Name, string(header.Typeflag), header.Linkname, fmt.Sprint(header.Mode), fmt.Sprint(header.Size))
	if err := p.out.WriteHeader(header); err != nil || header.Typeflag != tar.TypeReg {
		return err
	}
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	// One that changes its size meanwhile is an error: the header is written.
	n, err := io.Copy(io.MultiWriter(p.out, p.sum), io.LimitReader(f, header.Size))
	if err == nil && n != header.Size {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	return err
}

// basesOf returns the images that the stages of a Dockerfile begin with, as
// far as their names stand there.
func basesOf(dockerfile string) (bases []string) {
	stages := map[string]bool{"scratch": true}
	for line := range strings.Lines(dockerfile) {
		words := strings.Fields(line)
		if len(words) < 2 || !strings.EqualFold(words[0], "from") {
			continue
		}
		words = slices.DeleteFunc(words[1:], func(word string) bool { return strings.HasPrefix(word, "--") })
		if len(words) == 0 {
			continue
		}
		if base := words[0]; !stages[strings.ToLower(base)] && !strings.Contains(base, "$") && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
		if len(words) == 3 && strings.EqualFold(words[1], "as") {
			stages[strings.ToLower(words[2])] = true
		}
	}
	return bases
}
