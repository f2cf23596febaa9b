// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"os/user"
	"path/filepath"
)

// FileName is the name of a configuration file.
const FileName = "sandboxer.hcl"

// systemDir holds the configuration and the profiles of the whole machine.
const systemDir = "/etc/sandboxer"

// defaultStateDir and userConfigDir follow the XDG base directory
// specification for every user, root included: root in a CI container is an
// ordinary user whose home is a volume.
func defaultStateDir(getenv func(string) string) (string, error) {
	return xdgDir(getenv, "XDG_STATE_HOME", ".local/state", "set state_dir or SANDBOXER_STATE_DIR")
}

func userConfigDir(getenv func(string) string) (string, error) {
	return xdgDir(getenv, "XDG_CONFIG_HOME", ".config", "set HOME or XDG_CONFIG_HOME")
}

// xdgDir ignores a relative path in the variable, as the specification asks.
func xdgDir(getenv func(string) string, variable, fallback, advice string) (string, error) {
	if dir := getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandboxer"), nil
	}
	home := getenv("HOME")
	if !filepath.IsAbs(home) {
		home = getenv("USERPROFILE")
	}
	if !filepath.IsAbs(home) {
		// Cron and systemd units run without HOME.
		if me, err := user.Current(); err == nil {
			home = me.HomeDir
		}
	}
	if !filepath.IsAbs(home) {
		return "", errors.New("no home directory is known: " + advice)
	}
	return filepath.Join(home, filepath.FromSlash(fallback), "sandboxer"), nil
}

// ProfileStore returns the directories that profile names are looked up in,
// in that order: libraries, the user's own, those that Terraform published,
// the machine's.
func (c Config) ProfileStore(getenv func(string) string) []string {
	dirs := append([]string(nil), c.ProfileDirs...)
	if dir, err := userConfigDir(getenv); err == nil {
		dirs = append(dirs, filepath.Join(dir, "profiles"))
	}
	if c.StateDir != "" {
		dirs = append(dirs, c.PublishedProfiles())
	}
	return append(dirs, filepath.Join(systemDir, "profiles"))
}

// PublishedProfiles returns the directory that Terraform's profile resources
// are published to.
func (c Config) PublishedProfiles() string { return filepath.Join(c.StateDir, "profiles") }
