// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// The extension: who it is, what it promises, and how it talks to the
// vendor. This is the file to begin with when writing one.

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Name is the extension's name.
const Name = "saas-stub"

// Extension speaks to a [Server] for one backend.
type Extension struct {
	described sdk.DescribeResult
	wait      clock.Clock // for the pauses between two tries

	mu      sync.Mutex
	api     API
	account string // which one of the vendor's it is
	backend string
	fleet   string
}

// The compiler checks what the extension says it can do.
var (
	_ sdk.Extension           = (*Extension)(nil)
	_ sdk.Execer              = (*Extension)(nil)
	_ sdk.Copier              = (*Extension)(nil)
	_ sdk.Logger              = (*Extension)(nil)
	_ sdk.Pauser              = (*Extension)(nil)
	_ sdk.Preparer            = (*Extension)(nil)
	_ sdk.PortableSnapshotter = (*Extension)(nil)
	_ sdk.Inspector           = (*Extension)(nil)
)

// Options are the options of [New].
type Options struct {
	// Server is the vendor; nil takes the one whose store is the file that
	// the configuration names.
	Server *Server
	// Capabilities replaces single classes of the document, so that a test
	// can have a backend that promises more or less.
	Capabilities sdk.Capabilities
}

// New returns an extension. Nothing is called until it is used.
func New(options Options) *Extension {
	e := &Extension{described: description(), wait: clock.System{}, account: "memory"}
	if options.Server != nil {
		e.api = &options.Server.faults
	}
	maps.Copy(e.described.Capabilities, options.Capabilities)
	return e
}

func description() sdk.DescribeResult {
	enforced := func(reason string) sdk.Guarantee { return sdk.Guarantee{Class: sdk.ClassEnforced, Reason: reason} }
	unsupported := func(reason string) sdk.Guarantee {
		return sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: reason}
	}
	files := enforced("a box is its files")
	none := enforced("the interpreter has no network")
	noNetwork := unsupported("the interpreter has no network")
	noLimit := unsupported("a box has no limits")
	noSource := unsupported("a box begins empty, or from an image of the account")
	lease := enforced("conditional updates of the box's tags")
	return sdk.DescribeResult{
		Name: Name, Version: "0.1.0", Summary: "A cloud that does not exist: for tests and as an example",
		ConfigSchema: []sdk.ConfigKey{{Name: "file", Type: "string", Description: "File that keeps the cloud, for tests in which several processes share it"}},
		Capabilities: sdk.Capabilities{
			sdk.FeatureKernelIsolation:       unsupported("a box runs no program"),
			sdk.FeatureCPULimit:              noLimit,
			sdk.FeatureMemoryLimit:           noLimit,
			sdk.FeaturePidsLimit:             noLimit,
			sdk.FeatureDiskLimit:             noLimit,
			sdk.FeatureEgressNone:            none,
			sdk.FeatureEgressDeny:            none,
			sdk.FeatureEgressCIDR:            noNetwork,
			sdk.FeatureEgressDomain:          noNetwork,
			sdk.FeatureEgressOpen:            noNetwork,
			sdk.FeatureSecretsOutside:        unsupported("secrets are files inside"),
			sdk.FeatureSecretFiles:           enforced("secrets are never stored"),
			sdk.FeatureDeadline:              enforced("the vendor stops a box at its deadline"),
			sdk.FeatureExtend:                lease,
			sdk.FeatureExtendCAS:             lease,
			sdk.FeatureClaim:                 lease,
			sdk.FeatureExpirySnapshot:        enforced("the vendor's on_stop"),
			sdk.FeatureExpiryPause:           enforced("the vendor's on_stop"),
			sdk.FeatureIdleTimeout:           enforced("the vendor's idle_stop; it stands still while a box is paused, and a resume begins it anew"),
			sdk.FeatureIdleExec:              enforced("a command is a use when it begins and when it ends"),
			sdk.FeatureIdleFiles:             enforced("so is a move of files"),
			sdk.FeatureIdlePorts:             noNetwork,
			sdk.FeatureIdleProcesses:         unsupported("the vendor does not look into a box"),
			sdk.FeatureIdempotentCreate:      enforced("names are unique in an account"),
			sdk.FeatureListComplete:          enforced("each page carries the total"),
			sdk.FeatureFilesystemSnapshot:    files,
			sdk.FeatureMemorySnapshot:        enforced("no process outlives its command, so files and environment are all there is"),
			sdk.FeatureSnapshotLeavesRunning: files,
			sdk.FeatureRestore:               files,
			sdk.FeatureFork:                  files,
			sdk.FeaturePortableSnapshot:      enforced("files as an OCI layout; what comes in keeps files and directories"),
			sdk.FeaturePause:                 enforced("the vendor's pause"),
			sdk.FeatureExec:                  enforced("an interpreter of a few words"),
			sdk.FeatureFiles:                 files,
			sdk.FeaturePorts:                 noNetwork,
			sdk.FeatureLogs:                  enforced("what the main process has written by the vendor's clock"),
			sdk.FeatureNetworkLog:            noNetwork,
			sdk.FeatureCredentialIsolation:   {Class: sdk.ClassUnverifiable, Reason: "earned by `sandboxer profile verify`, for each revision of a profile", DependsOnMachine: true},
			sdk.FeatureHostRoot:              enforced("a box begins empty"),
			sdk.FeatureImageFile:             noSource,
			sdk.FeatureImagePull:             noSource,
			sdk.FeatureImageBuild:            noSource,
			sdk.FeatureCompose:               noSource,
			sdk.FeatureMachine:               unsupported("a box is no machine"),
			sdk.FeatureTemplate:              unsupported("the vendor has no templates"),
			sdk.FeatureRuntime:               unsupported("the interpreter is the only runtime"),
		},
	}
}

