// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/fake"
)

// same fails when two values differ.
func same(t *testing.T, what string, want, have any) {
	t.Helper()
	if diff := cmp.Diff(want, have, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s differs on the wire (-want +have):\n%s", what, diff)
	}
}

// both calls the extension directly and over the wire and compares.
func both[O, R any](t *testing.T, what string, opts O, direct, wire func(context.Context, O) (R, error)) {
	t.Helper()
	have, err := wire(within(t), opts)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	want, err := direct(within(t), opts)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	same(t, what, want, have)
}

func TestEveryResultArrivesAsItWasGiven(t *testing.T) {
	ext, host := pair(t)
	both(t, "Describe", sdk.DescribeOptions{}, ext.Describe, host.Describe)
	if _, err := host.Configure(within(t), sdk.ConfigureOptions{Backend: "b", Fleet: "fleet", Config: []byte(`{"region":"eu"}`)}); err != nil {
		t.Fatal(err)
	}
	probe, err := host.Probe(within(t), sdk.ProbeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	details := map[string]string{}
	for _, d := range probe.Details {
		details[d.Name] = d.Value
	}
	same(t, "the configuration", []string{"b", "fleet", "eu"}, []string{details["config.backend"], details["config.fleet"], details["config.region"]})
	if probe.Usable || probe.Reason == "" || probe.Advice == "" || probe.Capabilities.Of(sdk.FeatureCPULimit).Class != sdk.ClassBestEffort {
		t.Errorf("Probe lost something: %+v", probe)
	}

	var steps []sdk.Progress
	opts := createOptions("sbx-1")
	opts.Progress = func(p sdk.Progress) { steps = append(steps, p) }
	created, err := host.Create(within(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "progress", []sdk.Progress{{Phase: "pull", Message: "half", Done: 1, Total: 2}, {Phase: "boot"}}, steps)
	arrived := ext.Created("sbx-1")
	arrived.Progress, opts.Progress = nil, nil
	same(t, "the options of Create", opts, arrived)

	target := sdk.Target{ID: "sbx-1", Ref: "ref-sbx-1", Fleet: "fleet"}
	both(t, "Get", sdk.GetOptions{Target: target}, ext.Get, host.Get)
	direct, err := ext.Get(within(t), sdk.GetOptions{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the result of Create", direct.Sandbox, created.Sandbox)
	create(t, host, "sbx-2")
	both(t, "List", sdk.ListOptions{Fleet: "fleet"}, ext.List, host.List)
	both(t, "an empty List", sdk.ListOptions{Fleet: "other"}, ext.List, host.List)
	if _, err := host.Configure(within(t), sdk.ConfigureOptions{Config: []byte(`{"incomplete": "a page is missing", "unreadable": "sbx-7 sbx-8"}`)}); err != nil {
		t.Fatal(err)
	}
	both(t, "a List with gaps", sdk.ListOptions{Fleet: "fleet"}, ext.List, host.List)

	// Each of these changes something: the direct call comes second and
	// changes nothing more, by the rules of a lease.
	at := time.Date(2031, 1, 1, 0, 30, 0, 0, time.UTC)
	extended, err := host.Extend(within(t), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: at, Event: sdk.EventRef{LedgerID: "x", Sequence: 2}})
	if err != nil {
		t.Fatal(err)
	}
	if !extended.Lease.ExpiresAt.Equal(at) || extended.Lease.Generation != 2 || extended.Lease.Event.Sequence != 2 {
		t.Errorf("Extend granted %+v", extended.Lease)
	}
	both(t, "Extend", sdk.ExtendOptions{Target: target, Generation: 2, ExpiresAt: at}, ext.Extend, host.Extend)
	both(t, "Expire", sdk.ExpireOptions{Target: target, Generation: 2, ExpiresAt: at.Add(time.Hour)}, ext.Expire, host.Expire)
	both(t, "Claim", sdk.ClaimOptions{Target: target, Generation: 2, Holder: "me"}, ext.Claim, host.Claim)
	both(t, "Pause", sdk.PauseOptions{Target: target}, ext.Pause, host.Pause)
	both(t, "Resume", sdk.ResumeOptions{Target: target}, ext.Resume, host.Resume)
	both(t, "Inspect", sdk.InspectOptions{Target: target, Canary: "BIRD", CanaryValue: "sings"}, ext.Inspect, host.Inspect)
	both(t, "Inspect without a canary", sdk.InspectOptions{Target: target}, ext.Inspect, host.Inspect)

	destroyed, err := host.Destroy(within(t), sdk.DestroyOptions{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "Destroy", sdk.DestroyResult{Existed: true, Removed: []string{"process 1", "volume v"}}, destroyed)
	both(t, "a second Destroy", sdk.DestroyOptions{Target: target}, ext.Destroy, host.Destroy)
}

func TestSnapshotsArriveAsTheyWereGiven(t *testing.T) {
	ext, host := pair(t)
	create(t, host, "sbx-1")
	expires := time.Date(2032, 1, 1, 0, 0, 0, 0, time.UTC)
	steps := 0
	made, err := host.Snapshot(within(t), sdk.SnapshotOptions{
		Target: sdk.Target{ID: "sbx-1"}, SnapshotID: "snap", Kind: sdk.SnapshotMemory, ExpiresAt: expires, Identity: identity("snap"),
		Progress: func(p sdk.Progress) { steps++ },
	})
	if err != nil || steps != 1 {
		t.Fatal(err, steps)
	}
	direct, err := ext.GetSnapshot(within(t), sdk.GetSnapshotOptions{SnapshotID: "snap", Fleet: "fleet"})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "Snapshot", direct.Snapshot, made.Snapshot)
	both(t, "GetSnapshot", sdk.GetSnapshotOptions{SnapshotID: "snap", Fleet: "fleet"}, ext.GetSnapshot, host.GetSnapshot)
	both(t, "ListSnapshots", sdk.ListSnapshotsOptions{Fleet: "fleet"}, ext.ListSnapshots, host.ListSnapshots)
	both(t, "ExtendSnapshot", sdk.ExtendSnapshotOptions{SnapshotID: "snap", Fleet: "fleet", ExpiresAt: expires.Add(time.Hour)}, ext.ExtendSnapshot, host.ExtendSnapshot)

	steps = 0
	restore := sdk.RestoreOptions{SnapshotID: "snap", Create: createOptions("sbx-2")}
	restore.Create.Progress = func(sdk.Progress) { steps++ }
	restored, err := host.Restore(within(t), restore)
	if err != nil || steps != 2 || restored.Sandbox.ID != "sbx-2" {
		t.Fatal(restored, steps, err)
	}
	deleted, err := host.DeleteSnapshot(within(t), sdk.DeleteSnapshotOptions{SnapshotID: "snap", Fleet: "fleet"})
	if err != nil || !deleted.Existed {
		t.Fatal(deleted, err)
	}
	both(t, "a second DeleteSnapshot", sdk.DeleteSnapshotOptions{SnapshotID: "snap", Fleet: "fleet"}, ext.DeleteSnapshot, host.DeleteSnapshot)

	var step sdk.Progress
	prepared, err := host.Prepare(within(t), sdk.PrepareOptions{Profile: profile(), Progress: func(p sdk.Progress) { step = p }})
	if err != nil || prepared.ImageDigest != "sha256:img" {
		t.Fatal(prepared, err)
	}
	same(t, "progress with nonsense counts", sdk.Progress{Phase: "pull", Message: "img"}, step)
}

func TestAListOfManyIsWhole(t *testing.T) {
	ext, host := pair(t)
	for i := range 1000 {
		create(t, ext, time.Unix(int64(i), 0).UTC().Format("sbx-20060102150405"))
	}
	both(t, "List", sdk.ListOptions{Fleet: "fleet"}, ext.List, host.List)
}

func TestWhatCannotTravelIsRefusedAtItsPath(t *testing.T) {
	_, host := pair(t)
	bad := "\xff"
	badCreate := func(change func(*sdk.CreateOptions)) error {
		opts := createOptions("sbx-1")
		change(&opts)
		_, err := host.Create(within(t), opts)
		return err
	}
	exec := func(opts sdk.ExecOptions) error { _, err := host.Exec(within(t), opts); return err }
	_, copyErr := host.CopyOut(within(t), sdk.CopyOutOptions{Path: bad})
	for path, err := range map[string]error{
		"identity":   badCreate(func(o *sdk.CreateOptions) { o.Identity.Labels = map[string]string{"a": bad} }),
		"profile":    badCreate(func(o *sdk.CreateOptions) { o.Profile.Command = []string{bad} }),
		"env.A":      badCreate(func(o *sdk.CreateOptions) { o.Env = map[string]string{"A": bad} }),
		"command[1]": exec(sdk.ExecOptions{Command: []string{"a", bad}}),
		"env.B":      exec(sdk.ExecOptions{Command: []string{"a"}, Env: map[string]string{"B": bad}}),
		"workdir":    exec(sdk.ExecOptions{Command: []string{"a"}, Workdir: bad}),
		"path":       copyErr,
	} {
		var invalid *sdk.Error
		if !asError(err, &invalid) || invalid.Kind != sdk.ErrInvalid || invalid.Path != path {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAbilitiesAreTruthful(t *testing.T) {
	// Every combination: what is found is exactly what was announced.
	for set := abilitySet(0); set < 1<<len(abilities); set++ {
		if have := abilitiesOf(&client{abilities: set}); have != set {
			t.Errorf("asked for abilities %08b, got %08b", set, have)
		}
	}
	// And over the wire, for an extension that has none and one that has one.
	type bare struct{ sdk.Extension }
	type execer struct {
		sdk.Extension
		sdk.Execer
	}
	ext := &fake.Extension{}
	for _, of := range []sdk.Extension{bare{ext}, execer{ext, ext}} {
		c := newCalls()
		host := dial(t, &server{ext: of, calls: c}, c, ConnectOptions{})
		if have, want := abilitiesOf(host), abilitiesOf(of); have != want {
			t.Errorf("the host sees abilities %07b of an extension with %07b", have, want)
		}
	}
}
