// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) backendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backend",
		Short: "List and probe the configured backends",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(a.backendListCommand(), a.backendProbeCommand())
	return cmd
}

func (a *app) backendListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the configured backends",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.use(func(runtime *config.Runtime) error {
				infos := []lifecycle.BackendInfo{}
				rows := [][]string{{"NAME", "EXTENSION", "VERSION", "DEFAULT", "REASON"}}
				for _, name := range runtime.Manager.BackendNames() {
					info, err := runtime.Manager.Backend(cmd.Context(), name, false)
					if err != nil {
						// A backend whose extension is missing is still configured.
						info = lifecycle.BackendInfo{Name: name, Default: name == runtime.Config.Backend, Reason: printable(err.Error(), false)}
						info.Extension, _ = runtime.Registry.Extension(name)
					}
					infos = append(infos, info)
					mark := ""
					if info.Default {
						mark = "yes"
					}
					rows = append(rows, []string{info.Name, info.Extension, info.Version, mark, info.Reason})
				}
				return a.print(infos, rows)
			})
		},
	}
	a.printsData(cmd)
	return cmd
}

func (a *app) backendProbeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe [NAME]",
		Short: "Tell whether a backend is usable from here and, if not, why and what to do",
		Long:  "Tell whether a backend is usable from here and, if not, why and what to do. The exit code is 1 when it is not.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("backend probe wants the name of one backend, or none for the default")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name, a.named = args[0], args[0]
			}
			return a.use(func(runtime *config.Runtime) error {
				info, err := runtime.Manager.Backend(cmd.Context(), name, true)
				if err != nil {
					return err
				}
				if err := a.printBackend(info); err != nil {
					return err
				}
				if info.Usable != nil && !*info.Usable {
					return exitError{code: exitFailed}
				}
				return nil
			})
		},
	}
	a.printsData(cmd)
	return cmd
}

func (a *app) printBackend(info lifecycle.BackendInfo) error {
	usable := "no"
	if info.Usable != nil && *info.Usable {
		usable = "yes"
	}
	rows := facts("NAME", info.Name, "EXTENSION", info.Extension, "VERSION", info.Version, "USABLE", usable, "WHY NOT", info.Reason, "TO DO", info.Advice)
	for _, detail := range info.Details {
		rows = append(rows, []string{detail.Name, detail.Value})
	}
	return a.print(info, rows, capabilityRows(info.Capabilities))
}

// capabilityRows shows a capability document in the order of its
// documentation. What it leaves out is unsupported, and shown so.
func capabilityRows(capabilities sdk.Capabilities) [][]string {
	rows := [][]string{{"FEATURE", "CLASS", "REASON"}}
	for _, feature := range sdk.Features() {
		guarantee := capabilities.Of(feature)
		class := string(guarantee.Class)
		if guarantee.DependsOnMachine {
			class = fmt.Sprintf("%s (or better: depends on the machine)", class)
		}
		rows = append(rows, []string{string(feature), class, guarantee.Reason})
	}
	return rows
}
