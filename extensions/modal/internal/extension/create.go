// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// Making sandboxes. The id is the sandbox's name, which one that runs has in an
// app, so that a second create of it fails. A create whose answer did not come
// is not repeated: it is searched for, and adopted or ended.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// longest is the lifetime that the vendor gives at most.
	longest = 24 * time.Hour
	// grace is by how much the vendor's lifetime outlives the lease's maximum:
	// it is the second guard, and not to come first.
	grace = time.Minute
	// createDeadline bounds one create: it waits for a place to run.
	createDeadline = 3 * time.Minute
)

// imagePrefix makes an image of a profile one of the workspace.
const imagePrefix = "modal:"

// source is the image that a profile names.
type source struct {
	name     string // a reference of a registry, or an image of the workspace
	path     string // the attribute that names it
	existing bool   // of the workspace
}

// sourceOf returns the image of a profile.
func (e *Extension) sourceOf(p sdk.Profile) (source, error) {
	s := source{name: e.settings.DefaultImage, path: "image"}
	switch own, prefixed := strings.CutPrefix(p.Image, imagePrefix); {
	case p.Template != "":
		s = source{p.Template, "template", true}
	case prefixed:
		s = source{own, "image", true}
	case p.Image != "":
		s.name = p.Image
	}
	if s.name == "" || len(s.name) > 512 || strings.ContainsFunc(s.name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return s, sdk.Invalid(s.path, "%.80q is no image", s.name)
	}
	return s, nil
}

// image has the vendor find or build an image, once in a process.
func (e *Extension) image(ctx context.Context, app *modal.App, from source) (*modal.Image, error) {
	key := fmt.Sprint(from.existing, " ", from.name)
	e.mu.Lock()
	known := e.images[key]
	e.mu.Unlock()
	if known != nil {
		return known, nil
	}
	vendor, err := e.client.vendor()
	if err != nil {
		return nil, err
	}
	// A build pulls, which can take long; whoever asks bounds it.
	var made *modal.Image
	switch {
	case from.existing && strings.HasPrefix(from.name, "im-"):
		made, err = vendor.Images.FromID(ctx, from.name, nil)
	case from.existing:
		made, err = vendor.Images.FromName(ctx, from.name, &modal.ImageFromNameParams{Environment: e.client.environment()})
	default:
		made, err = vendor.Images.FromRegistry(from.name, nil).Build(ctx, app, nil)
	}
	if err != nil {
		err = e.client.translate(ctx, err)
		if errors.Is(err, sdk.ErrNotFound) || errors.Is(err, sdk.ErrInvalid) {
			return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: from.path, Message: fmt.Sprintf("Modal has no image %q and can't make it", from.name), Err: err}
		}
		return nil, err
	}
	e.mu.Lock()
	e.images[key] = made
	e.mu.Unlock()
	return made, nil
}

// Create makes a sandbox and returns when it can be used.
func (e *Extension) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	if err := errors.Join(ctx.Err(), opts.Check(e.now()), refuse(opts, false)); err != nil {
		return sdk.CreateResult{}, err
	}
	from, err := e.sourceOf(opts.Profile)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	app, err := e.client.app(ctx, appName(opts.Identity.Fleet), true)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "pull", Message: "Modal finds " + from.name})
	}
	image, err := e.image(ctx, app, from)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	return e.create(ctx, opts, app, image, origin{})
}

// origin is what a new sandbox has from a snapshot.
type origin struct {
	snapshot bool
	secrets  bool // of the source, which are to go
	keeps    bool // them, and they are to stay: it goes on in the place of its source
	// generation is the lease's, of one that goes on and whose lock is held;
	// zero is a new one.
	generation int64
}

