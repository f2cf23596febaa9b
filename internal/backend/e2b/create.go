// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// Making sandboxes. The service's create can't be repeated: an answer that did
// not come is searched for, and what was made is adopted or deleted.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// imagePrefix makes an image of a profile a template.
const imagePrefix = "e2b:"

// baseTemplate is what a sandbox is made from whose profile names nothing.
const baseTemplate = "base"

// source is the template that a profile names.
type source struct {
	ref   string
	path  string     // the attribute that names it
	build *buildSpec // what it is built from first, see ensure
}

// blame puts an error about a template on its attribute.
func (s source) blame(err error) error {
	if !absent(err) {
		return err
	}
	return &sdk.Error{Kind: sdk.ErrInvalid, Path: s.path, Err: err, Message: fmt.Sprintf("E2B has no template %q that is ready and that the team may use", s.ref),
		Advice: "its dashboard lists the team's templates"}
}

func isPath(image string) bool {
	return strings.HasPrefix(image, "/") || strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}

// sourceOf returns the template of a profile.
func sourceOf(p sdk.Profile) (source, error) {
	s := source{ref: baseTemplate, path: "image"}
	switch {
	case p.Template != "":
		s = source{ref: p.Template, path: "template"}
	case p.Build != nil:
		spec, err := readBuild(*p.Build)
		return source{path: "build", build: &spec}, err
	case strings.HasPrefix(p.Image, imagePrefix):
		s.ref = strings.TrimPrefix(p.Image, imagePrefix)
	case p.Image != "":
		if !isReference(p.Image) {
			return s, sdk.Invalid("image", "%.80q is neither a reference nor e2b:TEMPLATE", p.Image)
		}
		return source{path: "image", build: &buildSpec{FromImage: p.Image, Steps: []buildStep{}}}, nil
	}
	if s.ref == "" || len(s.ref) > 256 || strings.Trim(s.ref, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:") != "" {
		return s, sdk.Invalid(s.path, "%.80q is no template: ID, NAME or TEAM/NAME, with :TAG where wanted", s.ref)
	}
	return s, nil
}

// Create makes a sandbox and returns when it can be used.
func (e *Extension) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	if err := errors.Join(opts.Check(e.now()), refuse(opts, false)); err != nil {
		return sdk.CreateResult{}, err
	}
	from, err := sourceOf(opts.Profile)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	if from, err = e.ensure(ctx, from, opts.Progress); err != nil {
		return sdk.CreateResult{}, err
	}
	return e.create(ctx, opts, from, true)
}

// create makes a sandbox from a template or a snapshot. fresh says that it
// has nothing of the profile's in it yet.
func (e *Extension) create(ctx context.Context, opts sdk.CreateOptions, from source, fresh bool) (sdk.CreateResult, error) {
	fleet := opts.Identity.Fleet
	o, err := e.objectFor(opts)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	setup, err := newSetup(opts, fresh)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	kept := record{
		Version: recordVersion, ID: opts.ID, Fleet: fleet, Phase: phaseCreating,
		Lease: sdk.Lease{ExpiresAt: o.ExpiresAt, MaxExpiresAt: o.Max, Generation: 1, Event: opts.Event},
	}
	if err := e.records.reserve(kept); err != nil {
		if !errors.Is(err, errReserved) {
			return sdk.CreateResult{}, err
		}
		// The record of a sandbox that is gone does not stand in the way.
		s, findErr := e.find(ctx, sdk.Target{ID: opts.ID, Fleet: fleet})
		if findErr == nil {
			return sdk.CreateResult{}, sdk.Conflict(s.sandbox.Lease, "sandbox %s exists as E2B sandbox %s", opts.ID, s.sandbox.Ref)
		}
		return sdk.CreateResult{}, sdk.Conflict(kept.Lease, "sandbox %s is being made, or a create of it did not end (%s)", opts.ID, findErr)
	}
	made, err := e.makeOne(ctx, opts, from, o, &kept)
	if err != nil {
		// Nothing that could be found was made: the id is free again.
		return sdk.CreateResult{}, errors.Join(err, e.records.drop(opts.ID))
	}
	if err := e.setUp(ctx, made, setup); err != nil {
		return sdk.CreateResult{}, e.undo(ctx, opts, err)
	}
	kept.Phase, kept.EndsAt = phaseReady, made.EndAt
	if err := e.records.put(opts.ID, kept); err != nil {
		return sdk.CreateResult{}, e.undo(ctx, opts, err)
	}
	s, _, err := e.sandboxOf(made, fleet, &kept)
	return sdk.CreateResult{Sandbox: s}, err
}

