// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Rule is one thing that has to hold.
type Rule struct {
	ID    string // stable, as in create/idempotent
	Title string // what holds
	// Features are what the rule is about. When the document calls one of
	// them unsupported, the rule does not apply.
	Features []sdk.Feature
	// about are features that the rule is about whether or not they are
	// claimed: what is not has to be refused.
	about    []sdk.Feature
	commands []Command // without which it can't be tried
	fault    Fault     // that it needs
	try      func(c *check)
}

// Rules returns every rule, in the order of a report.
func Rules() []Rule {
	return slices.Concat(
		describeRules(), abilityRules(), createRules(), listRules(), foreignRules(),
		extendRules(), expireRules(), claimRules(), deadlineRules(), destroyRules(),
		execRules(), fileRules(), logRules(), pauseRules(),
		snapshotRules(), restoreRules(), portableRules(), secretRules(), policyRules(), limitRules(), callRules(), faultRules(),
	)
}

// Kit is a run: the instances of the extension and what was made with them.
// It is safe for concurrent use.
type Kit struct {
	suite  Suite
	report Report

	// a is the instance that most is done with, b another one of the same
	// fleet, and other acts for another fleet.
	a, b, other sdk.Extension
	ends        []func()

	// A fault is everybody's: a rule that injects one runs alone.
	alone sync.RWMutex

	mu        sync.Mutex
	leftovers []string
	sequence  int64
}

// Open prepares a run: three configured instances, and a backend that says it
// is usable.
func Open(ctx context.Context, suite Suite) (*Kit, error) {
	suite, err := suite.complete()
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	k := &Kit{suite: suite}
	for _, instance := range []struct {
		ext   *sdk.Extension
		fleet string
	}{{&k.a, suite.Fleet}, {&k.b, suite.Fleet}, {&k.other, k.otherFleet()}} {
		if *instance.ext, err = k.instance(ctx); err == nil {
			_, err = (*instance.ext).Configure(ctx, sdk.ConfigureOptions{Backend: "conformance", Fleet: instance.fleet, Config: suite.Config})
		}
		if err != nil {
			k.end()
			return nil, fmt.Errorf("conformance: get an instance of the extension: %w", err)
		}
	}
	described, err := k.a.Describe(ctx, sdk.DescribeOptions{})
	if err != nil {
		k.end()
		return nil, fmt.Errorf("conformance: describe: %w", err)
	}
	probed, err := k.a.Probe(ctx, sdk.ProbeOptions{})
	if err == nil && !probed.Usable {
		err = fmt.Errorf("the backend is not usable: %s (%s)", probed.Reason, probed.Advice)
	}
	if err != nil {
		k.end()
		return nil, fmt.Errorf("conformance: probe: %w", err)
	}
	k.report = Report{
		Extension: described.Name, Version: described.Version, Document: described.Capabilities, Digest: digest(described.Capabilities),
		Probed: probed.Capabilities, ProbedDigest: digest(probed.Capabilities), Began: suite.Clock.Now().UTC(),
	}
	return k, nil
}

// Rules returns the rules of this run.
func (k *Kit) Rules() []Rule {
	all := Rules()
	if len(k.suite.Only) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(r Rule) bool { return !slices.Contains(k.suite.Only, r.ID) })
}

func (k *Kit) otherFleet() string { return k.suite.Fleet + "-other" }

func (k *Kit) instance(ctx context.Context) (sdk.Extension, error) {
	ext, end, err := k.suite.New(ctx)
	if err != nil {
		return nil, err
	}
	if end != nil {
		k.mu.Lock()
		k.ends = append(k.ends, end)
		k.mu.Unlock()
	}
	return ext, nil
}

func (k *Kit) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, end := range slices.Backward(k.ends) {
		end()
	}
	k.ends = nil
}

// Check tries one rule.
func (k *Kit) Check(ctx context.Context, rule Rule) Row {
	row := Row{ID: rule.ID, Title: rule.Title, Claims: []Claim{}, Evidence: []string{}}
	for _, feature := range slices.Concat(rule.Features, rule.about) {
		row.Claims = append(row.Claims, Claim{feature, k.report.Probed.Of(feature).Class})
	}
	if outcome, reason := k.applies(rule); outcome != "" {
		row.Outcome, row.Reason = outcome, reason
		return row
	}
	if rule.fault == "" {
		k.alone.RLock()
		defer k.alone.RUnlock()
	} else {
		k.alone.Lock()
		defer k.alone.Unlock()
	}
	began := k.suite.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, k.suite.Timing.Rule)
	defer cancel()
	c := &check{kit: k, ctx: ctx, rule: rule, row: &row}
	c.run()
	row.Duration = k.suite.Clock.Now().Sub(began)
	return row
}