// create makes a sandbox from an image.
func (e *Extension) create(ctx context.Context, opts sdk.CreateOptions, app *modal.App, image *modal.Image, from origin) (sdk.CreateResult, error) {
	lease, lifetime, err := e.lifeOf(opts)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	if from.generation > 0 {
		lease.Generation = from.generation
	}
	setup, err := newSetup(opts, from)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	params, err := e.params(ctx, opts)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	params.Timeout = lifetime
	o := object{
		Identity: opts.Identity, Profile: opts.Profile, OnExpiry: opts.OnExpiry, IdleTimeout: opts.IdleTimeout, PausedTTL: opts.PausedTTL,
		Secrets: len(opts.Secrets) > 0 || from.keeps, EndsAt: e.now().Add(lifetime).UTC(),
	}
	if o.OnExpiry == "" {
		o.OnExpiry = sdk.OnExpiryDestroy
	}
	o.Identity.Incarnation = max(1, o.Identity.Incarnation)
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	nonce, phase := hex.EncodeToString(random), phaseReady
	if !setup.empty() {
		phase = phaseCreating
	}
	params.Tags = map[string]string{tagID: opts.ID, tagFleet: fleetKey(opts.Identity.Fleet), tagNonce: nonce, tagPhase: phase}
	pack(params.Tags, tagObject, o)
	pack(params.Tags, tagLease, lease)
	made, err := e.makeOne(ctx, opts, app, image, params, nonce)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	f, err := e.meaning(made, opts.Identity.Fleet)
	if err != nil {
		return sdk.CreateResult{}, e.undo(ctx, opts, err)
	}
	if err := granted(f, lifetime); err != nil {
		return sdk.CreateResult{}, e.undo(ctx, opts, err)
	}
	if !setup.empty() {
		if err := e.setUp(ctx, f, setup); err != nil {
			return sdk.CreateResult{}, e.undo(ctx, opts, err)
		}
		tunnels, target := f.vendor.tunnels, sdk.Target{ID: opts.ID, Ref: made.ref, Fleet: opts.Identity.Fleet}
		mark := func() (err error) { f, err = e.markReady(ctx, target); return err }
		if from.generation > 0 {
			err = mark() // its lease is being changed, under the lock
		} else {
			err = e.records.locked(ctx, opts.ID, mark)
		}
		if err != nil {
			return sdk.CreateResult{}, e.undo(ctx, opts, err)
		}
		f.vendor.tunnels = tunnels
	}
	if err := e.addEndpoints(ctx, &f); err != nil {
		return sdk.CreateResult{}, e.undo(ctx, opts, err)
	}
	return sdk.CreateResult{Sandbox: f.sandbox}, nil
}

// lifeOf returns the lease of a new sandbox and the lifetime that the vendor is
// told, which nothing changes later: that of the lease's maximum.
func (e *Extension) lifeOf(opts sdk.CreateOptions) (sdk.Lease, time.Duration, error) {
	now := e.now()
	lease := sdk.Lease{ExpiresAt: opts.ExpiresAt.UTC(), MaxExpiresAt: opts.MaxExpiresAt.UTC(), Generation: 1, Event: opts.Event}
	if opts.MaxExpiresAt.IsZero() || lease.MaxExpiresAt.Before(lease.ExpiresAt) {
		lease.MaxExpiresAt = lease.ExpiresAt
	}
	if limits := opts.Profile.Limits; limits != nil && limits.Wall != "" {
		wall, err := time.ParseDuration(limits.Wall)
		if err != nil || wall <= 0 {
			return lease, 0, sdk.Invalid("limits.wall", "%.40q is no length of time", limits.Wall)
		}
		if latest := now.Add(wall).UTC(); lease.MaxExpiresAt.After(latest) {
			lease.MaxExpiresAt = latest
		}
		if lease.ExpiresAt.After(lease.MaxExpiresAt) {
			lease.ExpiresAt = lease.MaxExpiresAt
		}
	}
	if life := lease.ExpiresAt.Sub(now); life > longest-grace {
		return lease, 0, &sdk.Error{
			Kind: sdk.ErrInvalid, Path: "ttl", Message: fmt.Sprintf("a life of %s is longer than the %s that Modal gives, less %s that it outlives the lease", life.Round(time.Second), longest, grace),
			Advice: "ask for less, and take a snapshot for what has to go on",
		}
	}
	// A maximum is what can be reached, not what was wished for.
	if latest := now.Add(longest - grace).UTC(); lease.MaxExpiresAt.After(latest) && e.settings.BeyondMax != beyondReplace {
		lease.MaxExpiresAt = latest
	}
	lifetime := lease.MaxExpiresAt.Sub(now) + grace
	return lease, min((lifetime + time.Second - 1).Truncate(time.Second), longest), nil
}

// granted compares the lifetime that the service shows with what was asked for.
func granted(f found, lifetime time.Duration) error {
	if f.vendor.timeout == 0 || f.vendor.timeout >= lifetime {
		return nil
	}
	return sdk.Errorf(sdk.ErrQuota, "Modal gives sandbox %s a lifetime of %s, and %s was asked for", f.sandbox.ID, f.vendor.timeout, lifetime)
}

