// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/fake"
)

func asError(err error, target **sdk.Error) bool { return errors.As(err, target) }

func TestEveryErrorKeepsItsMeaning(t *testing.T) {
	_, host := pair(t)
	targets := append(sdk.Kinds(), context.Canceled, context.DeadlineExceeded)
	for name, want := range fake.Failures() {
		t.Run(name, func(t *testing.T) {
			_, have := host.Get(within(t), sdk.GetOptions{Target: sdk.Target{ID: "fail-" + name}})
			if have == nil {
				t.Fatal("no error")
			}
			for _, target := range targets {
				if errors.Is(have, target) != errors.Is(want, target) {
					t.Errorf("errors.Is(err, %q) is %v on the host", target, errors.Is(have, target))
				}
			}
			switch name {
			case "long":
				if len(have.Error()) > 2*maxText {
					t.Errorf("a text of %d bytes arrived", len(have.Error()))
				}
				return
			case "not-utf8":
				if have.Error() != strings.ToValidUTF8(want.Error(), "\uFFFD") {
					t.Errorf("have %q", have)
				}
				return
			}
			if have.Error() != want.Error() {
				t.Errorf("text: want %q, have %q", want, have)
			}
			var wantSDK, haveSDK *sdk.Error
			if !asError(want, &wantSDK) {
				return
			}
			if !asError(have, &haveSDK) {
				t.Fatalf("%#v is no *sdk.Error", have)
			}
			if wantSDK.Err != nil {
				if haveSDK.Err == nil || haveSDK.Err.Error() != wantSDK.Err.Error() {
					t.Errorf("cause: want %v, have %v", wantSDK.Err, haveSDK.Err)
				}
			}
			w, h := *wantSDK, *haveSDK
			w.Err, h.Err, w.Kind, h.Kind = nil, nil, nil, nil
			if diff := cmp.Diff(w, h); diff != "" || wantSDK.Kind != haveSDK.Kind {
				t.Errorf("(-want +have):\n%s", diff)
			}
		})
	}
}

func TestLeftoversArriveTogetherWithTheError(t *testing.T) {
	_, host := pair(t)
	opts := createOptions("sbx-1")
	opts.Profile.Name = "sticky"
	if _, err := host.Create(within(t), opts); err != nil {
		t.Fatal(err)
	}
	result, err := host.Destroy(within(t), sdk.DestroyOptions{Target: sdk.Target{ID: "sbx-1"}})
	if !errors.Is(err, sdk.ErrUnreachable) || len(result.Leftovers) != 1 || !result.Existed || len(result.Removed) != 1 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestAnUnannouncedAbilityIsUnsupported(t *testing.T) {
	type bare struct{ sdk.Extension }
	c := newCalls()
	// A host that calls it all the same, without asking.
	caller := dial(t, &server{ext: bare{&fake.Extension{}}, calls: c}, c, ConnectOptions{}).(everything)
	_, exec := caller.Exec(within(t), sdk.ExecOptions{Command: []string{"cat"}})
	_, in := caller.CopyIn(within(t), sdk.CopyInOptions{Archive: strings.NewReader("")})
	_, out := caller.CopyOut(within(t), sdk.CopyOutOptions{})
	_, logs := caller.Logs(within(t), sdk.LogsOptions{})
	_, pause := caller.Pause(within(t), sdk.PauseOptions{})
	_, resume := caller.Resume(within(t), sdk.ResumeOptions{})
	_, prepare := caller.Prepare(within(t), sdk.PrepareOptions{})
	_, snapshot := caller.Snapshot(within(t), sdk.SnapshotOptions{})
	_, get := caller.GetSnapshot(within(t), sdk.GetSnapshotOptions{})
	_, list := caller.ListSnapshots(within(t), sdk.ListSnapshotsOptions{})
	_, extend := caller.ExtendSnapshot(within(t), sdk.ExtendSnapshotOptions{})
	_, del := caller.DeleteSnapshot(within(t), sdk.DeleteSnapshotOptions{})
	_, restore := caller.Restore(within(t), sdk.RestoreOptions{})
	_, export := caller.ExportSnapshot(within(t), sdk.ExportSnapshotOptions{})
	_, take := caller.ImportSnapshot(within(t), sdk.ImportSnapshotOptions{Archive: strings.NewReader("")})
	for i, err := range []error{exec, in, out, logs, pause, resume, prepare, snapshot, get, list, extend, del, restore, export, take} {
		if !errors.Is(err, sdk.ErrUnsupported) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}
