// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package fake is the extension that the tests of both sides of the wire
// drive: a backend in memory that follows the lease rules, whose commands do
// on request what an extension may do, good and bad.
package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Extension is the backend. The zero value works.
type Extension struct {
	mu        sync.Mutex
	config    map[string]string
	sandboxes map[string]sdk.Sandbox
	snapshots map[string]sdk.Snapshot
	created   map[string]sdk.CreateOptions
	canceled  int

	// Now is the backend's clock; nil is the real one.
	Now func() time.Time
	// Release ends what hangs when it is closed; nil never does.
	Release chan struct{}
	// SaveStep, when set, is a folder that gets a file for each save step.
	SaveStep string
}

func (e *Extension) now() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}

// Describe implements [sdk.Extension].
func (e *Extension) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	return sdk.DescribeResult{
		Name: "fake", Version: "1.2.3", Summary: "a backend in memory",
		ConfigSchema: []sdk.ConfigKey{{Name: "region", Type: "string", Description: "where", Required: true, Sensitive: true}},
		Capabilities: sdk.Capabilities{
			sdk.FeatureExec:     {Class: sdk.ClassEnforced, Reason: "in memory"},
			sdk.FeatureCPULimit: {Class: sdk.ClassUnsupported, Reason: "none", DependsOnMachine: true},
		},
	}, nil
}

// Configure implements [sdk.Extension]. The key "fail" makes it fail, the key
// "save" sets SaveStep.
func (e *Extension) Configure(_ context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.config = map[string]string{"backend": opts.Backend, "fleet": opts.Fleet}
	if len(opts.Config) > 0 {
		if err := json.Unmarshal(opts.Config, &e.config); err != nil {
			return sdk.ConfigureResult{}, sdk.Invalid("region", "%v", err)
		}
	}
	if path := e.config["fail"]; path != "" {
		return sdk.ConfigureResult{}, sdk.Invalid(path, "is not to my taste")
	}
	if dir := e.config["save"]; dir != "" {
		e.SaveStep = dir
	}
	return sdk.ConfigureResult{}, nil
}

// Probe implements [sdk.Extension]. It shows the environment, the process id
// and the configuration as details.
func (e *Extension) Probe(context.Context, sdk.ProbeOptions) (sdk.ProbeResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	details := []sdk.Detail{{Name: "pid", Value: fmt.Sprint(os.Getpid())}, {Name: "canceled", Value: fmt.Sprint(e.canceled)}}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		details = append(details, sdk.Detail{Name: "env." + name, Value: value})
	}
	for name, value := range e.config {
		details = append(details, sdk.Detail{Name: "config." + name, Value: value})
	}
	if stdin, err := os.Stdin.Read(make([]byte, 1)); stdin == 0 && err != nil {
		details = append(details, sdk.Detail{Name: "stdin", Value: "empty"})
	}
	return sdk.ProbeResult{
		Usable: false, Reason: "it is only in memory", Advice: "use another", Details: details,
		Capabilities: sdk.Capabilities{sdk.FeatureCPULimit: {Class: sdk.ClassBestEffort, Reason: "looked"}},
	}, nil
}

