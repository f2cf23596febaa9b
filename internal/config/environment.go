// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// fromEnvironment reads the SANDBOXER_ variables of the schema. An empty
// variable is unset.
func fromEnvironment(getenv func(string) string) (Config, error) {
	var config Config
	for _, attribute := range Attributes() {
		value := ""
		if attribute.Env != "" {
			value = getenv(attribute.Env)
		}
		if value == "" {
			continue
		}
		var err error
		switch attribute.Type {
		case TypeStrings:
			err = config.setStrings(attribute.Name, filepath.SplitList(value), "")
		default:
			err = config.setString(attribute.Name, value, "")
		}
		if err != nil {
			return Config{}, sdk.Invalid(attribute.Env, "%s", err)
		}
	}
	return config, nil
}

// setString sets a scalar attribute from its text. A relative path is
// relative to base, or to the working directory when base is empty.
func (c *Config) setString(name, value, base string) error {
	switch name {
	case "fleet":
		c.Fleet = value
	case "backend":
		c.Backend = value
	case "on_unreachable":
		c.OnUnreachable = lifecycle.OnUnreachable(value)
		return c.OnUnreachable.Check()
	case "owner":
		c.Owner = value
	case "task":
		c.Task = value
	case "run":
		c.Run = value
	case "state_dir":
		return absolute(&c.StateDir, value, base)
	case "max_sandboxes", "max_sandboxes_per_owner":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return fmt.Errorf("%.40q is not a whole number, more than zero", value)
		}
		if name == "max_sandboxes" {
			c.MaxSandboxes = n
		} else {
			c.MaxSandboxesPerOwner = n
		}
	case "max_cost_per_hour", "max_committed":
		amount, err := sandbox.ParseMoney(value)
		if err != nil {
			return err
		}
		if amount == 0 {
			return fmt.Errorf("%.40q is not more than zero", value)
		}
		if name == "max_committed" {
			c.MaxCommitted = amount
		} else {
			c.MaxCostPerHour = amount
		}
	case "default_ttl", "max_ttl":
		d, err := sandbox.ParseDuration(value)
		if err != nil {
			return err
		}
		if name == "max_ttl" {
			c.MaxTTL = d
		} else {
			c.DefaultTTL = d
		}
	}
	return nil
}

// setStrings sets an attribute that is a list of directories.
func (c *Config) setStrings(name string, values []string, base string) error {
	dirs := make([]string, len(values))
	for i, value := range values {
		if err := absolute(&dirs[i], value, base); err != nil {
			return err
		}
	}
	switch name {
	case "extension_dirs":
		c.ExtensionDirs = dirs
	case "profile_dirs":
		c.ProfileDirs = dirs
	}
	return nil
}

func absolute(into *string, path, base string) error {
	if !filepath.IsAbs(path) {
		path = filepath.Join(base, path)
	}
	resolved, err := filepath.Abs(path)
	*into = resolved
	return err
}
