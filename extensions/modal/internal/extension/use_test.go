// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// definition is what the last create asked the vendor for.
func (c *cloud) definition(t *testing.T) *pb.Sandbox {
	t.Helper()
	for _, r := range slices.Backward(c.Requests()) {
		if create, ok := r.Message.(*pb.SandboxCreateV2Request); ok {
			return create.GetDefinition()
		}
	}
	t.Fatal("nothing was created")
	return nil
}

// A profile's policy in the vendor's words: what is denied is denied, and a port
// does not open the way out.
func TestPolicies(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	for n, row := range []struct {
		what    string
		network *sdk.Network
		ports   map[string]int
		want    pb.NetworkAccess_NetworkAccessType
		cidrs   []string
		domains []string
	}{
		{"nothing said", nil, nil, pb.NetworkAccess_BLOCKED, nil, nil},
		{"none", &sdk.Network{Egress: sdk.EgressNone}, nil, pb.NetworkAccess_BLOCKED, nil, nil},
		{"none with a port", nil, map[string]int{"web": 8080}, pb.NetworkAccess_ALLOWLIST, nil, nil},
		{"deny", &sdk.Network{Egress: sdk.EgressDeny}, nil, pb.NetworkAccess_ALLOWLIST, nil, nil},
		{"an address", &sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"192.0.2.7:443"}}, nil, pb.NetworkAccess_ALLOWLIST, []string{"192.0.2.7/32"}, nil},
		{
			"both", &sdk.Network{Egress: sdk.EgressDeny, Allow: []string{"10.0.0.0/8", "*.example.org:443"}}, nil, pb.NetworkAccess_ALLOWLIST,
			[]string{"10.0.0.0/8"}, []string{"*.example.org"},
		},
		{"open", &sdk.Network{Egress: sdk.EgressOpen}, nil, pb.NetworkAccess_OPEN, nil, nil},
	} {
		opts := c.creation(n)
		opts.Profile.Network, opts.Profile.Ports = row.network, row.ports
		if _, err := c.Create(t.Context(), opts); err != nil {
			t.Errorf("%s: %v", row.what, err)
			continue
		}
		got := c.definition(t).GetNetworkAccess()
		if got.GetNetworkAccessType() != row.want || !slices.Equal(got.GetAllowedCidrs(), row.cidrs) || !slices.Equal(got.GetAllowedDomains(), row.domains) {
			t.Errorf("%s: %v", row.what, got)
		}
	}
}

// Limits, runtime and idle time arrive as they were asked for; what the vendor
// can't do is refused on its attribute.
func TestParameters(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	opts := c.creation(1)
	opts.Profile.Limits = &sdk.Limits{CPUs: 1.5, Memory: "512MiB", Wall: "90m"}
	opts.Profile.Runtime, opts.Profile.Workdir, opts.IdleTimeout = "vm", "/srv", 10*time.Minute
	made, err := c.Create(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	d := c.definition(t)
	r := d.GetResources()
	if r.GetMilliCpu() != 1500 || r.GetMilliCpuMax() != 1500 || r.GetMemoryMb() != 512 || r.GetMemoryMbMax() != 512 {
		t.Errorf("resources %v", r)
	}
	if d.GetRuntime() != "vm" || d.GetWorkdir() != "/srv" || d.GetIdleTimeoutSecs() != 600 || d.GetName() != opts.ID {
		t.Errorf("definition %v", d)
	}
	if !made.Sandbox.Lease.MaxExpiresAt.Equal(start.Add(90*time.Minute)) || d.GetTimeoutSecs() != 91*60 {
		t.Errorf("limits.wall gives a maximum of %s and a lifetime of %d s", made.Sandbox.Lease.MaxExpiresAt, d.GetTimeoutSecs())
	}
	for path, change := range map[string]func(o *sdk.CreateOptions){
		"limits.pids":  func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Pids: 10} },
		"limits.disk":  func(o *sdk.CreateOptions) { o.Profile.Limits = &sdk.Limits{Disk: "1GiB"} },
		"user":         func(o *sdk.CreateOptions) { o.Profile.User = "app" },
		"runtime":      func(o *sdk.CreateOptions) { o.Profile.Runtime = "kata" },
		"on_expiry":    func(o *sdk.CreateOptions) { o.OnExpiry = sdk.OnExpirySnapshot },
		"idle_timeout": func(o *sdk.CreateOptions) { o.IdleTimeout = 1500 * time.Millisecond },
		"build":        func(o *sdk.CreateOptions) { o.Profile.Build = &sdk.BuildSource{Context: "."} },
		"image":        func(o *sdk.CreateOptions) { o.Profile.Image = "registry.invalid/app:1" },
		"template":     func(o *sdk.CreateOptions) { o.Profile.Template = "no-such-image" },
		"env":          func(o *sdk.CreateOptions) { o.Env = map[string]string{"A-B": "x"} },
	} {
		opts := c.creation(2)
		change(&opts)
		_, err := c.Create(t.Context(), opts)
		var said *sdk.Error
		if !errors.As(err, &said) || said.Path != path {
			t.Errorf("%s: %v", path, err)
		}
	}
	if n := len(c.Running()); n != 1 {
		t.Errorf("%d run", n)
	}
}

