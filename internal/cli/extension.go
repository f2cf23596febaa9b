// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
)

func (a *app) extensionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "extension",
		Short: "List and describe extensions",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(a.extensionListCommand(), a.extensionDescribeCommand())
	return cmd
}

// extensionView is one extension as it is printed.
type extensionView struct {
	Name     string `json:"name"`
	Source   string `json:"source"` // why it was found
	Path     string `json:"path,omitempty"`
	Shadowed bool   `json:"shadowed"` // another of its name is used
}

func (a *app) extensionListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the extensions that are found here",
		Long:    "List the extensions that are found here. None is started.",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.use(func(runtime *config.Runtime) error {
				found, err := runtime.Registry.List()
				if err != nil {
					return err
				}
				views := []extensionView{}
				rows := [][]string{{"NAME", "SOURCE", "PATH"}}
				for _, extension := range found {
					view := extensionView{Name: extension.Name, Source: extension.Kind, Path: extension.Path, Shadowed: extension.Shadowed}
					views = append(views, view)
					note := view.Source
					if view.Shadowed {
						note += " (another is used)"
					}
					rows = append(rows, []string{view.Name, note, view.Path})
				}
				return a.print(views, rows)
			})
		},
	}
	a.printsData(cmd)
	return cmd
}

func (a *app) extensionDescribeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show what an extension is, takes and promises",
		Long: "Show what an extension is, what its configuration takes, and what it promises: a class for every feature, which is " +
			"enforced, best_effort, emulated, unverifiable or unsupported.",
		Args: exactly("the name of an extension"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.use(func(runtime *config.Runtime) error {
				described, err := runtime.Registry.Describe(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				rows := [][]string{{"CONFIGURATION", "TYPE", "REQUIRED", "DESCRIPTION"}}
				for _, key := range described.ConfigSchema {
					rows = append(rows, []string{key.Name, cmp.Or(key.Type, "string"), strconv.FormatBool(key.Required), key.Description})
				}
				head := facts("NAME", described.Name, "VERSION", described.Version, "SUMMARY", described.Summary)
				return a.print(described, head, rows, capabilityRows(described.Capabilities))
			})
		},
	}
	a.printsData(cmd)
	return cmd
}
