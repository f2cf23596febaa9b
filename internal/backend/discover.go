// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// binaryPrefix begins the name of an extension's program.
	binaryPrefix = "sandboxer-extension-"
	// dirVariable lists folders with extensions, separated as PATH is.
	dirVariable = "SANDBOXER_EXTENSION_DIR"
)

// validName checks the name of an extension. It becomes part of a file's
// name, so it holds no separator and no dot. (No regular expression: one that
// is compiled when the program starts costs every start.)
func validName(name string) error {
	valid := len(name) > 0 && len(name) <= 63 && 'a' <= name[0] && name[0] <= 'z'
	for _, c := range name {
		valid = valid && ('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_')
	}
	if !valid {
		return sdk.Invalid("extension", "%.80q is no name of an extension: lower-case letters, digits, - and _, beginning with a letter", name)
	}
	return nil
}

// Place is one folder where programs of extensions are looked for.
type Place struct {
	Dir  string
	Kind string // why it is looked at, for people
}

// SearchPath returns the folders where programs of extensions are looked for,
// in order: beside this executable (where it is and where its links lead),
// the folders of SANDBOXER_EXTENSION_DIR, then the per-user folder
// ${XDG_DATA_HOME:-~/.local/share}/sandboxer/extensions. The working
// directory is never one of them: a relative folder in the variable is an
// [sdk.ErrInvalid].
func SearchPath() ([]Place, error) {
	return searchPath(host{
		executable: os.Executable, argv0: os.Args[0], getenv: os.Getenv, home: os.UserHomeDir,
	})
}

// host is what the search path depends on.
type host struct {
	executable func() (string, error)
	argv0      string
	getenv     func(string) string
	home       func() (string, error)
}

func searchPath(h host) ([]Place, error) {
	var places []Place
	add := func(dir, kind string) {
		dir = filepath.Clean(dir)
		if !slices.ContainsFunc(places, func(p Place) bool { return p.Dir == dir }) {
			places = append(places, Place{Dir: dir, Kind: kind})
		}
	}
	if executable, err := h.executable(); err == nil && filepath.IsAbs(executable) {
		if link := linkTo(h.argv0, executable); link != "" {
			add(filepath.Dir(link), "beside the executable")
		}
		add(filepath.Dir(executable), "beside the executable")
		if real, err := filepath.EvalSymlinks(executable); err == nil {
			add(filepath.Dir(real), "beside the executable")
		}
	}
	for _, dir := range filepath.SplitList(h.getenv(dirVariable)) {
		if dir == "" {
			continue
		}
		if !filepath.IsAbs(dir) {
			return nil, sdk.Invalid(dirVariable, "%q is a relative folder: what it means would depend on the working directory", dir)
		}
		add(dir, dirVariable)
	}
	data := h.getenv("XDG_DATA_HOME")
	if !filepath.IsAbs(data) { // the XDG rules: a relative one is ignored
		data = ""
		if home, err := h.home(); err == nil && filepath.IsAbs(home) {
			data = filepath.Join(home, ".local", "share")
		}
	}
	if data != "" {
		add(filepath.Join(data, "sandboxer", "extensions"), "per user")
	}
	return places, nil
}

// linkTo returns the absolute path that the program was started by, when it
// is another name of the executable: os.Executable follows links on Linux.
// A path that depends on the working directory is no such name.
func linkTo(argv0, executable string) string {
	if !strings.ContainsRune(argv0, filepath.Separator) {
		found, err := exec.LookPath(argv0)
		if err != nil {
			return ""
		}
		argv0 = found
	}
	if !filepath.IsAbs(argv0) {
		return ""
	}
	started, err := os.Stat(argv0)
	if err != nil {
		return ""
	}
	running, err := os.Stat(executable)
	if err != nil || !os.SameFile(started, running) {
		return ""
	}
	return argv0
}

// binaryName is the file name of an extension's program.
func binaryName(extension string) string {
	name := binaryPrefix + extension
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return name
}

// find returns the program of an extension.
func find(config Config) (string, error) {
	if config.Path != "" {
		if !filepath.IsAbs(config.Path) {
			return "", sdk.Invalid("path", "%q is a relative path: what it means would depend on the working directory", config.Path)
		}
		if err := executableFile(config.Path); err != nil {
			return "", missing(config.Extension, fmt.Sprintf("the configured path can't be used: %v", err), nil)
		}
		return config.Path, nil
	}
	places, err := SearchPath()
	if err != nil {
		return "", err
	}
	var looked []string
	for _, place := range places {
		path := filepath.Join(place.Dir, binaryName(config.Extension))
		err := executableFile(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			// It is there and not usable: to run another one of the same
			// name instead would hide that.
			return "", missing(config.Extension, err.Error(), nil)
		}
		looked = append(looked, fmt.Sprintf("%s (%s)", place.Dir, place.Kind))
	}
	return "", missing(config.Extension, "", looked)
}

// Beside returns the path of a file by name, from the folders in which
// programs of extensions are looked for. The file need not be one that this
// machine can execute: an extension's programs for other machines lie there
// too.
func Beside(name string) (string, error) {
	places, err := SearchPath()
	if err != nil {
		return "", err
	}
	var looked []string
	for _, place := range places {
		path := filepath.Join(place.Dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
		looked = append(looked, fmt.Sprintf("%s (%s)", place.Dir, place.Kind))
	}
	return "", fmt.Errorf("there is no %s in %s", name, listing(looked))
}

// missing is the error for an extension without a program.
func missing(extension, reason string, looked []string) error {
	message := fmt.Sprintf("no program for extension %s", extension)
	if reason != "" {
		message += ": " + reason
	} else {
		message += fmt.Sprintf(": there is no %s in %s", binaryName(extension), listing(looked))
	}
	return &sdk.Error{
		Kind: sdk.ErrUnreachable, Message: message, Err: ErrExtensionMissing,
		Advice: "the release archives of sandboxer carry its own extensions beside the executable, a build by `go install` does not; " +
			"put the program into one of these folders, or name its folder in " + dirVariable,
	}
}

// executableFile checks that a path is a regular file that may be executed.
func executableFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}

// Found is an extension that can be used.
type Found struct {
	Name string
	Path string // of the program; empty for an extension in process
	Kind string // where it comes from, for people
	// Shadowed is true for a program that is not the one used for its name.
	Shadowed bool
}

// List returns every extension in process and every program in the search
// path, by name and then in the order of the search. It starts nothing.
func (r *Registry) List() ([]Found, error) {
	var all []Found
	taken := map[string]bool{}
	for name := range r.opts.Builtins {
		all = append(all, Found{Name: name, Kind: "built in"})
		taken[name] = true
	}
	places, err := SearchPath()
	if err != nil {
		return nil, err
	}
	for _, place := range places {
		entries, err := os.ReadDir(place.Dir)
		if err != nil {
			continue // a folder that is not there holds nothing
		}
		for _, entry := range entries {
			name, ok := strings.CutPrefix(strings.TrimSuffix(entry.Name(), ".exe"), binaryPrefix)
			path := filepath.Join(place.Dir, entry.Name())
			if !ok || validName(name) != nil || executableFile(path) != nil {
				continue
			}
			all = append(all, Found{Name: name, Path: path, Kind: place.Kind, Shadowed: taken[name]})
			taken[name] = true
		}
	}
	slices.SortStableFunc(all, func(a, b Found) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// listing joins names for a message.
func listing(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
