// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// blame returns the attribute of an object that the path of an [sdk.Error]
// stands for; ok is false where there is none.
type blame func(at string) (attribute path.Path, ok bool)

// finding is one error on its way to a diagnostic: the only place where an
// error becomes text for a person.
type finding struct {
	summary   string
	detail    string
	attribute path.Path
	located   bool
}

// kindSummaries name what an error of each kind is about.
var kindSummaries = []struct {
	kind    error
	summary string
}{
	{sdk.ErrCrashed, "Crashed extension"},
	{sdk.ErrUnreachable, "Unreachable backend"},
	{sdk.ErrUnauthenticated, "Refused credentials"},
	{sdk.ErrQuota, "Exhausted quota"},
	{sdk.ErrUnsupported, "Unsupported feature"},
	{sdk.ErrExpired, "Passed deadline"},
	{sdk.ErrConflict, "Conflicting change"},
	{sdk.ErrNotFound, "Unknown object"},
	{sdk.ErrInvalid, "Invalid value"},
	{context.DeadlineExceeded, "Passed timeout"},
	{context.Canceled, "Cancelled operation"},
}

// findings splits an error into what a person sees: joined errors become one
// finding each.
func findings(summary string, err error, at blame) []finding {
	if err == nil {
		return nil
	}
	if parts := joined(err); parts != nil {
		var all []finding
		for _, part := range parts {
			all = append(all, findings(summary, part, at)...)
		}
		return all
	}
	return []finding{find(summary, err, at)}
}

func find(summary string, err error, at blame) finding {
	f := finding{summary: summary, detail: sentence(err.Error())}
	for _, k := range kindSummaries {
		if errors.Is(err, k.kind) {
			// A caller may know what kind of object it is.
			if !errors.Is(k.kind, sdk.ErrNotFound) || !strings.HasPrefix(summary, "Unknown ") {
				f.summary = k.summary
			}
			break
		}
	}
	var known *sdk.Error
	if !errors.As(err, &known) {
		return f
	}
	if known.Path == "profile" && errors.Is(err, sdk.ErrNotFound) {
		f.summary = "Unknown profile"
	}
	said := known.Message
	if said == "" {
		said = known.Kind.Error()
	}
	if known.Path != "" {
		if at != nil {
			f.attribute, f.located = at(known.Path)
		}
		said = known.Path + ": " + said
	}
	f.detail = sentence(strings.Replace(err.Error(), known.Error(), said, 1))
	if known.Advice != "" {
		f.detail += "\n\nWhat to do: " + known.Advice + "."
	}
	if known.Err != nil {
		f.detail += "\n\nOriginal error: " + known.Err.Error()
	}
	return f
}

// joined returns the parts of an error that [errors.Join] made. An error
// that wraps several is not one: its text says how they belong together.
func joined(err error) []error {
	// The outermost error decides, not what it wraps.
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	parts := many.Unwrap()
	texts := make([]string, len(parts))
	for i, part := range parts {
		texts[i] = part.Error()
	}
	if strings.Join(texts, "\n") != err.Error() {
		return nil
	}
	return parts
}

// sentence begins with a capital letter, unless with an attribute's path, and
// ends with a full stop.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return text
	}
	word, _, _ := strings.Cut(text, " ")
	if first := text[0]; first >= 'a' && first <= 'z' && !strings.HasSuffix(word, ":") {
		text = string(first-'a'+'A') + text[1:]
	}
	if last := text[len(text)-1]; last != '.' && last != '!' && last != ')' && !strings.Contains(text, "\n") {
		text += "."
	}
	return text
}

func (f finding) error(diags *diag.Diagnostics) {
	if f.located {
		diags.AddAttributeError(f.attribute, f.summary, f.detail)
		return
	}
	diags.AddError(f.summary, f.detail)
}

func (f finding) warning(diags *diag.Diagnostics, more string) {
	if f.located {
		diags.AddAttributeWarning(f.attribute, f.summary, f.detail+more)
		return
	}
	diags.AddWarning(f.summary, f.detail+more)
}

// addError turns an error into diagnostics. The summary is for errors of no
// known kind.
func addError(diags *diag.Diagnostics, summary string, err error, at blame) {
	for _, f := range findings(summary, err, at) {
		f.error(diags)
	}
}

// warnForgotten says that a thing left the state while nobody knows whether it
// is gone; nothing when it was not so.
func warnForgotten(diags *diag.Diagnostics, what, why string) {
	if why != "" {
		diags.AddWarning("Forgotten", fmt.Sprintf("%s was given up, since on_unreachable is \"forget\" and its backend can't be reached. It may live until its deadline. "+
			"The ledger keeps a record, and `sandboxer reap` goes on with it once the backend is there again.\n\nOriginal error: %s", what, why))
	}
}

// warnUnread says that a thing is shown as it was last seen.
func warnUnread(diags *diag.Diagnostics, what string, err error) {
	diags.AddWarning("Unreachable backend", fmt.Sprintf("%s was not refreshed: its backend can't be reached, and on_unreachable is \"forget\".\n\nOriginal error: %s", what, err))
}