// cleanupDeadline bounds the removal of what a failed create has made, which
// goes on when the caller has given up.
const cleanupDeadline = 60 * time.Second

// undo removes what was made and can't be used.
func (e *Extension) undo(ctx context.Context, opts sdk.CreateOptions, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupDeadline)
	defer cancel()
	_, err := e.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet}})
	if err != nil {
		err = fmt.Errorf("and it could not be removed: %w", err)
	}
	return errors.Join(fmt.Errorf("sandbox %s was made and could not be set up: %w", opts.ID, cause), err)
}

// maxObject bounds what goes into the metadata of a sandbox. The vendor names no
// bound; a page of a listing holds that of a hundred.
const maxObject = 64 << 10

// objectFor is what the metadata of a new sandbox carries.
func (e *Extension) objectFor(opts sdk.CreateOptions) (object, error) {
	o := object{
		Identity: opts.Identity, Profile: opts.Profile, ExpiresAt: opts.ExpiresAt.UTC(), Max: opts.MaxExpiresAt.UTC(),
		OnExpiry: opts.OnExpiry, PausedTTL: opts.PausedTTL, Secrets: len(opts.Secrets) > 0, Event: opts.Event,
	}
	if o.OnExpiry == "" {
		o.OnExpiry = sdk.OnExpiryDestroy
	}
	if o.PausedTTL == 0 {
		o.PausedTTL = sdk.DefaultPausedTTL
	}
	if o.Max.IsZero() || o.Max.Before(o.ExpiresAt) {
		o.Max = o.ExpiresAt
	}
	now := e.now()
	if limits := opts.Profile.Limits; limits != nil && limits.Wall != "" {
		wall, err := time.ParseDuration(limits.Wall)
		if err != nil || wall <= 0 {
			return o, sdk.Invalid("limits.wall", "%.40q is no length of time", limits.Wall)
		}
		if latest := now.Add(wall).UTC(); o.Max.After(latest) {
			o.Max = latest
		}
		if o.ExpiresAt.After(o.Max) {
			o.ExpiresAt = o.Max
		}
	}
	if len(encode(o)) > maxObject {
		o.Profile.Files = nil // they are in the sandbox
	}
	if size := len(encode(o)); size > maxObject {
		return o, sdk.Invalid("profile", "without its files it has %d bytes with what else E2B's metadata carries, and %d is the most", size, maxObject)
	}
	if most := e.settings.MaxRun; most > 0 && o.ExpiresAt.Sub(now) > most {
		return o, &sdk.Error{
			Kind: sdk.ErrInvalid, Path: "ttl", Message: fmt.Sprintf("a life of %s is longer than the account's plan allows: max_run is %s", o.ExpiresAt.Sub(now).Round(time.Second), most),
			Advice: "ask for less, or raise the plan and max_run",
		}
	}
	return o, nil
}

// secondsUntil is the whole seconds until a time, and at least so much: the
// vendor's own deadline is no earlier than ours.
func secondsUntil(until, now time.Time) int64 {
	return max(0, int64((until.Sub(now)+time.Second-1)/time.Second))
}

// networkOf is the policy of a profile in the words of the service.
func networkOf(p sdk.Profile) (internet bool, rules *network) {
	if p.Network == nil || p.Network.Egress == "" || p.Network.Egress == sdk.EgressNone {
		return false, nil
	}
	if p.Network.Egress == sdk.EgressOpen {
		return true, nil
	}
	if len(p.Network.Allow) == 0 {
		return false, nil
	}
	rules = &network{DenyOut: []string{"0.0.0.0/0"}}
	for _, entry := range p.Network.Allow {
		allow, err := sdk.ParseAllow(entry)
		switch {
		case err != nil: // it has been refused
		case allow.IsAddress():
			rules.AllowOut = append(rules.AllowOut, allow.Prefix.String())
		default:
			rules.AllowOut = append(rules.AllowOut, allow.Name)
		}
	}
	return true, rules
}

