// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// cut is how one call of a backend is cut short.
type cut string

const (
	interruptBefore cut = "interrupt before" // the caller's context ends, and the call is not made
	interruptAfter  cut = "interrupt after"  // the call is made, and then the context ends
	loseRequest     cut = "lose request"
	loseAnswer      cut = "lose answer"
	crash           cut = "crash" // the extension's process dies of the call
)

var cuts = []cut{interruptBefore, interruptAfter, loseRequest, loseAnswer, crash}

// interrupts reports whether the caller gave up, rather than the backend.
func (c cut) interrupts() bool { return c == interruptBefore || c == interruptAfter }

// cutting is a backend of which one call is cut short. As over the wire, no
// call begins in a context that has ended.
type cutting struct {
	*saasstub.Extension
	how       cut
	at        int // which call, from 1; 0 is none
	calls     int
	interrupt context.CancelFunc
}

func cutCall[O, R any](ctx context.Context, c *cutting, opts O, act func(context.Context, O) (R, error)) (R, error) {
	var none R
	c.calls++
	now := c.calls == c.at
	if now && c.how == interruptBefore {
		c.interrupt()
	}
	switch {
	case ctx.Err() != nil:
		return none, ctx.Err()
	case now && c.how == loseRequest:
		return none, sdk.Errorf(sdk.ErrUnreachable, "cut")
	}
	result, err := act(ctx, opts)
	switch {
	case now && c.how == interruptAfter:
		c.interrupt()
	case now && c.how == loseAnswer:
		return none, sdk.Errorf(sdk.ErrUnreachable, "cut")
	case now && c.how == crash:
		return none, sdk.Errorf(sdk.ErrCrashed, "cut")
	}
	return result, err
}

func (c *cutting) Create(ctx context.Context, o sdk.CreateOptions) (sdk.CreateResult, error) {
	return cutCall(ctx, c, o, c.Extension.Create)
}

func (c *cutting) Get(ctx context.Context, o sdk.GetOptions) (sdk.GetResult, error) {
	return cutCall(ctx, c, o, c.Extension.Get)
}

func (c *cutting) List(ctx context.Context, o sdk.ListOptions) (sdk.ListResult, error) {
	return cutCall(ctx, c, o, c.Extension.List)
}

func (c *cutting) Extend(ctx context.Context, o sdk.ExtendOptions) (sdk.ExtendResult, error) {
	return cutCall(ctx, c, o, c.Extension.Extend)
}

func (c *cutting) Claim(ctx context.Context, o sdk.ClaimOptions) (sdk.ClaimResult, error) {
	return cutCall(ctx, c, o, c.Extension.Claim)
}

func (c *cutting) Destroy(ctx context.Context, o sdk.DestroyOptions) (sdk.DestroyResult, error) {
	return cutCall(ctx, c, o, c.Extension.Destroy)
}

func (c *cutting) Exec(ctx context.Context, o sdk.ExecOptions) (sdk.ExecResult, error) {
	return cutCall(ctx, c, o, c.Extension.Exec)
}

func (c *cutting) Logs(ctx context.Context, o sdk.LogsOptions) (sdk.LogsResult, error) {
	return cutCall(ctx, c, o, c.Extension.Logs)
}

func (c *cutting) Snapshot(ctx context.Context, o sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	return cutCall(ctx, c, o, c.Extension.Snapshot)
}

func (c *cutting) GetSnapshot(ctx context.Context, o sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	return cutCall(ctx, c, o, c.Extension.GetSnapshot)
}

func (c *cutting) ListSnapshots(ctx context.Context, o sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	return cutCall(ctx, c, o, c.Extension.ListSnapshots)
}

func (c *cutting) DeleteSnapshot(ctx context.Context, o sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	return cutCall(ctx, c, o, c.Extension.DeleteSnapshot)
}

func (c *cutting) Restore(ctx context.Context, o sdk.RestoreOptions) (sdk.CreateResult, error) {
	return cutCall(ctx, c, o, c.Extension.Restore)
}