// Describe returns who the extension is.
func (e *Extension) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	described := e.described
	described.Capabilities = maps.Clone(described.Capabilities)
	return described, nil
}

// Configure takes the configuration of a backend.
func (e *Extension) Configure(_ context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	var keys map[string]json.RawMessage
	if len(opts.Config) > 0 {
		if err := json.Unmarshal(opts.Config, &keys); err != nil {
			return sdk.ConfigureResult{}, sdk.Invalid("config", "it is not a JSON object: %s", err)
		}
	}
	file := ""
	// Sorted, so that the same configuration gives the same error.
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key != "file" {
			return sdk.ConfigureResult{}, sdk.Invalid(key, "%s has no such key; it knows file", Name)
		}
		if err := json.Unmarshal(keys[key], &file); err != nil {
			return sdk.ConfigureResult{}, sdk.Invalid(key, "it is not a string")
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.backend, e.fleet = opts.Backend, opts.Fleet
	if file != "" {
		e.account = file
		e.api = &NewServer(ServerOptions{File: file}).faults
	}
	if e.api == nil {
		return sdk.ConfigureResult{}, sdk.Invalid("file", "the backend %q names no file", opts.Backend)
	}
	return sdk.ConfigureResult{}, nil
}

// Probe asks the vendor for one box.
func (e *Extension) Probe(ctx context.Context, _ sdk.ProbeOptions) (sdk.ProbeResult, error) {
	e.mu.Lock()
	result := sdk.ProbeResult{Usable: true, Capabilities: maps.Clone(e.described.Capabilities), Instance: e.account}
	e.mu.Unlock()
	err := e.try(ctx, func(api API) error {
		page, err := api.ListBoxes(ctx, ListRequest{Limit: 1})
		if err == nil && len(page.Items) > 0 {
			result.Details = append(result.Details, sdk.Detail{Name: "oldest box", Value: page.Items[0].ID})
		}
		return err
	})
	if err != nil {
		result.Usable, result.Reason, result.Advice = false, err.Error(), "see whether the vendor reports an outage"
	}
	return result, ctx.Err()
}

const (
	// tries bounds how often a request is made that was not carried out.
	tries = 5
	// pauseFirst is the first pause between two tries; it doubles. A vendor
	// that names a longer one is obeyed up to pauseMost.
	pauseFirst = 5 * time.Millisecond
	pauseMost  = 2 * time.Second
)

// try makes a request, and makes it again only when the vendor said that it
// was not carried out and may be repeated: too many requests, or a thing in
// transition. A lost answer is not repeated here: only the caller knows
// whether that is safe.
func (e *Extension) try(ctx context.Context, request func(api API) error) error {
	e.mu.Lock()
	api := e.api
	e.mu.Unlock()
	if api == nil {
		return sdk.Invalid("file", "the backend has not been configured")
	}
	pause := pauseFirst
	for attempt := 1; ; attempt++ {
		err := request(api)
		if err == nil || attempt == tries || (!hasCode(err, CodeRateLimited) && !hasCode(err, CodeInTransition)) {
			return e.translate(err)
		}
		var answer *APIError
		if errors.As(err, &answer) && answer.RetryAfter > pauseMost {
			return e.translate(err) // the caller decides whether to wait that long
		}
		if err := e.wait.Sleep(ctx, max(pause, answer.RetryAfter)); err != nil {
			return err
		}
		pause *= 2
	}
}

// translate gives a vendor's answer its kind.
func (e *Extension) translate(err error) error {
	var answer *APIError
	if !errors.As(err, &answer) {
		return err
	}
	kind := map[int]error{401: sdk.ErrUnauthenticated, 403: sdk.ErrUnauthenticated, 404: sdk.ErrNotFound, 409: sdk.ErrConflict, 422: sdk.ErrInvalid, 429: sdk.ErrQuota}[answer.Status]
	if kind == nil {
		kind = sdk.ErrUnreachable
	}
	if answer.Code == CodeInTransition {
		kind = sdk.ErrUnreachable // it can't be acted on now
	}
	return &sdk.Error{Kind: kind, Message: "backend " + e.backend, RetryAfter: answer.RetryAfter, Err: err}
}

// answerLost reports whether a request may have been carried out although it
// failed.
func answerLost(err error) bool {
	var answer *APIError
	return errors.As(err, &answer) && (answer.Status == 0 || answer.Status >= 500)
}

// discard is where output goes that nobody wants.
func discard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
