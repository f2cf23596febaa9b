// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// completionBudget bounds what a shell waits for the completion of one word.
const completionBudget = time.Second

// completion offers words; what it can't find out it leaves away.
type completion = cobra.CompletionFunc

// completes tells the shell what may stand where. It goes by the names of
// flags and commands, which mean the same everywhere.
func (a *app) completes(root *cobra.Command) {
	sandboxes, snapshots := a.completeIDs(ledger.KindSandbox), a.completeIDs(ledger.KindSnapshot)
	flags := map[string]completion{
		"backend":   a.completeBackends,
		"profile":   a.completeProfiles,
		"sandbox":   sandboxes,
		"kind":      choices(sdk.SnapshotFilesystem, sdk.SnapshotMemory),
		"on-expiry": choices(sdk.OnExpiryDestroy, sdk.OnExpirySnapshot, sdk.OnExpiryPause),
		"on-failed": choices(lifecycle.OnFailedDestroy, lifecycle.OnFailedKeep),
		"output":    choices(formatTable, formatJSON),
		"status":    choices(knownStatuses()...),
		// Files and directories are the shell's business.
		"config": nil, "state-dir": nil, "secret": nil, "receipt": nil, "key": nil,
	}
	arguments := map[string]completion{
		"get": first(sandboxes), "exec": first(sandboxes), "logs": first(sandboxes), "forward": first(sandboxes), "wait": first(sandboxes), "extend": first(sandboxes),
		"expire": first(sandboxes), "pause": first(sandboxes), "resume": first(sandboxes), "snapshot create": first(sandboxes),
		"destroy": sandboxes,
		"restore": first(snapshots), "snapshot get": first(snapshots), "snapshot extend": first(snapshots),
		"snapshot delete": snapshots,
		"backend probe":   first(a.completeBackends), "extension describe": first(a.completeExtensions),
		"profile show": first(orFiles(a.completeProfiles)), "profile validate": orFiles(a.completeProfiles),
		"profile verify": first(orFiles(a.completeProfiles)),
		"cp":             a.completePaths,
	}
	for _, nothing := range []string{"create", "list", "snapshot list", "reap", "backend list", "extension list", "profile list", "profile schema", "version"} {
		arguments[nothing] = cobra.NoFileCompletions
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.ValidArgsFunction = arguments[strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")]
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			complete, known := flags[flag.Name]
			if !known && flag.NoOptDefVal == "" {
				complete = cobra.NoFileCompletions
			}
			if complete != nil {
				_ = cmd.RegisterFlagCompletionFunc(flag.Name, complete) // fails only for a flag that is not there, or has one
			}
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(root)
}

func choices[T ~string](values ...T) completion {
	words := make([]cobra.Completion, len(values))
	for i, value := range values {
		words[i] = string(value)
	}
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// first offers nothing after the first argument.
func first(complete completion) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}

// orFiles offers files too.
func orFiles(complete completion) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		words, _ := complete(cmd, args, begun)
		return words, cobra.ShellCompDirectiveDefault
	}
}

// offer keeps what begins as the word does and is not on the command line.
func offer(words, args []string, begun string) []cobra.Completion {
	return slices.DeleteFunc(words, func(word string) bool {
		name, _, _ := strings.Cut(word, "\t")
		return !strings.HasPrefix(name, begun) || slices.Contains(args, name)
	})
}

// ids returns the live objects that the ledger knows, each with what a person
// knows it by. No backend is asked: that may take long.
func (a *app) ids(cmd *cobra.Command, kind ledger.Kind) []string {
	runtime, err := a.open()
	if err != nil {
		return nil
	}
	defer runtime.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionBudget)
	defer cancel()
	records, _, err := runtime.Ledger.List(ctx, ledger.Filter{Fleet: runtime.Config.Fleet, Kind: kind, Open: true})
	if err != nil {
		return nil
	}
	var words []string
	for _, r := range records {
		about := strings.Join(strings.Fields(strings.Join([]string{r.Identity.Profile, r.Identity.Owner, r.Identity.Task}, " ")), " ")
		words = append(words, r.ID+"\t"+printable(about, false))
	}
	return words
}

func (a *app) completeIDs(kind ledger.Kind) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return offer(a.ids(cmd, kind), args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// completePaths offers ID: beside the files of this machine. What is in a
// sandbox only its backend knows.
func (a *app) completePaths(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if !strings.HasPrefix(begun, sandboxPrefix) {
		return nil, cobra.ShellCompDirectiveDefault
	}
	words := a.ids(cmd, ledger.KindSandbox)
	for i, word := range words {
		id, about, _ := strings.Cut(word, "\t")
		words[i] = id + ":/\t" + about
	}
	return offer(words, args, begun), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// sandboxPrefix begins every id of a sandbox.
const sandboxPrefix = "sbx-"

func (a *app) completeBackends(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	runtime, err := a.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer runtime.Close()
	return offer(runtime.Manager.BackendNames(), args, begun), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeExtensions(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	runtime, err := a.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer runtime.Close()
	found, _ := runtime.Registry.List()
	var names []string
	for _, extension := range found {
		if !extension.Shadowed {
			names = append(names, extension.Name)
		}
	}
	return offer(names, args, begun), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeProfiles(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	store, err := a.stored()
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, entry := range store.List() {
		names = append(names, entry.Name)
	}
	return offer(names, args, begun), cobra.ShellCompDirectiveDefault
}
