// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// check is one try of one rule. Its methods end the try when it can't go on,
// so rules read as what they check; they are called from the rule's own
// goroutine only.
type check struct {
	kit      *Kit
	ctx      context.Context
	rule     Rule
	row      *Row
	cleanups []func(ctx context.Context)
}

// ended is what a try is ended with.
type ended struct{ outcome Outcome }

func (c *check) run() {
	defer c.clean()
	defer func() {
		switch thrown := recover().(type) {
		case nil:
			c.row.Outcome = Passed
		case ended:
			c.row.Outcome = thrown.outcome
		default:
			c.row.Outcome, c.row.Reason = Errored, fmt.Sprintf("panic: %v", thrown)
			c.note("%s", debug.Stack())
		}
	}()
	if err := c.ctx.Err(); err != nil {
		c.cannot("no time was left for it: %s", err)
	}
	c.rule.try(c)
}

// clean removes what the try made, whatever came of it.
func (c *check) clean() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), time.Minute)
	defer cancel()
	for _, cleanup := range slices.Backward(c.cleanups) {
		cleanup(ctx)
	}
}

func (c *check) later(cleanup func(ctx context.Context)) { c.cleanups = append(c.cleanups, cleanup) }

// note keeps what was seen.
func (c *check) note(format string, args ...any) {
	c.row.Evidence = append(c.row.Evidence, clip(fmt.Sprintf(format, args...)))
}

// fail ends the try: the rule was seen not to hold.
func (c *check) fail(format string, args ...any) {
	c.note(format, args...)
	panic(ended{Failed})
}

// failIf fails with what is wrong, when something is.
func (c *check) failIf(wrong bool, format string, args ...any) {
	if wrong {
		c.fail(format, args...)
	}
}

// cannot ends the try: the rule could not be tried.
func (c *check) cannot(format string, args ...any) {
	c.row.Reason = clip(fmt.Sprintf(format, args...))
	panic(ended{Errored})
}

// need ends the try when something did not work that the rule is not about.
func (c *check) need(err error, what string) {
	if err != nil {
		c.cannot("%s: %s", what, err)
	}
}

// is fails unless an error is of one of the kinds.
func (c *check) is(err error, what string, kinds ...error) {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			c.note("%s: %s", what, err)
			return
		}
	}
	var names []string
	for _, kind := range kinds {
		names = append(names, fmt.Sprintf("%q", kind))
	}
	if err == nil {
		c.fail("%s succeeded, and should be refused as %s", what, strings.Join(names, " or "))
	}
	c.fail("%s is refused with an error that is not %s: %s", what, strings.Join(names, " or "), err)
}

func (c *check) now() time.Time { return c.kit.suite.Clock.Now() }

func (c *check) sleep(d time.Duration) {
	c.need(c.kit.suite.Clock.Sleep(c.ctx, d), "wait")
}

// soon looks until look says yes, for as long as something may take that has
// to happen.
func (c *check) soon(look func() bool) bool {
	return c.kit.pollUntil(c.ctx, c.kit.suite.Timing.Grace, look)
}

func (c *check) claims(feature sdk.Feature) bool {
	return c.kit.report.Probed.Of(feature).Class != sdk.ClassUnsupported
}

// profile is the suite's, changed.
func (c *check) profile(changes ...func(p *sdk.Profile)) sdk.Profile {
	p := c.kit.suite.Profile
	for _, change := range changes {
		change(&p)
	}
	return p
}

// creation returns the options of a create that nothing is special about.
func (c *check) creation(changes ...func(p *sdk.Profile)) sdk.CreateOptions {
	return c.creationIn(c.kit.suite.Fleet, changes...)
}

// standard is creation for what takes a function.
func (c *check) standard() sdk.CreateOptions { return c.creation() }

func (c *check) creationIn(fleet string, changes ...func(p *sdk.Profile)) sdk.CreateOptions {
	now := c.now().UTC().Truncate(time.Second)
	id, profile := newID("sbx-"), c.profile(changes...)
	return sdk.CreateOptions{
		ID: id, Profile: profile,
		Identity: sdk.Identity{ID: id, Fleet: fleet, Incarnation: 1, Owner: "conformance", Task: c.rule.ID, Profile: profile.Name,
			ProfileRevision: sum([]byte(profile.Name)), CreatedAt: now},
		ExpiresAt: now.Add(10 * time.Minute), MaxExpiresAt: now.Add(4 * time.Hour), OnExpiry: sdk.OnExpiryDestroy, Event: c.kit.event(),
	}
}

// shortLived makes a sandbox whose end can be waited for, does with it what
// the rule needs to be done before that, and returns it when it has half of
// its life left. On a machine that is busy a short life can be over before it
// has begun: it is then tried with a longer one.
func (c *check) shortLived(opts func() sdk.CreateOptions, before ...func(s sdk.Sandbox, target sdk.Target) error) (sdk.Sandbox, sdk.Target) {
	return c.living(c.kit.suite.Timing.Short, opts, before...)
}

