// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// StatementType is the type of every in-toto statement of this version.
	StatementType = "https://in-toto.io/Statement/v1"
	// PredicateType is the type of a receipt. A change of what a field means
	// makes it another one.
	PredicateType = "https://sandboxer.dev/receipt/v1"
)

// The verbs that give receipts.
const (
	VerbReap    = "reap"
	VerbDestroy = "destroy"
	VerbLeaks   = "leaks"  // what remains is what differs between the ledger and the backends
	VerbVerify  = "verify" // of a profile; the scope are the throw-away sandboxes
)

// The outcomes of an item. What has another one is not gone.
const (
	OutcomeRemoved      = "removed"
	OutcomeGone         = "gone"    // nothing was there any more
	OutcomeSkipped      = "skipped" // it left the scope meanwhile: it was extended
	OutcomeFailed       = "failed"
	OutcomeUnverifiable = "unverifiable" // counts as ended, and nobody saw it gone
)

// The kinds of things.
const (
	KindSandbox  = "sandbox"
	KindSnapshot = "snapshot"
)

// Statement is a receipt as it is signed: an in-toto Statement v1.
type Statement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Receipt   `json:"predicate"`
}

// Subject is what a statement is about: a fleet, by its name, and the digest
// of the scope within it.
type Subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// Scope is what was to be empty. Empty fields select everything.
type Scope struct {
	Verb    string            `json:"verb"`
	Fleet   string            `json:"fleet"`
	Kinds   []string          `json:"kinds"`
	Backend string            `json:"backend,omitempty"`
	Due     bool              `json:"due,omitempty"` // only what is past its time, or whose destroy did not end
	IDs     []string          `json:"ids,omitempty"` // sorted
	Owner   string            `json:"owner,omitempty"`
	Profile string            `json:"profile,omitempty"`
	Task    string            `json:"task,omitempty"`
	Run     string            `json:"run,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// Digest returns the SHA-256, in hex, of the scope's JSON: no white space,
// the fields as declared, the keys of labels sorted.
func (s Scope) Digest() string {
	// Strings and maps of them always encode.
	encoded, _ := json.Marshal(s)
	digest := sha256.Sum256(encoded)
	return hex.EncodeToString(digest[:])
}

// Item is one thing that was acted on, or that remains.
type Item struct {
	Kind    string `json:"kind"`
	ID      string `json:"id"`
	Backend string `json:"backend,omitempty"`
	Outcome string `json:"outcome,omitempty"` // of what was acted on
	Status  string `json:"status,omitempty"`  // of what remains; of a leak, how it differs
	Detail  string `json:"detail,omitempty"`
}

// Receipt says what was done in a scope and what a look at the whole scope
// found afterwards. Add to it, then [Receipt.Close] it.
type Receipt struct {
	Scope Scope     `json:"scope"`
	At    time.Time `json:"at"` // of the look afterwards
	// Asked are the backends that the scope is about.
	Asked []string `json:"asked"`
	Items []Item   `json:"items"`
	// Enumerated are the backends that were asked and whose listings were
	// complete, before and after.
	Enumerated []string `json:"enumerated"`
	// NotEnumerated names each backend that could not be asked, or not for
	// everything, and why.
	NotEnumerated map[string]string `json:"not_enumerated"`
	// Unreadable names logs of the ledger that could not be read, and why.
	Unreadable []string `json:"unreadable"`
	// Unverifiable are the ids of items that count as ended and were not
	// seen gone.
	Unverifiable []string `json:"unverifiable"`
	// Remaining is what the look afterwards found in the scope: what a
	// backend lists, and what the ledger holds open.
	Remaining []Item `json:"remaining"`
	// Empty is true when everything was enumerated and nothing remains.
	Empty bool `json:"empty"`
	// Isolation is the verdict of [VerbVerify]; nil where none was reached.
	Isolation *Isolation `json:"isolation,omitempty"`
}

// Good reports whether a receipt says all that its verb was for: its scope is
// empty, and a profile that was verified has passed.
func (r Receipt) Good() bool {
	return r.Empty && (r.Scope.Verb != VerbVerify || r.Isolation != nil && r.Isolation.Verdict == sdk.VerdictPassed)
}

// New returns the receipt of a scope before anything was done.
func New(scope Scope, asked []string) *Receipt {
	scope.IDs = slices.Compact(slices.Sorted(slices.Values(scope.IDs)))
	return &Receipt{
		Scope: scope, Asked: slices.Sorted(slices.Values(asked)), Items: []Item{}, Enumerated: []string{}, NotEnumerated: map[string]string{},
		Unreadable: []string{}, Unverifiable: []string{}, Remaining: []Item{},
	}
}

// Missed notes what a listing could not see. The first reason of a backend
// stays.
func (r *Receipt) Missed(unreachable map[string]string, unreadable []string) {
	for name, why := range unreachable {
		if _, noted := r.NotEnumerated[name]; !noted {
			r.NotEnumerated[name] = why
		}
	}
	for _, log := range unreadable {
		if !slices.Contains(r.Unreadable, log) {
			r.Unreadable = append(r.Unreadable, log)
		}
	}
}

// Close draws the conclusions at the time of the last look.
func (r *Receipt) Close(at time.Time) {
	r.At = at.UTC()
	r.Enumerated = r.enumerated()
	r.Unverifiable = r.unverifiable()
	slices.SortFunc(r.Remaining, func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
	r.Empty = r.empty()
}

func (r *Receipt) enumerated() []string {
	enumerated := []string{}
	for _, name := range r.Asked {
		if _, missed := r.NotEnumerated[name]; !missed {
			enumerated = append(enumerated, name)
		}
	}
	return enumerated
}

func (r *Receipt) unverifiable() []string {
	ids := []string{}
	for _, item := range r.Items {
		if item.Outcome == OutcomeUnverifiable {
			ids = append(ids, item.ID)
		}
	}
	return ids
}

// empty is true only when each thing that speaks against it is absent. That
// no backend was asked proves nothing.
func (r *Receipt) empty() bool {
	for _, item := range r.Items {
		switch item.Outcome {
		case OutcomeRemoved, OutcomeGone, OutcomeSkipped:
		default:
			return false
		}
	}
	return len(r.Asked) > 0 && len(r.NotEnumerated) == 0 && len(r.Unreadable) == 0 && len(r.Remaining) == 0
}

// Statement returns the receipt as it is signed.
func (r *Receipt) Statement() Statement {
	return Statement{
		Type:          StatementType,
		Subject:       []Subject{{Name: subjectName(r.Scope.Fleet), Digest: map[string]string{"sha256": r.Scope.Digest()}}},
		PredicateType: PredicateType,
		Predicate:     *r,
	}
}

func subjectName(fleet string) string { return "fleet/" + fleet }

// check refuses a statement that contradicts itself, whoever signed it.
func (s Statement) check() error {
	if s.Type != StatementType {
		return fmt.Errorf("it is a statement of the type %.80q, not %s", s.Type, StatementType)
	}
	if s.PredicateType != PredicateType {
		return fmt.Errorf("it says %.80q, not %s", s.PredicateType, PredicateType)
	}
	r := s.Predicate
	want := r.Statement().Subject
	if len(s.Subject) != 1 || s.Subject[0].Name != want[0].Name || !maps.Equal(s.Subject[0].Digest, want[0].Digest) {
		return errors.New("its subject is not the scope that it describes")
	}
	if !slices.Contains([]string{VerbReap, VerbDestroy, VerbLeaks, VerbVerify}, r.Scope.Verb) {
		return fmt.Errorf("%.80q is no verb that gives receipts", r.Scope.Verb)
	}
	if r.At.IsZero() {
		return errors.New("it has no time")
	}
	if v := r.Isolation; v != nil {
		if r.Scope.Verb != VerbVerify || v.Profile != r.Scope.Profile || v.Backend != r.Scope.Backend {
			return errors.New("its verdict is about something else than its scope")
		}
		if err := v.check(); err != nil {
			return fmt.Errorf("its verdict: %w", err)
		}
	}
	if r.Empty != r.empty() || !slices.Equal(r.Enumerated, r.enumerated()) || !slices.Equal(r.Unverifiable, r.unverifiable()) {
		return errors.New("its conclusion is not what its findings give")
	}
	return nil
}