// makeOne asks for a sandbox and makes sure that there is one.
func (e *Extension) makeOne(ctx context.Context, opts sdk.CreateOptions, from source, o object, kept *record) (vendorSandbox, error) {
	before, _, err := e.allOf(ctx, opts.ID, opts.Identity.Fleet)
	if err != nil {
		return vendorSandbox{}, err
	}
	if len(before) > 0 {
		return vendorSandbox{}, sdk.Conflict(leaseOf(before[0], o, nil), "sandbox %s exists as E2B sandbox %s", opts.ID, before[0].SandboxID)
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	nonce := hex.EncodeToString(random)
	internet, rules := networkOf(opts.Profile)
	env := map[string]string{"SANDBOXER_ID": opts.ID} // never empty: without any, a snapshot's own would show through
	maps.Copy(env, opts.Profile.Env)
	maps.Copy(env, opts.Env)
	for name := range opts.Secrets {
		env[name+"_FILE"] = secretsDir + "/" + name
	}
	sent := e.opts.Clock.Now()
	ref, err := e.client.createSandbox(ctx, newSandbox{
		TemplateID: from.ref, Timeout: secondsUntil(o.ExpiresAt, e.now()), AutoPause: o.OnExpiry == sdk.OnExpiryPause,
		Metadata: o.metadata(nonce), EnvVars: env, Internet: internet, Network: rules, Secure: true,
	}, nonce)
	if err != nil {
		if !unknown(err) {
			return vendorSandbox{}, from.blame(err)
		}
		return e.adopt(ctx, opts, nonce, sent, kept, err)
	}
	// The ref is on disk before anything else is asked.
	kept.Ref = ref
	if err := e.records.put(opts.ID, kept); err != nil {
		return vendorSandbox{}, errors.Join(err, e.client.deleteSandbox(ctx, ref))
	}
	return e.onlyOne(ctx, opts, ref)
}

// The pauses between two looks for a sandbox whose create had no answer.
const (
	adoptPause = 500 * time.Millisecond
	adoptMost  = 5 * time.Second
)

// adopt searches for the sandbox of a create without an answer. A caller that
// has given up is told so at once; what was made is then found by its id.
func (e *Extension) adopt(ctx context.Context, opts sdk.CreateOptions, nonce string, sent time.Time, kept *record, cause error) (vendorSandbox, error) {
	for pause := adoptPause; ; pause = min(2*pause, adoptMost) {
		found, err := e.matching(ctx, map[string]string{metaNonce: nonce, metaFleet: fleetKey(opts.Identity.Fleet)})
		if err == nil && len(found) > 0 {
			kept.Ref = found[0].SandboxID
			if err := e.records.put(opts.ID, kept); err != nil {
				return vendorSandbox{}, err
			}
			return e.onlyOne(ctx, opts, kept.Ref)
		}
		if ctx.Err() != nil {
			return vendorSandbox{}, errors.Join(cause, ctx.Err())
		}
		if e.opts.Clock.Now().Sub(sent) >= e.opts.Settle {
			return vendorSandbox{}, &sdk.Error{
				Kind: sdk.ErrUnreachable, Err: errors.Join(cause, err),
				Message: fmt.Sprintf("E2B gave no answer to the create of sandbox %s, and %s later there is none", opts.ID, e.opts.Settle),
			}
		}
		if err := e.opts.Clock.Sleep(ctx, pause); err != nil {
			return vendorSandbox{}, errors.Join(cause, err)
		}
	}
}

// onlyOne looks at what was made, by its id: of several the first by the
// service's order stays, and whoever made another one removes it.
func (e *Extension) onlyOne(ctx context.Context, opts sdk.CreateOptions, ref string) (vendorSandbox, error) {
	fleet := opts.Identity.Fleet
	all, _, err := e.allOf(ctx, opts.ID, fleet)
	if err != nil {
		return vendorSandbox{}, err
	}
	if !slices.ContainsFunc(all, func(v vendorSandbox) bool { return v.SandboxID == ref }) {
		v, err := e.client.getSandbox(ctx, ref)
		if err != nil {
			if absent(err) {
				return vendorSandbox{}, &sdk.Error{Kind: sdk.ErrUnreachable, Err: err, Message: fmt.Sprintf("E2B made sandbox %s as %s, and says right after that it is gone", opts.ID, ref)}
			}
			return vendorSandbox{}, err
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b vendorSandbox) int {
		if order := a.StartedAt.Compare(b.StartedAt); order != 0 {
			return order
		}
		return strings.Compare(a.SandboxID, b.SandboxID)
	})
	if winner := all[0]; winner.SandboxID != ref {
		_, gone, err := e.remove(ctx, ref)
		if err == nil && !gone {
			err = fmt.Errorf("E2B sandbox %s is still there", ref)
		}
		o, _, readErr := objectOf(winner, fleet)
		return vendorSandbox{}, errors.Join(sdk.Conflict(leaseOf(winner, o, nil), "sandbox %s was made by somebody else at the same time, as E2B sandbox %s", opts.ID, winner.SandboxID), err, readErr)
	}
	return all[0], nil
}