// params are the parameters of a create that a profile decides.
func (e *Extension) params(ctx context.Context, opts sdk.CreateOptions) (*modal.SandboxCreateParams, error) {
	p := opts.Profile
	vendor, err := e.client.vendor()
	if err != nil {
		return nil, err
	}
	params := &modal.SandboxCreateParams{
		Name: opts.ID, Workdir: p.Workdir, Regions: e.settings.Regions, Cloud: e.settings.Cloud, IdleTimeout: opts.IdleTimeout,
		Runtime: modal.SandboxRuntime(p.Runtime), Env: map[string]string{"SANDBOXER_ID": opts.ID},
		// The entrypoint's end is the sandbox's, so that the profile's command is
		// not the entrypoint.
		Command: []string{"sleep", "172800"},
	}
	if p.Workdir != "" && !strings.HasPrefix(p.Workdir, "/") {
		return nil, sdk.Invalid("workdir", "%.80q is not an absolute path", p.Workdir)
	}
	maps.Copy(params.Env, p.Env)
	maps.Copy(params.Env, opts.Env)
	for name := range opts.Secrets {
		params.Env[name+"_FILE"] = secretsDir + "/" + name
	}
	for name, value := range params.Env {
		if !isVariable(name) || strings.ContainsRune(value, 0) {
			return nil, sdk.Invalid("env", "%.80q is not a variable that Modal takes: letters, digits and _ make its name", name)
		}
	}
	if p.Limits != nil {
		if params.CPU, params.CPULimit = p.Limits.CPUs, p.Limits.CPUs; p.Limits.CPUs < 0 {
			return nil, sdk.Invalid("limits.cpus", "%g is no number of cores", p.Limits.CPUs)
		}
		if p.Limits.Memory != "" {
			bytes, err := sdk.ParseSize(p.Limits.Memory)
			if err != nil || bytes > math.MaxInt32<<20 {
				return nil, sdk.Invalid("limits.memory", "%.40q is no size that Modal takes", p.Limits.Memory)
			}
			// Whole mebibytes, and no more than was asked for.
			params.MemoryMiB = int(max(1, bytes>>20))
			params.MemoryLimitMiB = params.MemoryMiB
		}
	}
	e.network(p, params)
	for at, name := range e.settings.Volumes {
		volume, err := vendor.Volumes.FromName(ctx, name, &modal.VolumeFromNameParams{Environment: e.client.environment()})
		if err != nil {
			return nil, e.blamed(ctx, err, "volumes", name)
		}
		if params.Volumes == nil {
			params.Volumes = map[string]*modal.Volume{}
		}
		params.Volumes[at] = volume
	}
	for _, name := range e.settings.Secrets {
		secret, err := vendor.Secrets.FromName(ctx, name, &modal.SecretFromNameParams{Environment: e.client.environment()})
		if err != nil {
			return nil, e.blamed(ctx, err, "secrets", name)
		}
		params.Secrets = append(params.Secrets, secret)
	}
	return params, nil
}

// blamed puts an error about a thing of the workspace on its setting.
func (e *Extension) blamed(ctx context.Context, err error, path, name string) error {
	err = e.client.translate(ctx, err)
	if errors.Is(err, sdk.ErrNotFound) {
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: path, Message: fmt.Sprintf("the workspace has no %q", name), Err: err}
	}
	return err
}

// network puts the policy of a profile, and its ports, in the vendor's words.
func (e *Extension) network(p sdk.Profile, params *modal.SandboxCreateParams) {
	for _, port := range p.Ports {
		if e.settings.Tunnels == tunnelsTCP {
			params.UnencryptedPorts = append(params.UnencryptedPorts, port)
		} else {
			params.EncryptedPorts = append(params.EncryptedPorts, port)
		}
	}
	egress, allow := sdk.EgressNone, []string(nil)
	if p.Network != nil {
		if p.Network.Egress != "" {
			egress = p.Network.Egress
		}
		allow = p.Network.Allow
	}
	switch {
	case egress == sdk.EgressOpen:
	case egress == sdk.EgressNone && len(p.Ports) == 0:
		params.BlockNetwork = true
	default:
		// Lists that are there and empty deny everything, and let tunnels in.
		params.OutboundCIDRAllowlist, params.OutboundDomainAllowlist = &modal.Allowlist{Entries: []string{}}, &modal.Allowlist{Entries: []string{}}
		if egress == sdk.EgressNone {
			return
		}
		for _, entry := range allow {
			a, err := sdk.ParseAllow(entry)
			switch {
			case err != nil: // it has been refused
			case a.IsAddress():
				params.OutboundCIDRAllowlist.Entries = append(params.OutboundCIDRAllowlist.Entries, a.Prefix.String())
			default:
				params.OutboundDomainAllowlist.Entries = append(params.OutboundDomainAllowlist.Entries, a.Name)
			}
		}
	}
}

