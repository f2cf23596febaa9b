// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Store is what profile names resolve in: directories of profile files, each
// named after its profile, and then the profiles within this program. The
// first that has the name wins.
type Store struct {
	Dirs []string
}

// Builtin is the source of the profiles within this program.
const Builtin = "built-in"

// Entry is one profile of a store.
type Entry struct {
	Name   string
	Source string // its file, or [Builtin]
	// Profile is zero when Err says why it can't be used.
	Profile sdk.Profile
	Err     error
}

// Load returns the profile that an argument names: a file, when it has a
// profile's file extension or a path separator, else a name of the store.
func (s Store) Load(argument string) (sdk.Profile, error) {
	entry, err := s.Entry(argument)
	return entry.Profile, err
}

// Entry returns the profile that [Store.Load] does, with its source.
func (s Store) Entry(argument string) (Entry, error) {
	if _, err := FormatOf(argument); err == nil || strings.ContainsAny(argument, `/\`) && !strings.Contains(argument, "@sha256:") {
		p, err := ParseFile(argument)
		return Entry{Name: p.Name, Source: argument, Profile: p}, err
	}
	return s.resolve(argument)
}

// Resolve returns the profile of a name, or of NAME@REVISION when the store
// has just that revision.
func (s Store) Resolve(name string) (sdk.Profile, error) {
	entry, err := s.resolve(name)
	return entry.Profile, err
}

func (s Store) resolve(name string) (Entry, error) {
	name, revision, pinned := strings.Cut(name, "@")
	entry, found := s.find(name)
	if !found {
		return Entry{}, &sdk.Error{
			Kind: sdk.ErrNotFound, Path: "profile",
			Message: fmt.Sprintf("no profile %.80q%s", name, sandbox.DidYouMean(name, s.names())),
			Advice:  "`sandboxer profile list` shows the names; a file is named with its extension or a path",
		}
	}
	if entry.Err != nil {
		return Entry{}, entry.Err
	}
	if present := sandbox.Revision(entry.Profile); pinned && present != revision {
		return Entry{}, &sdk.Error{
			Kind: sdk.ErrNotFound, Path: "profile",
			Message: fmt.Sprintf("profile %s of %s is at revision %s, not %.80s", name, entry.Source, present, revision),
		}
	}
	return entry, nil
}

// List returns the profiles of the store by name, each name once, and with
// its fault when it has one.
func (s Store) List() []Entry {
	byName := map[string]Entry{}
	for _, name := range s.names() {
		byName[name], _ = s.find(name)
	}
	entries := make([]Entry, 0, len(byName))
	for _, entry := range byName {
		entries = append(entries, entry)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return entries
}

// names returns every name of the store.
func (s Store) names() []string {
	var names []string
	for _, dir := range s.Dirs {
		// A directory that can't be read has no names to offer; resolving a
		// name in it says why.
		files, _ := os.ReadDir(dir)
		for _, file := range files {
			if _, err := FormatOf(file.Name()); err == nil && !strings.HasPrefix(file.Name(), ".") {
				names = append(names, strings.TrimSuffix(file.Name(), filepath.Ext(file.Name())))
			}
		}
	}
	return append(names, builtinNames()...)
}

// find returns the first entry of a name.
func (s Store) find(name string) (Entry, bool) {
	if name == "" || strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
		return Entry{}, false
	}
	for _, dir := range s.Dirs {
		for _, known := range extensions {
			file := filepath.Join(dir, name+known.extension)
			p, err := ParseFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil && p.Name != name {
				p, err = sdk.Profile{}, fault.Faults{{File: file, Path: "name", Message: fmt.Sprintf("is %q, and the file is named after %q", p.Name, name)}}
			}
			return Entry{Name: name, Source: file, Profile: p, Err: err}, true
		}
	}
	if p, found := builtin(name); found {
		return Entry{Name: name, Source: Builtin, Profile: p}, true
	}
	return Entry{}, false
}

// Publish writes a profile into a directory of a store, under its name, in
// place of an earlier one. A reader sees the old or the new, never a part.
func Publish(dir string, p sdk.Profile) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(dir, ".publish-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.WriteString(sandbox.Document(p) + "\n")
	if err := errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), filepath.Join(dir, p.Name+".json"))
}

// Unpublish removes a published profile, unless another revision has taken
// its place. Removing what is not there succeeds.
func Unpublish(dir, name, revision string) error {
	file := filepath.Join(dir, name+".json")
	p, err := ParseFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if sandbox.Revision(p) != revision {
		return nil
	}
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
