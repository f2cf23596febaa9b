// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The exit codes.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitLeft     = 3 // something was left or found
	exitTimedOut = 124
)

// exitError is an error with an exit code of its own. Without a cause
// everything has been said already.
type exitError struct {
	code  int
	cause error
}

func (e exitError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.cause.Error()
}

func (e exitError) Unwrap() error { return e.cause }

// usage is a command line that is not right.
func usage(format string, args ...any) error {
	return exitError{code: exitUsage, cause: fmt.Errorf(format, args...)}
}

// left is a result that has left or found something.
func left(format string, args ...any) error {
	return exitError{code: exitLeft, cause: fmt.Errorf(format, args...)}
}

// report prints an error and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	var exit exitError
	if errors.As(err, &exit) && exit.cause == nil {
		return exit.code
	}
	var faults fault.Faults
	if errors.As(err, &faults) {
		// Each line begins with its place, as editors and CI want it.
		a.note("%s", err)
	} else {
		a.note("error: %s", explain(err, a.Clock.Now()))
	}
	switch {
	case exit.code == exitUsage:
		a.note("see '%s --help'", a.path)
		return exitUsage
	case exit.code != 0:
		return exit.code
	}
	return exitFailed
}

// explain returns an error for a person: what failed, on which object and
// attribute, and why; then what to do and, where the lease decided, how it
// stands.
func explain(err error, now time.Time) string {
	text := err.Error()
	var lines []string
	for _, typed := range typedErrors(err) {
		if typed.Advice != "" {
			text = strings.Replace(text, " ("+typed.Advice+")", "", 1)
			lines = append(lines, "to do: "+typed.Advice)
		}
		if typed.Lease != nil && !typed.Lease.ExpiresAt.IsZero() {
			lines = append(lines, fmt.Sprintf("lease: ends %s, at most %s, generation %d",
				when(typed.Lease.ExpiresAt, now), when(typed.Lease.MaxExpiresAt, now), typed.Lease.Generation))
		}
		if typed.RetryAfter > 0 {
			lines = append(lines, "to do: try again in "+typed.RetryAfter.String())
		}
	}
	if errors.Is(err, context.Canceled) {
		text = strings.ReplaceAll(text, context.Canceled.Error(), "interrupted")
	}
	return printable(strings.Join(append([]string{text}, lines...), "\n  "), true)
}

// typedErrors returns every typed error of a tree, outermost first.
func typedErrors(err error) []*sdk.Error {
	var found []*sdk.Error
	if typed, is := err.(*sdk.Error); is { //nolint:errorlint // the tree is walked here, node by node
		found = append(found, typed)
	}
	switch wrapper := err.(type) { //nolint:errorlint // likewise
	case interface{ Unwrap() error }:
		if inner := wrapper.Unwrap(); inner != nil {
			found = append(found, typedErrors(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range wrapper.Unwrap() {
			found = append(found, typedErrors(inner)...)
		}
	}
	return found
}
