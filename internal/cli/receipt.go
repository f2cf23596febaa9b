// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/evidence"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// lookBudget bounds the look at a scope after the act, which also happens
// when the act was interrupted.
const lookBudget = time.Minute

// keysDir is the directory of keys in the state directory.
const keysDir = "keys"

// receiptFlag gives a verb the flag that asks for a receipt.
func receiptFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "receipt", "", "write a signed receipt to `FILE`, which must not be there yet")
}

const receiptHelp = "--receipt writes a signed statement of what was done, what a look at the whole scope found afterwards, and what could " +
	"not be enumerated; also when something failed. `sandboxer receipt verify` reads it."

// witnessed acts and, where a receipt is asked for, looks at the scope once
// more and writes what there is to say. That a receipt can be written is
// found out first.
func (a *app) witnessed(
	ctx context.Context, file string, runtime *config.Runtime, scope evidence.Scope,
	act func(*evidence.Receipt) error, look func(context.Context, *evidence.Receipt) error,
) error {
	asked := runtime.Registry.Names()
	if scope.Backend != "" {
		asked = []string{scope.Backend}
	}
	receipt := evidence.New(scope, asked)
	if file == "" {
		return act(receipt)
	}
	key, err := evidence.Key(filepath.Join(runtime.Config.StateDir, keysDir))
	if err != nil {
		return err
	}
	place, err := evidence.Reserve(file)
	if err != nil {
		return fmt.Errorf("--receipt: %w", err)
	}
	defer place.Abandon()
	acted := act(receipt)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookBudget)
	defer cancel()
	if err := errors.Join(look(ctx, receipt), unseen(ctx, runtime, receipt)); err != nil {
		for _, name := range asked {
			receipt.Missed(map[string]string{name: err.Error()}, nil)
		}
	}
	receipt.Close(runtime.Manager.Now())
	sealed, err := evidence.Sign(receipt.Statement(), key)
	if err == nil {
		err = place.Write(sealed)
	}
	switch {
	case err == nil:
		return acted
	case acted == nil:
		return fmt.Errorf("no receipt was written: %w", err)
	}
	a.note("error: no receipt was written: %s", err)
	return acted
}

// unseen names what no listing of the scope's things tells about: what a
// backend holds and can't read, of whatever fleet, and what the ledger knows of
// on a backend that nobody here can ask.
func unseen(ctx context.Context, runtime *config.Runtime, receipt *evidence.Receipt) error {
	scope := receipt.Scope
	within := func(id string) bool { return len(scope.IDs) == 0 || slices.Contains(scope.IDs, id) }
	list, err := runtime.Manager.List(ctx, lifecycle.ListOptions{Backend: scope.Backend})
	if err != nil {
		return err
	}
	for name, ids := range list.Untold {
		if ids = slices.DeleteFunc(ids, func(id string) bool { return !within(id) }); len(ids) > 0 {
			receipt.Missed(map[string]string{name: "it holds what it can't tell about: " + strings.Join(ids, ", ")}, nil)
		}
	}
	if scope.Backend != "" {
		return nil
	}
	records, unreadable, err := runtime.Ledger.List(ctx, ledger.Filter{Fleet: scope.Fleet})
	if err != nil {
		return err
	}
	for _, log := range unreadable {
		receipt.Missed(nil, []string{log.Path + ": " + log.Reason})
	}
	for _, record := range records {
		open := record.Open || record.Reason == evidence.OutcomeUnverifiable
		if open && within(record.ID) && slices.Contains(scope.Kinds, string(record.Kind)) && !slices.Contains(receipt.Asked, record.Backend) {
			receipt.Missed(map[string]string{record.Backend: "it is not configured here, and the ledger knows of something there"}, nil)
		}
	}
	return nil
}

// remain notes the sandboxes that a look afterwards has found.
func remain(receipt *evidence.Receipt, list []lifecycle.Sandbox) {
	for _, s := range list {
		receipt.Remaining = append(receipt.Remaining, evidence.Item{
			Kind: evidence.KindSandbox, ID: s.ID, Backend: s.Backend, Status: string(s.Status), Detail: s.Unreachable,
		})
		if s.Unreachable != "" {
			receipt.Missed(map[string]string{s.Backend: s.Unreachable}, nil)
		}
	}
}

func (a *app) receiptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "receipt",
		Short: "Check receipts of reap, destroy, leaks and profile verify",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(a.receiptVerifyCommand())
	return cmd
}

// verified is what is printed about a receipt.
type verified struct {
	KeyID string `json:"key_id"`
	evidence.Statement
}