// workshop is a manager over a backend that is cut short.
type workshop struct {
	*Manager
	backend *cutting
	server  *saasstub.Server
	ledger  *ledger.Ledger
}

func newWorkshop(t *testing.T) workshop {
	t.Helper()
	c := clock.NewFake(start)
	c.Auto = true
	server := saasstub.NewServer(saasstub.ServerOptions{Clock: c})
	b := &cutting{Extension: saasstub.New(saasstub.Options{Server: server})}
	if _, err := b.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: "ci"}); err != nil {
		t.Fatal(err)
	}
	l := ledger.New(t.TempDir(), c)
	return workshop{Manager: New(l, backends{"cloud": b}, c, Settings{Fleet: "ci"}), backend: b, server: server, ledger: l}
}

// cutAt arms the backend for the verb that comes next.
func (w workshop) cutAt(t *testing.T, how cut, at int) context.Context {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	t.Cleanup(interrupt)
	w.backend.how, w.backend.at, w.backend.calls, w.backend.interrupt = how, at, 0, interrupt
	return ctx
}

// heal ends the cutting.
func (w workshop) heal() { w.backend.at = 0 }

// open returns the ids of a kind that the ledger holds open.
func (w workshop) open(t *testing.T, kind ledger.Kind) []string {
	t.Helper()
	records, unreadable, err := w.ledger.List(t.Context(), ledger.Filter{Kind: kind, Open: true})
	if err != nil || len(unreadable) > 0 {
		t.Fatal(err, unreadable)
	}
	var ids []string
	for _, r := range records {
		ids = append(ids, r.ID)
	}
	return ids
}

// told checks the promise of every verb that makes something: what is at the
// backend is what the caller was told of, or, where the backend failed, what
// the ledger holds open. After an interrupt it is nothing, or told.
func told(t *testing.T, how cut, held, open []string, id string, err error) {
	t.Helper()
	if err == nil && id == "" {
		t.Error("a success without an id")
	}
	for _, one := range held {
		switch {
		case one == id:
		case how.interrupts():
			t.Errorf("%s was left and not told of: %v", one, err)
		case !slices.Contains(open, one):
			t.Errorf("%s was left, and neither the caller nor the ledger knows it: %v", one, err)
		}
	}
	for _, one := range open {
		if how.interrupts() && !slices.Contains(held, one) {
			t.Errorf("the log of %s is open, and nothing is there: %v", one, err)
		}
	}
}

// eachCut runs a verb once for each of its calls and each way to cut it.
func eachCut(t *testing.T, prepare func(t *testing.T, w workshop), verb func(t *testing.T, w workshop, ctx context.Context, how cut)) {
	t.Helper()
	for _, how := range cuts {
		for at := 1; ; at++ {
			w := newWorkshop(t)
			if prepare != nil {
				prepare(t, w)
			}
			ctx := w.cutAt(t, how, at)
			if !t.Run(fmt.Sprintf("%s call %d", how, at), func(t *testing.T) { verb(t, w, ctx, how) }) {
				return
			}
			if w.backend.calls < at {
				break // the verb has no such call
			}
		}
	}
}

// held returns the ids of the sandboxes at the vendor.
func (w workshop) held() []string {
	var ids []string
	for _, b := range w.server.Boxes() {
		ids = append(ids, b.Name)
	}
	return ids
}

func (w workshop) heldSnapshots(t *testing.T) []string {
	t.Helper()
	list, err := w.backend.Extension.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, s := range list.Snapshots {
		ids = append(ids, s.ID)
	}
	return ids
}

// Wherever a create is cut short, nothing is left that nobody is told of.
func TestACreateThatIsCutShort(t *testing.T) {
	p := profile()
	p.Setup = [][]string{{"echo", "made"}}
	p.Ready = &sdk.Ready{Exec: []string{"true"}}
	eachCut(t, nil, func(t *testing.T, w workshop, ctx context.Context, how cut) {
		made, err := w.Create(ctx, CreateOptions{Profile: p})
		told(t, how, w.held(), w.open(t, ledger.KindSandbox), made.ID, err)
	})
}