// applies decides whether a rule can be tried; an empty outcome is yes.
func (k *Kit) applies(rule Rule) (Outcome, string) {
	for _, feature := range rule.Features {
		if g := k.report.Probed.Of(feature); g.Class == sdk.ClassUnsupported {
			return NotApplicable, fmt.Sprintf("%s is unsupported: %s", feature, g.Reason)
		}
	}
	if reason, excluded := k.suite.Exclude[rule.ID]; excluded {
		return SuiteExcluded, reason
	}
	var lacking []string
	for _, command := range rule.commands {
		reason, lacks := k.suite.Commands.Lacks[command]
		if command == CommandServe && k.suite.Commands.Serve == nil && !lacks {
			reason, lacks = "the suite names none", true
		}
		if lacks {
			lacking = append(lacking, fmt.Sprintf("no command %s: %s", command, reason))
		}
	}
	if len(lacking) > 0 {
		return SuiteExcluded, strings.Join(lacking, "; ")
	}
	if rule.fault != "" && k.suite.Faults[rule.fault] == nil {
		return SuiteExcluded, fmt.Sprintf("the suite has no hook for the fault %s", rule.fault)
	}
	return "", ""
}

// Close ends the run: what is left in its fleets is named and removed, and the
// instances end.
func (k *Kit) Close(ctx context.Context) (leftovers []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.suite.Timing.Rule)
	defer cancel()
	for fleet, ext := range map[string]sdk.Extension{k.suite.Fleet: k.b, k.otherFleet(): k.other} {
		k.sweep(ctx, ext, fleet)
	}
	k.end()
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(slices.Values(k.leftovers))
}

func (k *Kit) left(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leftovers = append(k.leftovers, fmt.Sprintf(format, args...))
}

func (k *Kit) sweep(ctx context.Context, ext sdk.Extension, fleet string) {
	list, err := ext.List(ctx, sdk.ListOptions{Fleet: fleet})
	if err != nil {
		k.left("what is in fleet %s could not be listed: %s", fleet, err)
	}
	for _, s := range list.Sandboxes {
		_, err := ext.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: s.ID, Ref: s.Ref, Fleet: fleet}})
		k.left("sandbox %s (%s)%s", s.ID, s.Status, because(err))
	}
	snapshots, ok := sdk.As[sdk.Snapshotter](ext)
	if !ok {
		return
	}
	listed, err := snapshots.ListSnapshots(ctx, sdk.ListSnapshotsOptions{Fleet: fleet})
	if err != nil && !errors.Is(err, sdk.ErrUnsupported) {
		k.left("the snapshots of fleet %s could not be listed: %s", fleet, err)
	}
	for _, s := range listed.Snapshots {
		_, err := snapshots.DeleteSnapshot(ctx, sdk.DeleteSnapshotOptions{SnapshotID: s.ID, Fleet: fleet})
		k.left("snapshot %s%s", s.ID, because(err))
	}
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// Report returns the report of a run whose rows are given, in any order.
func (k *Kit) Report(rows []Row, leftovers []string) Report {
	r := k.report
	r.Rows, r.Leftovers = []Row{}, append([]string{}, leftovers...)
	byID := map[string]Row{}
	for _, row := range rows {
		byID[row.ID] = row
	}
	for _, rule := range Rules() {
		if row, ok := byID[rule.ID]; ok {
			r.Rows = append(r.Rows, row)
		}
	}
	r.Document, r.Probed = maps.Clone(r.Document), maps.Clone(r.Probed)
	r.Duration = k.suite.Clock.Now().Sub(r.Began)
	r.finish()
	return r
}

// Run tries every rule and returns the report. The error is for a run that
// could not be made at all.
func Run(ctx context.Context, suite Suite) (Report, error) {
	k, err := Open(ctx, suite)
	if err != nil {
		return Report{}, err
	}
	within, cancel := context.WithTimeout(ctx, k.suite.Timing.Budget)
	defer cancel()
	rules := k.Rules()
	rows := make([]Row, len(rules))
	next := make(chan int)
	var workers sync.WaitGroup
	for range k.suite.Parallel {
		workers.Go(func() {
			for i := range next {
				rows[i] = k.Check(within, rules[i])
			}
		})
	}
	for i := range rules {
		next <- i
	}
	close(next)
	workers.Wait()
	return k.Report(rows, k.Close(ctx)), nil
}

// event returns the ledger event behind the next lease record.
func (k *Kit) event() sdk.EventRef {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sequence++
	return sdk.EventRef{LedgerID: "ldg-conformance", Sequence: k.sequence, Hash: sum(fmt.Append(nil, k.suite.Fleet, k.sequence))}
}

// pollUntil looks again and again until look says yes, or the grace is over.
func (k *Kit) pollUntil(ctx context.Context, grace time.Duration, look func() bool) bool {
	for end := k.suite.Clock.Now().Add(grace); ; {
		if look() {
			return true
		}
		if !k.suite.Clock.Now().Before(end) || k.suite.Clock.Sleep(ctx, k.suite.Timing.Poll) != nil {
			return false
		}
	}
}
