// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/profile"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func (a *app) profileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "List, show, validate and verify profiles",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(a.profileListCommand(), a.profileShowCommand(), a.profileValidateCommand(), a.profileVerifyCommand(), a.profileSchemaCommand())
	return cmd
}

// profileView is one profile as it is printed.
type profileView struct {
	Name        string       `json:"name"`
	ID          string       `json:"id,omitempty"`
	Revision    string       `json:"revision,omitempty"`
	Description string       `json:"description,omitempty"`
	Source      string       `json:"source"`
	Error       string       `json:"error,omitempty"`
	Document    *sdk.Profile `json:"document,omitempty"`
}

func viewProfile(p sdk.Profile, source string) profileView {
	return profileView{
		Name: p.Name, ID: sandbox.ProfileID(p), Revision: sandbox.Revision(p), Description: strings.TrimSpace(p.Description), Source: source,
	}
}

// stored returns the store of profiles. It needs the configuration only for
// where to look.
func (a *app) stored() (profile.Store, error) {
	loaded, err := a.config()
	if err != nil {
		return profile.Store{}, err
	}
	complete, err := loaded.Complete(a.Getenv)
	return a.store(complete), err
}

func (a *app) profileListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the profiles that have a name here",
		Long: "List the profiles that have a name here: those of the configured libraries, the user's, those that Terraform " +
			"published, the machine's, and those within this program. The first that has a name wins.",
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			store, err := a.stored()
			if err != nil {
				return err
			}
			views := []profileView{}
			rows := [][]string{{"NAME", "REVISION", "SOURCE", "DESCRIPTION"}}
			for _, entry := range store.List() {
				view := profileView{Name: entry.Name, Source: entry.Source}
				if entry.Err == nil {
					view = viewProfile(entry.Profile, entry.Source)
				} else {
					view.Error = entry.Err.Error()
					a.note("warning: %s", entry.Err)
				}
				views = append(views, view)
				rows = append(rows, []string{view.Name, shortRevision(view.Revision), view.Source, view.Description})
			}
			return a.print(views, rows)
		},
	}
	a.printsData(cmd)
	return cmd
}

// shortRevision is enough of a revision for a person to tell two apart.
func shortRevision(revision string) string {
	const digits = 12
	if digest, found := strings.CutPrefix(revision, "sha256:"); found && len(digest) > digits {
		return digest[:digits]
	}
	return revision
}

func (a *app) profileShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show NAME|FILE",
		Short:   "Show a profile's document",
		Long:    "Show a profile's document, in YAML or in JSON. What is shown is a profile file again.",
		Example: "  sandboxer profile show go > mine.yaml",
		Args:    exactly("the name or the file of a profile"),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := a.stored()
			if err != nil {
				return err
			}
			entry, err := store.Entry(args[0])
			if err != nil {
				return err
			}
			p := entry.Profile
			if a.format == formatJSON {
				view := viewProfile(p, entry.Source)
				view.Document = &p
				return a.printJSON(view)
			}
			document := profile.YAMLDocument(p)
			if isTerminal(a.Stdout) {
				document = printable(document, true)
			}
			return writeAll(a.Stdout, "# "+sandbox.ProfileID(p)+"\n"+document)
		},
	}
	a.printsData(cmd)
	return cmd
}

// validated is what is printed about one file.
type validated struct {
	File     string       `json:"file"`
	Valid    bool         `json:"valid"`
	Name     string       `json:"name,omitempty"`
	Revision string       `json:"revision,omitempty"`
	Faults   fault.Faults `json:"faults,omitempty"`
}

func (a *app) profileValidateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate FILE…",
		Short: "Check profile files",
		Long: "Check profile files and report every fault with its file, line, column and attribute. It needs no backend, and asks " +
			"none: whether a backend can do what a profile needs is checked when a sandbox is planned or made.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("profile validate wants files, or names of profiles")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := a.stored()
			if err != nil {
				return err
			}
			var results []validated
			rows := [][]string{{"FILE", "NAME", "REVISION"}}
			faulty := false
			for _, arg := range args {
				result := validateOne(store, arg)
				results = append(results, result)
				if result.Valid {
					rows = append(rows, []string{arg, result.Name, result.Revision})
					continue
				}
				faulty = true
				if a.format == formatTable {
					a.note("%s", result.Faults)
				}
			}
			if a.format == formatJSON || len(rows) > 1 {
				if err := a.print(oneOrAll(results, len(args) == 1), rows); err != nil {
					return err
				}
			}
			if faulty {
				return exitError{code: exitFailed}
			}
			return nil
		},
	}
	a.printsData(cmd)
	return cmd
}

func validateOne(store profile.Store, arg string) validated {
	p, err := store.Load(arg)
	if err == nil {
		return validated{File: arg, Valid: true, Name: p.Name, Revision: sandbox.Revision(p)}
	}
	result := validated{File: arg}
	var pathError *os.PathError
	switch {
	case errors.As(err, &result.Faults):
	case errors.As(err, &pathError):
		result.Faults = fault.Faults{{File: arg, Message: pathError.Err.Error()}}
	default:
		result.Faults = fault.Faults{{Message: err.Error()}}
	}
	return result
}

func (a *app) profileSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of profiles, for editors",
		Example: "  sandboxer profile schema > profile.schema.json",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			_, err := a.Stdout.Write(profile.Schema())
			return err
		},
	}
}