// … and a restore.
func TestARestoreThatIsCutShort(t *testing.T) {
	var snapshot string
	prepare := func(t *testing.T, w workshop) {
		source, err := w.Create(t.Context(), CreateOptions{Profile: profile()})
		if err != nil {
			t.Fatal(err)
		}
		made, err := w.Snapshot(t.Context(), source.ID, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Destroy(t.Context(), source.ID, DestroyOptions{}); err != nil {
			t.Fatal(err)
		}
		snapshot = made.ID
	}
	eachCut(t, prepare, func(t *testing.T, w workshop, ctx context.Context, how cut) {
		made, err := w.Create(ctx, CreateOptions{Snapshot: snapshot})
		told(t, how, w.held(), w.open(t, ledger.KindSandbox), made.ID, err)
	})
}

// … and a snapshot.
func TestASnapshotThatIsCutShort(t *testing.T) {
	var source string
	prepare := func(t *testing.T, w workshop) {
		made, err := w.Create(t.Context(), CreateOptions{Profile: profile()})
		if err != nil {
			t.Fatal(err)
		}
		source = made.ID
	}
	eachCut(t, prepare, func(t *testing.T, w workshop, ctx context.Context, how cut) {
		made, err := w.Snapshot(ctx, source, SnapshotOptions{})
		told(t, how, w.heldSnapshots(t), w.open(t, ledger.KindSnapshot), made.ID, err)
	})
}

// A destroy that was cut short has not succeeded, or nothing is there; and
// the next one succeeds.
func TestADestroyThatIsCutShort(t *testing.T) {
	var box, snapshot string
	prepare := func(t *testing.T, w workshop) {
		made, err := w.Create(t.Context(), CreateOptions{Profile: profile()})
		if err != nil {
			t.Fatal(err)
		}
		shot, err := w.Snapshot(t.Context(), made.ID, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		box, snapshot = made.ID, shot.ID
	}
	eachCut(t, prepare, func(t *testing.T, w workshop, ctx context.Context, _ cut) {
		_, err := w.Destroy(ctx, box, DestroyOptions{})
		if held := w.held(); err == nil && len(held) > 0 {
			t.Errorf("a success, and %v is there", held)
		}
		if open := w.open(t, ledger.KindSandbox); len(w.held()) > 0 && len(open) == 0 {
			t.Errorf("the log is closed, and the sandbox is there: %v", err)
		}
		calls := w.backend.calls
		w.heal()
		if _, err := w.Destroy(t.Context(), box, DestroyOptions{}); err != nil || len(w.held()) > 0 || len(w.open(t, ledger.KindSandbox)) > 0 {
			t.Errorf("the next destroy: %v; at the vendor: %v", err, w.held())
		}
		w.backend.calls = calls
	})
	eachCut(t, prepare, func(t *testing.T, w workshop, ctx context.Context, _ cut) {
		_, err := w.DeleteSnapshot(ctx, snapshot, DeleteSnapshotOptions{})
		if held := w.heldSnapshots(t); err == nil && len(held) > 0 {
			t.Errorf("a success, and %v is there", held)
		}
		if open := w.open(t, ledger.KindSnapshot); len(w.heldSnapshots(t)) > 0 && len(open) == 0 {
			t.Errorf("the log is closed, and the snapshot is there: %v", err)
		}
		calls := w.backend.calls
		w.heal()
		if _, err := w.DeleteSnapshot(t.Context(), snapshot, DeleteSnapshotOptions{}); err != nil || len(w.heldSnapshots(t)) > 0 || len(w.open(t, ledger.KindSnapshot)) > 0 {
			t.Errorf("the next delete: %v; at the vendor: %v", err, w.heldSnapshots(t))
		}
		w.backend.calls = calls
	})
}