// Volumes of the workspace are seen in every sandbox and outlive it; a named
// secret is in the environment; what the workspace does not have is refused.
func TestVolumesAndSecrets(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	c.AddSecret("main", "database", map[string]string{"DATABASE": "db.example"})
	configure := func(config map[string]any) *extension.Extension {
		config["server_url"], config["state_dir"], config["token_id"], config["token_secret"] = c.URL(), t.TempDir(), testTokenID, testTokenSecret
		encoded, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		e := extension.New(extension.Options{Clock: ticking{c.clock}, Getenv: func(string) string { return "" }})
		t.Cleanup(func() { _ = e.Close() })
		if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "b", Fleet: fleet, Config: encoded}); err != nil {
			t.Fatal(err)
		}
		return e
	}
	var said *sdk.Error
	if _, err := configure(map[string]any{"volumes": map[string]string{"/data": "none"}}).Create(t.Context(), c.creation(1)); !errors.As(err, &said) || said.Path != "volumes" {
		t.Errorf("a volume that is not there: %v", err)
	}
	if _, err := configure(map[string]any{"secrets": []string{"none"}}).Create(t.Context(), c.creation(1)); !errors.As(err, &said) || said.Path != "secrets" {
		t.Errorf("a secret that is not there: %v", err)
	}
	if err := c.AddVolume("main", "shared"); err != nil {
		t.Fatal(err)
	}
	e := configure(map[string]any{"volumes": map[string]string{"/data": "shared"}, "secrets": []string{"database"}})
	for n, want := range []string{"db.example \n", "db.example written\n"} {
		made, err := e.Create(t.Context(), c.creation(n))
		if err != nil {
			t.Fatal(err)
		}
		target := sdk.Target{ID: sandboxID(n), Ref: made.Sandbox.Ref, Fleet: fleet}
		var out bytes.Buffer
		command := []string{"sh", "-c", `echo "$DATABASE $(cat /data/file 2>/dev/null)"; printf written > /data/file`}
		if result, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: command, Stdout: &out}); err != nil || result.ExitCode != 0 || out.String() != want {
			t.Errorf("%q, exit code %d, %v", out.String(), result.ExitCode, err)
		}
		if _, err := e.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
			t.Error(err)
		}
	}
}

// Where the configuration says so, an extend beyond the vendor's lifetime goes on
// in another sandbox under the same id, with the files, the variables and the
// secrets of the first, and nothing of either is left behind.
func TestBeyondTheVendorsLifetime(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	config, err := json.Marshal(map[string]string{"server_url": c.URL(), "state_dir": t.TempDir(), "token_id": testTokenID, "token_secret": testTokenSecret, "beyond_max": "replace"})
	if err != nil {
		t.Fatal(err)
	}
	e := extension.New(extension.Options{Clock: ticking{c.clock}, Getenv: func(string) string { return "" }})
	defer e.Close()
	if _, err := e.Configure(t.Context(), sdk.ConfigureOptions{Backend: "b", Fleet: fleet, Config: config}); err != nil {
		t.Fatal(err)
	}
	opts := c.creation(1)
	opts.ExpiresAt, opts.MaxExpiresAt = start.Add(20*time.Hour), start.Add(60*time.Hour)
	opts.Env, opts.Secrets = map[string]string{"GIVEN": "at the create"}, map[string]sdk.Secret{"API": "s3cret"}
	opts.Profile.Command = []string{"sh", "-c", "echo $GIVEN >> /srv/starts; exec sleep 100000"}
	made, err := e.Create(t.Context(), opts)
	if err != nil || !made.Sandbox.Lease.MaxExpiresAt.Equal(opts.MaxExpiresAt) {
		t.Fatalf("%+v, %v", made.Sandbox.Lease, err)
	}
	target := sdk.Target{ID: opts.ID, Ref: made.Sandbox.Ref, Fleet: fleet}
	show := func(script string) string {
		var out bytes.Buffer
		if _, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", script}, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	show("echo kept > /srv/file")
	c.clock.Advance(19 * time.Hour)
	extend := func(generation int64, until time.Time) error {
		granted, err := e.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: generation, ExpiresAt: until, Event: sdk.EventRef{LedgerID: "x", Sequence: 10 + generation}})
		if err == nil && (!granted.Lease.ExpiresAt.Equal(until) || granted.Lease.Generation != generation+1) {
			t.Errorf("%+v was granted", granted.Lease)
		}
		return err
	}
	until := start.Add(40 * time.Hour)
	if err := extend(1, until); err != nil {
		t.Fatal(err)
	}
	got, err := e.Get(t.Context(), sdk.GetOptions{Target: target})
	if err != nil || got.Sandbox.Ref == made.Sandbox.Ref || got.Sandbox.Incarnation != 2 || got.Sandbox.Status != sdk.StatusReady || !got.Sandbox.Lease.ExpiresAt.Equal(until) {
		t.Fatalf("%+v, %v", got.Sandbox, err)
	}
	if said := show(`cat /srv/file; echo "$GIVEN"; sleep 0.2; wc -l < /srv/starts; cat "$API_FILE"`); said != "kept\nat the create\n2\ns3cret" {
		t.Errorf("it says %q", said)
	}
	if len(c.Running()) != 1 || len(c.Images()) != 0 {
		t.Errorf("%d sandboxes run, and the images %v are left", len(c.Running()), c.Images())
	}
	// A failure in the middle loses nothing: the files are in a snapshot.
	c.clock.Advance(18 * time.Hour)
	c.Inject(modaltest.Fault{Call: modaltest.CallCreate, Lie: modaltest.Refuse, Code: codes.ResourceExhausted})
	err = extend(2, start.Add(60*time.Hour))
	c.Heal()
	var said *sdk.Error
	if !errors.As(err, &said) || said.Advice == "" {
		t.Fatalf("a replacement that fails: %v", err)
	}
	kept, err := e.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: sdk.ExpirySnapshotID(opts.ID), Fleet: fleet})
	if err != nil || kept.Snapshot.SandboxID != opts.ID || !kept.Snapshot.ContainsSecrets {
		t.Errorf("%+v, %v", kept.Snapshot, err)
	}
}