// living is shortLived with another length of life to begin with.
func (c *check) living(life time.Duration, opts func() sdk.CreateOptions, before ...func(s sdk.Sandbox, target sdk.Target) error) (sdk.Sandbox, sdk.Target) {
	for most := 8 * life; ; life *= 2 {
		opts := opts()
		opts.ExpiresAt = c.now().UTC().Add(life)
		enough := func() bool { return opts.ExpiresAt.Sub(c.now()) >= life/2 }
		c.destroyLater(c.kit.a, opts)
		made, err := c.kit.a.Create(c.ctx, opts)
		s, target := made.Sandbox, targetOf(made.Sandbox, opts)
		for err == nil && s.Status == sdk.StatusCreating && enough() {
			c.sleep(c.kit.suite.Timing.Poll)
			var got sdk.GetResult
			got, err = c.kit.a.Get(c.ctx, sdk.GetOptions{Target: target})
			s = got.Sandbox
		}
		for _, act := range before {
			if err == nil {
				err = act(s, target)
			}
		}
		if enough() || life > most {
			c.need(err, "prepare "+opts.ID)
			return s, target
		}
	}
}

func targetOf(s sdk.Sandbox, opts sdk.CreateOptions) sdk.Target {
	return sdk.Target{ID: opts.ID, Ref: s.Ref, Fleet: opts.Identity.Fleet}
}

// create makes a sandbox that is destroyed with the try.
func (c *check) create(opts sdk.CreateOptions) (sdk.Sandbox, sdk.Target) {
	return c.createWith(c.kit.a, opts)
}

func (c *check) createWith(ext sdk.Extension, opts sdk.CreateOptions) (sdk.Sandbox, sdk.Target) {
	c.destroyLater(ext, opts)
	made, err := ext.Create(c.ctx, opts)
	c.need(err, "create "+opts.ID)
	return made.Sandbox, targetOf(made.Sandbox, opts)
}

func (c *check) destroyLater(ext sdk.Extension, opts sdk.CreateOptions) {
	c.later(func(ctx context.Context) {
		if _, err := ext.Destroy(ctx, sdk.DestroyOptions{Target: sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet}}); err != nil {
			c.kit.left("sandbox %s, made by %s: %s", opts.ID, c.rule.ID, err)
		}
		if snapshots, ok := sdk.As[sdk.Snapshotter](ext); ok && opts.OnExpiry == sdk.OnExpirySnapshot {
			c.deleteSnapshotsOf(ctx, snapshots, opts)
		}
	})
}

// ready makes a sandbox and waits until it is ready.
func (c *check) ready(opts sdk.CreateOptions) (sdk.Sandbox, sdk.Target) {
	s, target := c.create(opts)
	return c.awaitReady(c.kit.a, s, target), target
}

func (c *check) awaitReady(ext sdk.Extension, s sdk.Sandbox, target sdk.Target) sdk.Sandbox {
	c.soon(func() bool {
		if s.Status != sdk.StatusCreating {
			return true
		}
		s = c.get(ext, target)
		return s.Status != sdk.StatusCreating
	})
	if s.Status != sdk.StatusReady {
		c.cannot("sandbox %s is %s and not ready: %s", target.ID, s.Status, s.Reason)
	}
	return s
}

func (c *check) get(ext sdk.Extension, target sdk.Target) sdk.Sandbox {
	got, err := ext.Get(c.ctx, sdk.GetOptions{Target: target})
	c.need(err, "get "+target.ID)
	return got.Sandbox
}

// statusOf is the status of a sandbox for a message, where it may be gone.
func (c *check) statusOf(ext sdk.Extension, target sdk.Target) sdk.Status {
	got, err := ext.Get(c.ctx, sdk.GetOptions{Target: target})
	if err != nil {
		return sdk.Status(err.Error())
	}
	return got.Sandbox.Status
}

func (c *check) list(ext sdk.Extension, fleet string) []sdk.Sandbox {
	list, err := ext.List(c.ctx, sdk.ListOptions{Fleet: fleet})
	c.need(err, "list")
	if list.Incomplete != "" {
		c.cannot("the listing is incomplete: %s", list.Incomplete)
	}
	return list.Sandboxes
}

// count returns how often an id is in a listing.
func count(all []sdk.Sandbox, id string) (n int) {
	for _, s := range all {
		if s.ID == id {
			n++
		}
	}
	return n
}

// shown is what a sandbox shows, for comparing and searching.
func shown(s sdk.Sandbox) string {
	s.Identity.CreatedAt, s.CreatedAt = s.Identity.CreatedAt.UTC(), s.CreatedAt.UTC()
	s.Lease.ExpiresAt, s.Lease.MaxExpiresAt = s.Lease.ExpiresAt.UTC(), s.Lease.MaxExpiresAt.UTC()
	encoded, _ := json.Marshal(s) // values of JSON's own types always encode
	return string(encoded)
}

// near reports whether two times are the same to a backend that keeps whole
// seconds.
func near(a, b time.Time) bool { return a.Sub(b).Abs() <= time.Second }

func newID(prefix string) string { return prefix + randomText(20) }

// randomText returns n characters of an id.
func randomText(n int) string {
	random := make([]byte, n)
	_, _ = rand.Read(random) // never fails
	return base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").EncodeToString(random)[:n]
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

// clip bounds what an extension makes the report say.
func clip(text string) string {
	const most = 4096
	text = string(bytes.ToValidUTF8([]byte(text), []byte("�")))
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