// Create implements [sdk.Extension]. It reports two steps of progress. The
// profile's template says what goes wrong: "hang" waits for the end of the
// context and ignores it for ever, "wait" waits for it and then tells how it
// ended, "crash" ends the process.
func (e *Extension) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "pull", Message: "half", Done: 1, Total: 2})
		opts.Progress(sdk.Progress{Phase: "boot"})
	}
	switch opts.Profile.Template {
	case "hang":
		<-e.Release
	case "wait":
		e.wait(ctx)
		return sdk.CreateResult{}, fmt.Errorf("rolled back %s: %w", opts.ID, ctx.Err())
	case "wait-and-make":
		e.wait(ctx) // and yet the sandbox is made
	case "crash":
		Crash()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if present, ok := e.sandboxes[opts.ID]; ok {
		return sdk.CreateResult{}, sdk.Conflict(present.Lease, "%s exists", opts.ID)
	}
	sandbox := sdk.Sandbox{
		ID: opts.ID, Ref: "ref-" + opts.ID, Status: sdk.StatusCreating, Reason: "just made", Identity: opts.Identity, Incarnation: 1,
		Lease:     sdk.Lease{ExpiresAt: opts.ExpiresAt, MaxExpiresAt: opts.MaxExpiresAt, Generation: 1, Event: opts.Event},
		CreatedAt: e.now(), Endpoints: map[string]string{"web": "127.0.0.1:8080"}, Guards: []sdk.Guard{sdk.GuardBackend},
		OnExpiry: opts.OnExpiry, Profile: opts.Profile,
		IdleTimeout: opts.IdleTimeout, ExpirySnapshotTTL: opts.ExpirySnapshotTTL, PausedTTL: opts.PausedTTL,
		IdleExpiresAt: opts.ExpiresAt.Add(-opts.IdleTimeout), EndReason: sdk.EndIdle, ExpirySnapshotError: "no room",
	}
	if e.sandboxes == nil {
		e.sandboxes, e.snapshots = map[string]sdk.Sandbox{}, map[string]sdk.Snapshot{}
		e.created = map[string]sdk.CreateOptions{}
	}
	e.sandboxes[opts.ID] = sandbox
	e.created[opts.ID] = opts
	return sdk.CreateResult{Sandbox: sandbox}, nil
}

// wait waits for the end of the context and then does a save step.
func (e *Extension) wait(ctx context.Context) {
	<-ctx.Done()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.canceled++
	e.save("save-step")
}

// save leaves a file that says that a save step was done.
func (e *Extension) save(name string) {
	if e.SaveStep != "" {
		_ = os.WriteFile(e.SaveStep+"/"+name, []byte("done"), 0o600)
	}
}

// Close does the last save step.
func (e *Extension) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.save("closed")
	return nil
}

// Created returns the options that a sandbox was created with.
func (e *Extension) Created(id string) sdk.CreateOptions {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.created[id]
}

// find returns a sandbox. The lock is held.
func (e *Extension) find(target sdk.Target) (sdk.Sandbox, error) {
	sandbox, ok := e.sandboxes[target.ID]
	if !ok || (target.Fleet != "" && target.Fleet != sandbox.Identity.Fleet) {
		return sdk.Sandbox{}, sdk.Errorf(sdk.ErrNotFound, "no sandbox %s", target.ID)
	}
	return sandbox, nil
}

