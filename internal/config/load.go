// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// LoadOptions say where the configuration is read from. Zero is the usual.
type LoadOptions struct {
	// File is a configuration file that the user named on the command line.
	// It overrides everything else that is loaded.
	File   string
	Getenv func(string) string // nil is os.Getenv
	Dir    string              // of the checkout; empty is the working directory
	System string              // directory of the machine's configuration; empty is /etc/sandboxer
}

// Load reads the configuration from every place, each overriding the ones
// before it: the defaults; the machine's file; the user's file; sandboxer.hcl
// in the working directory; the file that SANDBOXER_CONFIG names; the other
// SANDBOXER_ variables; the file that was named. The caller puts flags or the
// provider block on top with [Merge] and ends with [Config.Complete].
//
// A file in the working directory may come from a stranger's checkout: what
// decides which program is executed is refused there.
func Load(opts LoadOptions) (Config, error) {
	if opts.Getenv == nil {
		opts.Getenv = os.Getenv
	}
	if opts.System == "" {
		opts.System = systemDir
	}
	named := []string{opts.File, opts.Getenv("SANDBOXER_CONFIG")}
	config := Default()
	add := func(file string, trusted, optional bool) error {
		if file == "" {
			return nil
		}
		read, err := ReadFile(file, trusted)
		if optional && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		config = Merge(config, read)
		return nil
	}
	userFile := ""
	if dir, err := userConfigDir(opts.Getenv); err == nil {
		userFile = filepath.Join(dir, FileName)
	}
	systemFile := filepath.Join(opts.System, FileName)
	checkout := filepath.Join(opts.Dir, FileName)
	// Whoever names the file of the checkout has read it; it then counts in
	// the place where it was named.
	if sameFile(checkout, append(named, userFile, systemFile)...) {
		checkout = ""
	}
	if err := errors.Join(add(systemFile, true, true), add(userFile, true, true), add(checkout, false, true)); err != nil {
		return Config{}, err
	}
	if err := add(named[1], true, false); err != nil {
		return Config{}, fmt.Errorf("SANDBOXER_CONFIG: %w", err)
	}
	environment, err := fromEnvironment(opts.Getenv)
	if err != nil {
		return Config{}, err
	}
	config = Merge(config, environment)
	return config, add(named[0], true, false)
}

func sameFile(file string, others ...string) bool {
	info, err := os.Stat(file)
	if err != nil {
		return false
	}
	for _, other := range others {
		if other == "" {
			continue
		}
		if found, err := os.Stat(other); err == nil && os.SameFile(info, found) {
			return true
		}
	}
	return false
}