// The retention of a snapshot is the vendor's own: it ends by itself, and is
// prolonged by another image, whose making leaves nothing behind.
func TestSnapshotRetention(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	_, target := c.mustCreate(t, 1)
	made, err := c.Snapshot(t.Context(), sdk.SnapshotOptions{
		Target: target, SnapshotID: snapshotID(1), Kind: sdk.SnapshotFilesystem, ExpiresAt: c.clock.Now().Add(time.Hour), Identity: sdk.Identity{ID: snapshotID(1), Fleet: fleet},
	})
	if err != nil {
		t.Fatal(err)
	}
	until := c.clock.Now().Add(40 * 24 * time.Hour)
	extended, err := c.ExtendSnapshot(t.Context(), sdk.ExtendSnapshotOptions{SnapshotID: snapshotID(1), Fleet: fleet, ExpiresAt: until})
	if err != nil || !extended.Snapshot.ExpiresAt.Equal(until) || extended.Snapshot.Ref == made.Snapshot.Ref {
		t.Fatalf("%+v, %v", extended.Snapshot, err)
	}
	if images := c.Images(); !slices.Equal(images, []string{extended.Snapshot.Ref}) {
		t.Errorf("the images %v are left", images)
	}
	if n := len(c.Running()); n != 1 {
		t.Errorf("%d sandboxes run", n)
	}
	c.clock.Advance(41 * 24 * time.Hour)
	if _, err := c.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: snapshotID(1), Fleet: fleet}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
	if list, err := c.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: fleet}); err != nil || len(list.Snapshots) != 0 {
		t.Errorf("after its end %d are listed, %v", len(list.Snapshots), err)
	}
}

// A snapshot needs its time: one that the sandbox's lifetime has no room for is
// refused, one that fails leaves the source running and no record.
func TestSnapshotFails(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	opts := c.creation(1)
	opts.MaxExpiresAt = opts.ExpiresAt
	made, err := c.Create(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: opts.ID, Ref: made.Sandbox.Ref, Fleet: fleet}
	snapshot := func(n int) error {
		_, err := c.Snapshot(t.Context(), sdk.SnapshotOptions{
			Target: target, SnapshotID: snapshotID(n), Kind: sdk.SnapshotFilesystem, ExpiresAt: c.clock.Now().Add(time.Hour), Identity: sdk.Identity{ID: snapshotID(n), Fleet: fleet},
		})
		return err
	}
	c.Inject(modaltest.Fault{Call: modaltest.CallSnapshot, Lie: modaltest.NoImage})
	if err := snapshot(1); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("without an image: %v", err)
	}
	c.Heal()
	if list, err := c.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: fleet}); err != nil || len(list.Snapshots) != 0 {
		t.Errorf("%d are listed, %v", len(list.Snapshots), err)
	}
	if n := len(c.Running()); n != 1 {
		t.Errorf("%d run", n)
	}
	if err := snapshot(2); err != nil {
		t.Errorf("when all is well: %v", err)
	}
}