func isVariable(name string) bool {
	for i, c := range name {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// makeOne asks for a sandbox and makes sure that there is one.
func (e *Extension) makeOne(ctx context.Context, opts sdk.CreateOptions, app *modal.App, image *modal.Image, params *modal.SandboxCreateParams, nonce string) (vendorSandbox, error) {
	vendor, err := e.client.vendor()
	if err != nil {
		return vendorSandbox{}, err
	}
	sent := e.now()
	within, cancel := context.WithTimeout(ctx, createDeadline)
	defer cancel()
	made, err := vendor.Sandboxes.Create(within, app, image, params)
	if err != nil {
		said := e.client.translate(ctx, err)
		switch {
		case errors.Is(said, sdk.ErrNotFound):
			// The app or the image was removed since it was asked for.
			e.client.dropApp(app.Name)
			e.mu.Lock()
			clear(e.images)
			e.mu.Unlock()
			return vendorSandbox{}, &sdk.Error{Kind: sdk.ErrInvalid, Path: "image", Message: "Modal does not know the app or the image of sandbox " + opts.ID + " any more", Err: said, Advice: "try again"}
		case errors.Is(said, sdk.ErrConflict):
			return e.taken(ctx, opts, nonce, said)
		case isLost(said), ctx.Err() != nil, errors.Is(said, sdk.ErrUnreachable):
			return e.adopt(ctx, opts, nonce, sent, said)
		}
		return vendorSandbox{}, said
	}
	e.mu.Lock()
	e.handles[made.SandboxID] = made
	e.mu.Unlock()
	// A look at what was made: whether it lives, and with what lifetime.
	all, incomplete, err := e.byID(ctx, opts.ID, opts.Identity.Fleet)
	for _, v := range all {
		if v.ref == made.SandboxID {
			return v, nil
		}
	}
	if err == nil {
		var end *ending
		if end, err = e.client.ended(ctx, made.SandboxID, 0); err == nil && end == nil && incomplete == "" {
			// A listing may lag.
			return vendorSandbox{ref: made.SandboxID, tags: params.Tags}, nil
		}
		if end != nil {
			err = sdk.Errorf(sdk.ErrUnreachable, "Modal made sandbox %s as %s, which is dead right after: %s", opts.ID, made.SandboxID, end)
		}
	}
	if err == nil {
		err = sdk.Errorf(sdk.ErrUnreachable, "what was made could not be looked at: %s", incomplete)
	}
	return vendorSandbox{}, e.undo(ctx, opts, err)
}

// taken looks at what has the name of a create already. It is this create's own
// when the service was asked twice for it.
func (e *Extension) taken(ctx context.Context, opts sdk.CreateOptions, nonce string, cause error) (vendorSandbox, error) {
	all, _, err := e.byID(ctx, opts.ID, opts.Identity.Fleet)
	if err != nil {
		return vendorSandbox{}, errors.Join(cause, err)
	}
	for _, v := range all {
		if v.tags[tagNonce] == nonce {
			return v, nil
		}
	}
	if len(all) == 0 {
		return vendorSandbox{}, cause
	}
	f, err := e.meaning(all[0], opts.Identity.Fleet)
	if err != nil {
		return vendorSandbox{}, errors.Join(cause, err)
	}
	return vendorSandbox{}, sdk.Conflict(f.lease, "sandbox %s exists as Modal sandbox %s", opts.ID, f.vendor.ref)
}

const (
	// The pauses between two looks for a sandbox whose create had no answer.
	adoptPause = 200 * time.Millisecond
	adoptMost  = 5 * time.Second
	// cleanupDeadline bounds the removal of what a failed create has made, which
	// goes on when the caller has given up.
	cleanupDeadline = 30 * time.Second
)

// adopt searches for the sandbox of a create without an answer. When the caller
// has given up, what is found is ended.
func (e *Extension) adopt(ctx context.Context, opts sdk.CreateOptions, nonce string, sent time.Time, cause error) (vendorSandbox, error) {
	for pause := adoptPause; ; pause = min(2*pause, adoptMost) {
		if ctx.Err() != nil {
			return vendorSandbox{}, e.undo(ctx, opts, errors.Join(ctx.Err(), cause))
		}
		all, _, err := e.byID(ctx, opts.ID, opts.Identity.Fleet)
		for _, v := range all {
			if v.tags[tagNonce] == nonce {
				return v, nil
			}
			if f, err := e.meaning(v, opts.Identity.Fleet); err == nil {
				return vendorSandbox{}, sdk.Conflict(f.lease, "sandbox %s exists as Modal sandbox %s", opts.ID, v.ref)
			}
		}
		if e.now().Sub(sent) >= e.opts.Settle {
			return vendorSandbox{}, &sdk.Error{
				Kind: sdk.ErrUnreachable, Err: errors.Join(cause, err),
				Message: fmt.Sprintf("Modal gave no answer to the create of sandbox %s, and %s later there is none", opts.ID, e.opts.Settle),
			}
		}
		if err := e.opts.Clock.Sleep(ctx, pause); err != nil {
			continue // it is looked at once more, and undone
		}
	}
}

// undo ends what was made and can't be used.
func (e *Extension) undo(ctx context.Context, opts sdk.CreateOptions, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupDeadline)
	defer cancel()
	_, err := e.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet}})
	if err != nil {
		err = fmt.Errorf("and it could not be removed: %w", err)
	}
	return errors.Join(fmt.Errorf("sandbox %s could not be made: %w", opts.ID, cause), err)
}
