// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// broken is a backend that can't read some of its own records, or whose
// process dies of a look.
type broken struct {
	*saasstub.Extension
	unreadable []string
	crashes    atomic.Int32 // so many calls of Get
}

func (b *broken) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	result, err := b.Extension.List(ctx, opts)
	result.Unreadable = b.unreadable
	result.Sandboxes = slices.DeleteFunc(result.Sandboxes, func(s sdk.Sandbox) bool { return slices.Contains(b.unreadable, s.ID) })
	return result, err
}

func (b *broken) Get(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	if b.crashes.Add(-1) >= 0 {
		return sdk.GetResult{}, sdk.Errorf(sdk.ErrCrashed, "killed")
	}
	return b.Extension.Get(ctx, opts)
}

func newBroken(t *testing.T) (*Manager, *broken) {
	t.Helper()
	c := clock.NewFake(start)
	c.Auto = true
	b := &broken{Extension: saasstub.New(saasstub.Options{Server: saasstub.NewServer(saasstub.ServerOptions{Clock: c})})}
	if _, err := b.Configure(t.Context(), sdk.ConfigureOptions{Backend: "cloud", Fleet: "ci"}); err != nil {
		t.Fatal(err)
	}
	return New(ledger.New(t.TempDir(), c), backends{"cloud": b}, c, Settings{Fleet: "ci"}), b
}

// One broken object never stops the rest, and is never taken for gone.
func TestAnUnreadableRecordHoldsUpItselfOnly(t *testing.T) {
	m, backend := newBroken(t)
	good, err := m.Create(t.Context(), CreateOptions{Profile: profile()})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := m.Create(t.Context(), CreateOptions{Profile: profile()})
	if err != nil {
		t.Fatal(err)
	}
	backend.unreadable = []string{bad.ID}
	if _, err := m.Destroy(t.Context(), good.ID, DestroyOptions{}); err != nil {
		t.Errorf("the good one: %v", err)
	}
	if _, err := m.Destroy(t.Context(), bad.ID, DestroyOptions{}); err == nil || !strings.Contains(err.Error(), "still shows it") {
		t.Errorf("the unreadable one: %v", err)
	}
	list, err := m.List(t.Context(), ListOptions{})
	if err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].ID != bad.ID || list.Sandboxes[0].Unreachable == "" {
		t.Errorf("listed %+v %v", list, err)
	}
	// One that no ledger knows is told of too.
	backend.unreadable = []string{"sbx-00000000000000000000"}
	list, err = m.List(t.Context(), ListOptions{})
	if err != nil || len(list.Untold) != 1 {
		t.Errorf("listed %+v %v", list, err)
	}
}

func TestACrashOfTheExtensionDoesNotEndTheWaitForReady(t *testing.T) {
	m, backend := newBroken(t)
	made, err := m.Create(t.Context(), CreateOptions{Profile: profile(), Created: func(Sandbox) { backend.crashes.Store(1) }})
	if err != nil || made.Status != sdk.StatusReady {
		t.Errorf("%+v %v", made, err)
	}
}
