// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"runtime"

	"github.com/spf13/cobra"
)

// build is what this program is.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			b := build{Version: a.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(b, [][]string{{"sandboxer " + b.Version, b.Go, b.Platform}})
		},
	}
	a.printsData(cmd)
	return cmd
}