// Get implements [sdk.Extension]. An id that begins with "fail-" gives the
// error of [Failures] that the rest names.
func (e *Extension) Get(_ context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	if name, ok := strings.CutPrefix(opts.Target.ID, "fail-"); ok {
		return sdk.GetResult{}, Failures()[name]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sandbox, err := e.find(opts.Target)
	return sdk.GetResult{Sandbox: sandbox}, err
}

// List implements [sdk.Extension].
func (e *Extension) List(_ context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	result := sdk.ListResult{Incomplete: e.config["incomplete"], Unreadable: strings.Fields(e.config["unreadable"])}
	for _, sandbox := range e.sandboxes {
		if sandbox.Identity.Fleet == opts.Fleet {
			result.Sandboxes = append(result.Sandboxes, sandbox)
		}
	}
	slices.SortFunc(result.Sandboxes, func(a, b sdk.Sandbox) int { return strings.Compare(a.ID, b.ID) })
	return result, nil
}

// changeLease applies one of the lease rules.
func (e *Extension) changeLease(target sdk.Target, rule func(sdk.Lease) (sdk.Lease, error)) (sdk.Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sandbox, err := e.find(target)
	if err != nil {
		return sdk.Lease{}, err
	}
	lease, err := rule(sandbox.Lease)
	if err == nil {
		sandbox.Lease = lease
		e.sandboxes[sandbox.ID] = sandbox
	}
	return lease, err
}

// Extend implements [sdk.Extension].
func (e *Extension) Extend(_ context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
	lease, err := e.changeLease(opts.Target, func(l sdk.Lease) (sdk.Lease, error) {
		return sdk.ExtendLease(l, e.now(), opts.Generation, opts.ExpiresAt, opts.Event)
	})
	return sdk.ExtendResult{Lease: lease}, err
}

// Expire implements [sdk.Extension].
func (e *Extension) Expire(_ context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
	lease, err := e.changeLease(opts.Target, func(l sdk.Lease) (sdk.Lease, error) {
		return sdk.ExpireLease(l, e.now(), opts.Generation, opts.ExpiresAt, opts.Event)
	})
	return sdk.ExpireResult{Lease: lease}, err
}

// Claim implements [sdk.Extension].
func (e *Extension) Claim(_ context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	lease, err := e.changeLease(opts.Target, func(l sdk.Lease) (sdk.Lease, error) {
		return sdk.ClaimLease(l, e.now(), opts.Generation, opts.Holder, opts.OnlyExpired, opts.Event)
	})
	return sdk.ClaimResult{Lease: lease}, err
}

// Destroy implements [sdk.Extension]. A sandbox whose profile is named
// "sticky" leaves something behind.
func (e *Extension) Destroy(_ context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sandbox, err := e.find(opts.Target)
	if err != nil {
		return sdk.DestroyResult{}, nil
	}
	if sandbox.Profile.Name == "sticky" {
		return sdk.DestroyResult{Existed: true, Removed: []string{"process 1"}, Leftovers: []string{"volume v: busy"}},
			sdk.Errorf(sdk.ErrUnreachable, "volume v is busy")
	}
	delete(e.sandboxes, sandbox.ID)
	return sdk.DestroyResult{Existed: true, Removed: []string{"process 1", "volume v"}}, nil
}

// Failures are the errors that Get returns on request, by name.
func Failures() map[string]error {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	lease := sdk.Lease{ExpiresAt: at, MaxExpiresAt: at.Add(time.Hour), Generation: 7, Claimed: true, ClaimHolder: "reaper", Event: sdk.EventRef{LedgerID: "l", Sequence: 3, Hash: "h"}}
	return map[string]error{
		"not-found": sdk.Errorf(sdk.ErrNotFound, "no such thing"),
		"expired":   sdk.Expired(lease, "too late"),
		"conflict":  sdk.Conflict(lease, "someone was faster"),
		"unsupported": &sdk.Error{
			Kind: sdk.ErrUnsupported, Path: "limits.cpus", Message: "no cgroups", Advice: "use another backend",
		},
		"unreachable": &sdk.Error{
			Kind: sdk.ErrUnreachable, Message: "no answer", RetryAfter: 3 * time.Second, Err: fmt.Errorf("dial: refused"),
		},
		"unauthenticated": sdk.Errorf(sdk.ErrUnauthenticated, "who are you"),
		"quota":           &sdk.Error{Kind: sdk.ErrQuota, RetryAfter: time.Minute},
		"invalid":         sdk.Invalid("network.allow", "%q is no address", "x"),
		"crashed":         sdk.Errorf(sdk.ErrCrashed, "my own backend crashed"),
		"wrapped":         fmt.Errorf("while looking: %w", sdk.Conflict(lease, "someone was faster")),
		"bare":            fmt.Errorf("bare: %w", sdk.ErrQuota),
		"two-kinds":       fmt.Errorf("%w and %w", sdk.ErrUnreachable, sdk.ErrUnauthenticated),
		"deadline":        fmt.Errorf("my own timeout: %w", context.DeadlineExceeded),
		"no-kind":         fmt.Errorf("just broken"),
		"not-utf8":        sdk.Errorf(sdk.ErrInvalid, "bytes \xff\xfe"),
		"long":            sdk.Errorf(sdk.ErrInvalid, "%s", strings.Repeat("x", 1<<20)),
	}
}