func (a *app) receiptVerifyCommand() *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check a receipt's signature and show what it says",
		Long: "Check a receipt's signature and show what it says. The exit code is 0 when the receipt is valid and its scope was empty, " +
			"3 when it is valid and something was found or could not be enumerated, or a profile has not passed, 1 when it is not valid.\n\n" +
			"The key is the one of this state directory (keys/receipt.pub), which --key replaces: a copy of that file, from the machine " +
			"that wrote the receipt. A receipt is an in-toto statement in a DSSE envelope; a key's id is the SHA-256 of its DER.",
		Example: "  sandboxer reap --receipt reaped.json\n  sandboxer receipt verify reaped.json",
		Args:    exactly("the file of a receipt"),
		RunE: func(_ *cobra.Command, args []string) error {
			public, err := a.publicKeys(keys)
			if err != nil {
				return err
			}
			sealed, err := evidence.ReadBounded(args[0], evidence.MaxSize)
			if err != nil {
				return err
			}
			statement, keyID, err := evidence.Verify(sealed, public...)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := a.printReceipt(verified{KeyID: keyID, Statement: statement}); err != nil {
				return err
			}
			if !statement.Predicate.Good() {
				return exitError{code: exitLeft}
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "`FILE` of a public key that may have signed, may be given several times (default: this state directory's)")
	a.printsData(cmd)
	return cmd
}

// publicKeys reads the keys that may have signed.
func (a *app) publicKeys(files []string) ([]ed25519.PublicKey, error) {
	if len(files) == 0 {
		loaded, err := a.config()
		if err != nil {
			return nil, err
		}
		complete, err := loaded.Complete(a.Getenv)
		if err != nil {
			return nil, err
		}
		files = []string{filepath.Join(complete.StateDir, keysDir, evidence.PublicFile)}
	}
	public := make([]ed25519.PublicKey, len(files))
	for i, file := range files {
		var err error
		if public[i], err = evidence.PublicKey(file); err != nil {
			return nil, fmt.Errorf("public key: %w", err)
		}
	}
	return public, nil
}

func (a *app) printReceipt(v verified) error {
	r := v.Predicate
	said := facts(
		"EMPTY", strconv.FormatBool(r.Empty),
		"VERB", r.Scope.Verb,
		"FLEET", r.Scope.Fleet,
		"SCOPE", scopeOf(r.Scope),
		"AT", moment(r.At, a.Clock.Now()),
		"ENUMERATED", strings.Join(r.Enumerated, ", "),
		"UNVERIFIABLE", strings.Join(r.Unverifiable, ", "),
		"KEY", v.KeyID,
	)
	if verdict := r.Isolation; verdict != nil {
		said = append(said, facts(
			"VERDICT", string(verdict.Verdict),
			"REVISION", verdict.Revision,
			"VALID UNTIL", moment(verdict.ExpiresAt, a.Clock.Now()),
			"FAILED", strings.Join(verdict.Of(sdk.VerdictFailed), ", "),
			"UNKNOWN", strings.Join(verdict.Of(sdk.VerdictUnknown), ", "),
		)...)
	}
	for _, name := range sortedKeys(r.NotEnumerated) {
		said = append(said, []string{"NOT ENUMERATED", name + ": " + r.NotEnumerated[name]})
	}
	for _, log := range r.Unreadable {
		said = append(said, []string{"UNREADABLE LOG", log})
	}
	tables := [][][]string{said}
	if len(r.Items)+len(r.Remaining) > 0 {
		things := [][]string{{"ID", "KIND", "BACKEND", "OUTCOME", "DETAIL"}}
		for _, item := range r.Items {
			things = append(things, []string{item.ID, item.Kind, item.Backend, item.Outcome, item.Detail})
		}
		for _, item := range r.Remaining {
			things = append(things, []string{item.ID, item.Kind, item.Backend, strings.TrimSpace("remains " + item.Status), item.Detail})
		}
		tables = append(tables, things)
	}
	return a.print(v, tables...)
}

// scopeOf shows what a scope selects.
func scopeOf(s evidence.Scope) string {
	var parts []string
	if s.Due {
		parts = append(parts, "past its time")
	}
	parts = append(parts, "kinds="+strings.Join(s.Kinds, ","))
	for _, pair := range [][2]string{
		{"ids", strings.Join(s.IDs, ",")}, {"backend", s.Backend}, {"owner", s.Owner}, {"profile", s.Profile}, {"task", s.Task},
		{"run", s.Run}, {"labels", labels(s.Labels)},
	} {
		if pair[1] != "" {
			parts = append(parts, pair[0]+"="+pair[1])
		}
	}
	return strings.Join(parts, " ")
}
